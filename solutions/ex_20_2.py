"""20.2 The mesh step: mesh_step(blocks, x, y, N, sizes, m, lr)."""

import math

import torch

from d2lpar import Cluster
from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.showing import as_number
from d2lpar.checks.signs import breaks, only
from d2lpar.mesh import Mesh
from d2lpar.mesh.gpt_parts import blocks_of
from d2lpar.mesh.grid import AXES, bytes_per_axis
from d2lpar.report.units import show_bytes

D, H, LR = 4, 24, 0.5
# data, pipeline, tensor; blocks, micro-batches, rows of each data rank
GIVEN = [(1, 1, 1, 2, 1, [3]), (1, 1, 2, 2, 2, [4]), (1, 2, 1, 3, 3, [5])]
GIVEN += [(2, 1, 1, 1, 1, [2, 5]), (1, 1, 3, 2, 2, [2]), (1, 3, 1, 3, 4, [6])]
GIVEN += [(1, 2, 2, 3, 2, [4]), (2, 2, 1, 2, 3, [4, 3])]
GIVEN += [(2, 2, 2, 3, 2, [5, 3]), (3, 1, 2, 1, 1, [1, 4, 2])]
CUT = {"mlp.0.weight": 0, "mlp.0.bias": 0, "mlp.2.weight": 1}


def outcome(attempt, rank):
    """(loss, new weights): the loss a number, and no weight with a gradient."""
    try:
        loss, new = attempt.values[rank]
        return as_number(loss), [{k: w.detach() for k, w in x.items()} for x in new]
    except (TypeError, ValueError, AttributeError):
        return attempt.values[rank]


ex = Exercise("20.2", reference="step_reference", outcome=outcome, processes=(4,))


@ex.cases
def cases(rng, reference):
    """Every axis alone, pairs, and all three; data ranks with different rows."""
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    for d, p, t, count, m, each in GIVEN:
        blocks, mesh, N = [block(draw) for _ in range(count)], Mesh(d, p, t), sum(each)
        x, y = draw(N, D), draw(N, D)
        loss, whole = reference(blocks, x, y, LR)
        given, expected = [], []
        for r in range(mesh.ranks):
            at, mine = mesh.coordinates(r), []
            for both, stage in ((x, 0), (y, p - 1)):  # others have no numbers
                own = both.split(each)[at["data"]].clone()
                other = torch.full_like(own, math.nan)
                mine.append(own if at["pipeline"] == stage else other)
            given.append((blocks, *mine, N, (d, p, t), m, LR))
            here = blocks_of(count, at["pipeline"], p)
            expected.append((loss, [part(whole[i], at["tensor"], t) for i in here]))
        text = f"data {d}, pipeline {p}, tensor {t}, m {m}: {count} blocks, rows {each}"
        facts = {"sizes": (d, p, t), "count": count, "m": m, "rows": each}
        options = {"cluster": Cluster.of(f"{mesh.ranks}xA100")}
        yield Case(mesh.ranks, text, given, expected, facts, options)


def block(draw):
    """The weights of a block, by the names of its state_dict."""
    made = {"norm.weight": 1 + 0.1 * draw(D), "norm.bias": draw(D)}
    made |= {"mlp.0.weight": draw(H, D) / 2, "mlp.0.bias": draw(H)}
    return made | {"mlp.2.weight": draw(D, H) / 5, "mlp.2.bias": draw(D)}


def part(weights, r, t):
    """What tensor rank r of t has of a block's weights."""
    return {
        k: w.chunk(t, CUT[k])[r].clone() if k in CUT else w for k, w in weights.items()
    }


# What a step may send, all ranks together


def allowed(case):
    """{axis: bytes}: sums of activations, activations and gradients, gradients."""
    (d, p, t), count = case.facts["sizes"], case.facts["count"]
    batch = sum(case.facts["rows"]) * D * 8
    held = count * 3 * D + (2 * D * H + H) * count / t  # on a data copy's ranks
    small = 64 * case.n  # the loss
    return {
        "tensor": 2 * count * 3 * (t - 1) * batch + small,
        "pipeline": (p - 1) * t * (2 * batch + 200 * d) + small,  # and shapes
        "data": 2 * (d - 1) * t * held * 8 + small,
    }


def along(axis):
    """A row: the bytes of all ranks along an axis."""
    sent = lambda a: bytes_per_axis(Mesh(*a.case.facts["sizes"]), a.run.traffic)[axis]
    most = lambda case: int(allowed(case)[axis])
    return Requirement(f"bytes along {axis}", sent, most, False, show_bytes)


def stage_messages(attempt):
    """Messages of all ranks along the pipeline."""
    mesh, events = Mesh(*attempt.case.facts["sizes"]), attempt.run.timeline.events
    ends = [(event.rank, event.peer) for event in events if event.stream == "send"]
    return sum(mesh.axis(*pair) == "pipeline" for pair in ends)


def borders(case):
    """An activation and a gradient of each micro-batch across each border."""
    (d, p, t), m = case.facts["sizes"], case.facts["m"]
    return 2 * (p - 1) * d * t * m


def share_of_work(case):
    """Per rank, the FLOPs of its part of the products, forward and backward."""
    (_, p, t), work = case.facts["sizes"], []
    for r in range(case.n):
        rows, stage = case.facts["rows"][r // (p * t)], r // t % p
        held = len(blocks_of(case.facts["count"], stage, p))
        work.append(held * rows * 12 * D * H // t)
    return work


most = lambda case: borders(case) + 8 * case.n
MICRO = Requirement(
    "messages along pipeline", stage_messages, most, False, least=borders
)
WORK = Requirement("FLOPs of a rank", rows.products, share_of_work, exactly=False)
ex.require(*map(along, AXES), MICRO, WORK)

size = lambda axis: lambda case: case.facts["sizes"][AXES.index(axis)]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    **{f"{axis}_alone": lambda c, a=axis: 1 < size(a)(c) == c.n for axis in AXES},
    all_axes=lambda case: min(case.facts["sizes"]) > 1,
    uneven_stages=lambda case: case.facts["count"] % size("pipeline")(case),
    different_rows=lambda case: len({*case.facts["rows"]}) > 1,
    uneven_batches=lambda case: case.facts["rows"][0] % case.facts["m"],
)

# Texts of the answer, for edits

SUM, GROUPS = "dist.all_reduce(weight.grad, group=data)", "in (line, data):"
RETURN = "return loss.item(), [dict(block.state_dict()) for block in mine]"
STAGE = "blocks_of(len(blocks), stage, p)"
own, mean = {"(x, y, N)": "(x, y, len(x))"}, {SUM: f"{SUM}; weight.grad /= sizes[0]"}

# Mistakes of its own

ex.slip("divisor", own)
ex.slip("divisor", own | mean | {RETURN: f"loss /= sizes[0]\n    {RETURN}"}).says("""
    The sums over all rows are not divided by N, once.
    Hint: Data ranks have different numbers of rows: the mean of means is wrong.
""")
weights = lambda pair: (..., pair[1])
ex.slip("no data", {SUM: "pass"}, about=weights).says("""
    Gradients are not summed over the data ranks, or not all of them.
    Hint: Data ranks see different rows, so gradients differ, also of biases and norms.
""")
ex.slip("no data", {SUM: f"if weight.ndim > 1:\n            {SUM}"})
ex.slip("local loss", {GROUPS: "in ():"}, about=lambda pair: (pair[0], ...)).says("""
    The loss is not that of the whole batch on every rank.
    Hint: Only last stages have a loss, of their data rank's rows. Sum it on two axes.
""")
ex.slip("local loss", {GROUPS: "in (line,):"})
whole = {"block.mlp = parallel_mlp(*block.mlp, group=tensor)": "pass"}
ex.slip("whole", whole, about=weights).says("""
    It returns whole weights, but a tensor rank has only a part of the MLP.
    Hint: Tensor rank r has part r of the rows of mlp.0 and of the columns of mlp.2.
""")
one = {'schedule.make("1f1b", p, m)': 'schedule.make("1f1b", p, 1)'}
ex.mistake("one micro-batch", breaks(MICRO), one).says("""
    The values are right, but the stages do not exchange each micro-batch by itself.
    Hint: A schedule of `schedule.make` has all exchanges of m micro-batches.
""")
last = "[i for i in range(len(blocks)) if min(i // (len(blocks) // p), p - 1) == stage]"
again = {SUM: f"{SUM}; dist.all_reduce(weight.grad, group=tensor)"}
for axis, edits, hint in (
    ("tensor", again, "A split MLP needs a sum forward and one backward, no other."),
    ("pipeline", {STAGE: last}, "Which blocks, rows and targets does a stage have?"),
    ("data", {SUM: f"{SUM}; {SUM}"}, "Sum every gradient over the data ranks, once."),
):
    several = only(lambda case, axis=axis: size(axis)(case) > 1)
    ex.mistake(f"{axis} axis", several, edits).says(f"""
        It fails exactly where the {axis} axis has several ranks. Hint: {hint}
    """)

# Answers to which the general sentences apply

ex.wrong("costly", {SUM: f"{SUM}; dist.all_reduce(weight.data.clone(), group=data)"})
ex.wrong("wrong", {RETURN: "return mine[0].state_dict()"})
flat = "from d2lpar.allreduce import ring_allreduce; ring_allreduce(weight.grad, data)"
ex.right({'"1f1b"': '"gpipe"', SUM: flat, "return loss.item()": "return loss[None]"})

ex.variation(
    "b",
    varied="the loss is divided by the features, too",
    differs="The loss is divided by the rows alone, but here by the features as well.",
    given=lambda n, *given: (*given[:-1], given[-1] * D),  # a larger step, for the same
    back=lambda value, n: (value[0] * D, value[1]),
)
