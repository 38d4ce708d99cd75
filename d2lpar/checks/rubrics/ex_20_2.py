"""20.2 The mesh step."""

import math
from functools import cache, partial

import torch
from torch import nn

from ...mesh.gpt_parts import blocks_of
from ...mesh.grid import AXES, Mesh, bytes_per_axis
from ...report.units import show_bytes
from ...sim.cluster import Cluster
from .. import requirements as rows
from .. import signs
from ..equality import same
from ..judging import Case, Exercise, Requirement
from ..signs import breaks, wrong

D, H, LR = 4, 24, 0.5
# data, pipeline, tensor; blocks, micro-batches, rows of each data rank
GIVEN = [(1, 1, 1, 2, 1, [3]), (1, 1, 2, 2, 2, [4]), (1, 2, 1, 3, 3, [5])]
GIVEN += [(2, 1, 1, 1, 1, [2, 5]), (1, 1, 3, 2, 2, [2]), (1, 3, 1, 3, 4, [6])]
GIVEN += [(1, 2, 2, 3, 2, [4]), (2, 2, 1, 2, 3, [4, 3])]
GIVEN += [(2, 2, 2, 3, 2, [5, 3]), (3, 1, 2, 1, 1, [1, 4, 2])]
SLIPS = "mean of means", "sum", "no data", "local loss", "whole", "gradients"


def cases(rng):
    """Every axis alone, pairs, and all three; data ranks with different rows."""
    for d, p, t, count, m, each in GIVEN:
        draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
        blocks = [block(draw) for _ in range(count)]
        x, y, N = draw(sum(each), D), draw(sum(each), D), sum(each)
        mesh, given = Mesh(d, p, t), []
        for r in range(mesh.ranks):
            at, begin = mesh.coordinates(r), sum(each[: r // (p * t)])
            own = slice(begin, begin + each[at["data"]])
            mine = [x[own].clone(), y[own].clone()]
            for k, stage in enumerate((0, p - 1)):  # others have no numbers
                if at["pipeline"] != stage:
                    mine[k] = torch.full_like(mine[k], math.nan)
            copies = [{k: w.clone() for k, w in one.items()} for one in blocks]
            given.append((copies, *mine, N, (d, p, t), m, LR))
        facts = {"sizes": (d, p, t), "count": count, "m": m, "rows": each}
        text = f"data {d}, pipeline {p}, tensor {t}: {count} blocks, rows {each}"
        text += f" in {m} micro-batches"
        made = cache(partial(outcomes, blocks, x, y, facts))
        options = {"cluster": Cluster.of(f"{mesh.ranks}xA100")}
        yield Case(mesh.ranks, text, given, None, facts, options, truth=made)


def block(draw):
    """The weights of a block, by the names of its state_dict."""
    return {
        "norm.weight": 1 + 0.1 * draw(D),
        "norm.bias": draw(D),
        "mlp.0.weight": draw(H, D) / 2,
        "mlp.0.bias": draw(H),
        "mlp.2.weight": draw(D, H) / 5,
        "mlp.2.bias": draw(D),
    }


def forward(blocks, x):
    for w in blocks:
        y = nn.functional.layer_norm(x, [D], w["norm.weight"], w["norm.bias"])
        y = nn.functional.linear(y, w["mlp.0.weight"], w["mlp.0.bias"])
        y = nn.functional.gelu(y)
        x = x + nn.functional.linear(y, w["mlp.2.weight"], w["mlp.2.bias"])
    return x


def step(blocks, x, y, rows):
    """(the sum of squares over so many rows, the gradients)."""
    mine = [{k: w.clone().requires_grad_() for k, w in one.items()} for one in blocks]
    loss = (forward(mine, x) - y).square().sum() / rows
    loss.backward()
    return loss.item(), [{k: w.grad for k, w in one.items()} for one in mine]


def outcomes(blocks, x, y, facts, slip=""):
    """Per rank, the loss and its new weights; a slip makes something else."""
    (d, p, t), each, N = facts["sizes"], facts["rows"], len(x)
    parts = list(zip(x.split(each), y.split(each), strict=True))
    own = slip in ("mean of means", "sum")
    steps = [step(blocks, *part, len(part[0]) if own else N) for part in parts]
    share = d if slip == "mean of means" else 1
    loss = sum(one for one, _ in steps) / share
    found = []
    for r in range(d * p * t):
        at = Mesh(d, p, t).coordinates(r)
        stage, k = at["pipeline"], at["data"]
        summed = steps[k : k + 1] if slip == "no data" else steps
        new = []
        for i in blocks_of(len(blocks), stage, p):
            grads = [gradient[i] for _, gradient in summed]
            whole = {n: sum(g[n] for g in grads) / share for n in blocks[i]}
            if slip != "gradients":
                whole = {n: blocks[i][n] - LR * g for n, g in whole.items()}
            new.append(whole if slip == "whole" else part_of(whole, at["tensor"], t))
        local = steps[k][0] if stage == p - 1 else 0.0
        found.append((local if slip == "local loss" else loss, new))
    return found


def part_of(weights, r, t):
    """What tensor rank r of t has of a block's weights."""
    cut = {"mlp.0.weight": 0, "mlp.0.bias": 0, "mlp.2.weight": 1}
    return {
        n: w.chunk(t, cut[n])[r].clone() if n in cut else w for n, w in weights.items()
    }


def agrees(came, wanted, case):
    """(loss, new weights); the loss may be a tensor of one number."""
    if not isinstance(came, list | tuple) or len(came) != 2:
        return False
    loss, new = came
    if torch.is_tensor(loss) and loss.numel() == 1:
        loss = loss.item()
    new = [
        {k: w.detach() if torch.is_tensor(w) else w for k, w in one.items()}
        for one in new
    ]
    return same(loss, wanted[0]) and same(new, wanted[1])


# What a step may send, all ranks together


def allowed(case):
    """{axis: bytes}: sums of activations, activations and gradients, gradients."""
    (d, p, t), count = case.facts["sizes"], case.facts["count"]
    batch = sum(case.facts["rows"]) * D * 8
    held = count * 3 * D + (2 * D * H + H) * count / t  # on a data copy's ranks
    small = 64 * case.n  # the loss
    notes = 200 * d * t * (p - 1)  # shapes of what travels
    return {
        "tensor": 2 * count * 3 * (t - 1) * batch + small,
        "pipeline": 2 * (p - 1) * t * batch + notes + small,
        "data": 2 * (d - 1) * t * held * 8 + small,
    }


def along(axis):
    """A row: the bytes of all ranks along an axis."""

    def sent(attempt):
        mesh = Mesh(*attempt.case.facts["sizes"])
        return bytes_per_axis(mesh, attempt.run.traffic)[axis]

    return Requirement(
        f"bytes along {axis}",
        sent,
        lambda case: int(allowed(case)[axis]),
        exactly=False,
        show=show_bytes,
    )


def stage_messages(attempt):
    """Messages of all ranks along the pipeline."""
    mesh, count = Mesh(*attempt.case.facts["sizes"]), 0
    for event in attempt.run.timeline.events:
        if event.stream == "send":
            count += mesh.axis(event.rank, event.peer) == "pipeline"
    return count


def least_messages(case):
    """An activation and a gradient of each micro-batch across each border."""
    (d, p, t), m = case.facts["sizes"], case.facts["m"]
    return 2 * (p - 1) * d * t * m


MICRO = Requirement(
    "messages along pipeline",
    stage_messages,
    lambda case: least_messages(case) + 8 * case.n,
    exactly=False,
    least=least_messages,
)


def share_of_work(case):
    """Per rank, the FLOPs of its part of the products, forward and backward."""
    (d, p, t), each = case.facts["sizes"], case.facts["rows"]
    mesh, work = Mesh(d, p, t), []
    for r in range(case.n):
        at = mesh.coordinates(r)
        held = len(blocks_of(case.facts["count"], at["pipeline"], p))
        work.append(held * each[at["data"]] * 12 * D * H // t)
    return work


WORK = Requirement("FLOPs of a rank", rows.products, share_of_work, exactly=False)


def fails_on(axis):
    """It fails wherever this axis has several ranks, and nowhere else."""
    k = AXES.index(axis)
    return signs.only(lambda case: case.facts["sizes"][k] > 1)


def no_pair(attempt):
    return wrong(attempt) and not isinstance(attempt.came[0], list | tuple)


ALONG = {axis: along(axis) for axis in AXES}

exercise = Exercise(
    "20.2",
    cases,
    [*ALONG.values(), MICRO, WORK],
    {
        "no pair": no_pair,
        **signs.slips(*SLIPS),
        "one micro-batch": breaks(MICRO),
        "works for others": breaks(WORK),
        "sends too much": signs.either(*map(breaks, ALONG.values())),
        **{f"{axis} axis": fails_on(axis) for axis in ("tensor", "pipeline", "data")},
    },
    agrees=agrees,
    processes=(4,),
)
