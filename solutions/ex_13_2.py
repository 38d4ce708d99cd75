"""13.2 The order of sends: run_row(schedule, modules, xs)."""

import copy

import torch
from torch import nn

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Layer
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import both, breaks, only
from d2lpar.pipeline.schedule import make, parse, simulate
from d2lpar.sim.cluster import Cluster

ex = Exercise("13.2", reference="gradients_reference")
F, B = 1e-3, 2e-3  # seconds of a rank's share of a micro-batch
D = 3
SIZES = [("gpipe", 2, 1, None), ("1f1b", 2, 3, None), ("interleaved", 2, 2, 2)]
SIZES += [("interleaved", 3, 3, 2), ("interleaved", 2, 5, 2), ("1f1b", 4, 4, None)]
SIZES += [("interleaved", 4, 4, 2), ("interleaved", 2, 5, 3)]

# Ranks that take the micro-batches in different orders; stages that are not in turn.
BY_HAND = {
    "stages 0, 2 and 1, 3": """
        0F0 0F1 2F1 2F0 2B0 0B0 2B1 0B1
        1F1 3F1 3B1 1F0 3F0 3B0 1B0 1B1""",
    "stages 0, 2 and 1, 3, three micro-batches": """
        0F0 0F1 0F2 2F2 2F0 2B0 2F1 2B2 0B0 2B1 0B2 0B1
        1F2 3F2 3B2 1F0 3F0 3B0 1F1 3F1 3B1 1B0 1B2 1B1""",
    "stages 0, 2 and 1 and 3": """
        0F0 0F1 2F0 2F1 2B0 0B0 2B1 0B1
        1F0 1F1 1B0 1B1
        3F0 3B0 3F1 3B1""",
}


@ex.cases
def cases(rng, reference):
    """Interleaved, 1F1B, GPipe and by hand; rows that divide and rows that do not."""
    drawn = "interleaved", 3, int(rng.integers(4, 7)), 2
    made = [make(*which) for which in [*SIZES, drawn]]
    made += [parse(text, name) for name, text in BY_HAND.items()]
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    for schedule in sorted(made, key=lambda made: len(made.every)):
        p, m, home = schedule.p, schedule.m, schedule.home
        times = F * p / schedule.stages, B * p / schedule.stages
        differ = m in (3, 5)
        xs = [draw(2 + i % 3 * differ, D) for i in range(m)]
        layers = {s: Layer(draw(D, D), draw(D), times) for s in home}
        alone = {s: copy.deepcopy(x.linear) for s, x in layers.items()}
        modules = {s: nn.Sequential(x, nn.Tanh()) for s, x in alone.items()}
        found = reference(modules, xs)
        of = lambda r, x, home=home: {s: x[s] for s in home if home[s] == r}
        told = "rows that differ" if differ else "2 rows each"
        yield Case(
            p,
            f"{ranks(p)}, {schedule.name}, {m} micro-batch{'es' * (m > 1)}, {told}",
            [(schedule, of(r, layers), xs) for r in range(p)],
            [of(r, found) for r in range(p)],
            {"seconds": simulate(schedule, *times).elapsed},
            {"cluster": Cluster.ideal(p, alpha=0.0, beta=0.0)},
        )


given = lambda case: case.inputs[0][0]
in_turn = lambda case: all(r == s % case.n for s, r in given(case).home.items())
share = lambda k: lambda case: given(case).stages == k * case.n
ex.boundaries(
    "two ranks",
    "no power of two",
    one_micro_batch=lambda case: given(case).m == 1,
    one_stage_each=share(1),
    two_stages_each=share(2),
    three_stages_each=share(3),
    not_in_turn=lambda case: not in_turn(case),
    orders_that_cross=lambda case: given(case).name in BY_HAND and in_turn(case),
    rows_that_differ=lambda case: len({len(x) for x in case.inputs[0][2]}) > 1,
)
ex.exactly(messages=lambda case: 2 * given(case).m * (given(case).stages - 1))
TIME = rows.seconds(lambda case: 1.001 * case.facts["seconds"], exactly=False)
ex.require(TIME, rows.all_waited(), rows.from_messages())

# Texts of the answer, for edits

COMES, BACK = "dist.recv(x, before, tag=i)", "dist.recv(dy, after, tag=i)"
SEND = "sent.append((dist.isend(leaves, to, tag=i), leaves))"
ROW = "schedule.ranks[dist.get_rank()]"
NEIGHBOURS = "home.get(stage - 1), home.get(stage + 1)"
FOUND = "[p.grad for p in modules[s].parameters()]"


def tagged(forward, backward, sent):
    """Edits: other tags, or none."""
    ends = {COMES: f"x, before{forward})", BACK: f"dy, after{backward})"}
    edits = {old: f"dist.recv({new}" for old, new in ends.items()}
    return edits | {SEND: SEND.replace(", tag=i", sent)}


# Mistakes of its own

by_rank = "(dist.get_rank() {}) % schedule.p if {} else None"
others = map(by_rank.format, ("- 1", "+ 1"), ("stage > 0", "stage + 1 in home"))
not_in_turn = only(lambda case: not in_turn(case))
ex.mistake("in turn", not_in_turn, {NEIGHBOURS: ", ".join(others)}).says("""
    It fails only where the stages are not given to the ranks in turn.
    Hint: Which rank has the next stage? It need not be the next rank, so look it up in
    `schedule.home`.
""")
send_first = lambda attempt: "All of them send" in str(attempt.error)
several = only(lambda case: given(case).m > 1)
at_once = {SEND: "dist.send(leaves, to, tag=i)"}
ex.mistake("hangs", both(several, send_first), at_once).says("""
    Ranks still wait for each other in `send`, and the error above says which ones.
    Hint: When does each message leave, and which line takes it? A rank must be able to
    continue before its message is taken, as `isend` allows.
""")
ex.wrong("hangs", {SEND: f"{SEND}; sent[-1][0].wait()"})
ex.wrong("hangs", {COMES: "pass", BACK: "pass"})
ex.slip("crossed", tagged("", "", "")).says("""
    A rank takes one tensor for another, because it needs them in a different order than
    they were sent.
    Hint: How does a receive know which message to take? It takes what comes first from
    that rank, unless both sides name the message with the same tag. Both sides know the
    micro-batch.
""")
ex.slip("crossed", tagged("", ", tag=1", ", tag='FB'.index(kind)"))
needs = ", tag=stage + (1 if kind == 'F' else -1)"  # the stage that needs it
ex.slip("crossed", tagged(*[", tag=stage"] * 2, needs))
key = "(a.micro, a.kind < 'F', a.stage if a.kind == 'F' else -a.stage)"
by_micro = {ROW: f"sorted({ROW}, key=lambda a: {key})"}
ex.mistake("late", breaks(TIME), by_micro).says("""
    The gradients are right, but the run takes longer than `simulate` says.
    Hint: Does a rank wait until its own messages are taken, or take its actions in a
    different order than its row?
""")

# Answers to which the general sentences apply

ex.wrong("no wait", {"in sent": "in ()"})
note = {COMES: "dist.recv(torch.ones(1), before, tag=i); " + COMES}
note |= {BACK: "dist.recv(torch.ones(1), after, tag=i); " + BACK}
ex.wrong("costly", note | {SEND: f"{SEND.replace('leaves', 'torch.ones(1)')}; {SEND}"})
ex.wrong("wrong", {"2 * y": "4 * y"})
ex.wrong("wrong", {"for s in modules}": "for s in [*modules][:1]}"})
ex.right({FOUND: f"tuple({FOUND[1:-1]})"})
ex.right(tagged(", tag=2 * i", ", tag=2 * i + 1", ", tag=2 * i + (kind == 'B')"))
ex.right({COMES: COMES.replace("recv", "irecv") + ".wait()"})
