"""13.4 From its text."""

import math
from functools import partial
from itertools import accumulate

import numpy as np

from ...pipeline.schedule import Schedule, make, parse, simulate
from .. import signs
from ..equality import NO_NUMBER
from ..judging import Case, Exercise, ranks
from ..signs import both

# name, ranks, micro-batches, steps
SIZES = [("naive", 1, 1, 1), ("gpipe", 2, 2, 1), ("1f1b", 2, 3, 1)]
SIZES += [("gpipe", 3, 4, 3), ("zb-h1", 3, 6, 2), ("interleaved", 2, 4, 3)]
SIZES += [("zb-h2", 3, 6, 4), ("1f1b", 4, 6, 5), ("interleaved", 3, 6, 1)]
BY_HAND = """
0F0 0F1 3F1 3B1 3F0 3B0 0B1 3W1 0B0 0W1 3W0 0W0
1F0 1F1 2F1 2F0 2B1 1B1 2W1 2B0 1B0 1W1 2W0 1W0"""
OF_BUBBLE = "one step", "B alone", "free messages", "longest span"
OF_BYTES = "never gone", "gone with B", "all until W"


def cases(rng):
    """Schedules by name and by hand, of equal and of unequal stages."""
    named = [(make(name, p, m), steps) for name, p, m, steps in SIZES]
    for i, (made, steps) in enumerate([*named, (parse(BY_HAND), 3)]):
        equal = i in (1, 6)
        drawn, same = (1, made.stages) if equal else (made.stages, 1)
        spans = [(0.8, 1.6), (0.8, 1.6), (0.5, 1.2)]  # of F, B and W
        times = [rng.uniform(*x, size=drawn).round(3).tolist() * same for x in spans]
        comm = 0.0 if equal else round(float(rng.uniform(0.05, 0.4)), 3)
        kept = rng.integers(500, 3000, size=made.stages).tolist()
        late = [int(x * rng.uniform(0.2, 0.7)) for x in kept]
        text = f"{made.name}, {ranks(made.p)}, {steps} step{'s' * (steps > 1)}"
        text += f", a message takes {comm:g}"
        given = steps, *times, comm, kept, late
        yield Case(
            1, text, [(str(made), *given)], truth=partial(forecast, made, *given)
        )


def forecast(made, steps, F, B, W, comm, kept, late, slip=""):
    """[(bubble, most bytes of each rank)]; `...` where a slip has no say."""
    F, B, W, kept, late = map(np.array, (F, B, W, kept, late))
    late = {"gone with B": 0 * late, "all until W": kept}.get(slip, late)
    steps = 1 if slip == "one step" else steps
    sim = simulate(repeated(made, steps), F, B, W, comm * (slip != "free messages"))
    if not made.splits:
        late, B = 0 * late, B + W * (slip != "B alone")
    cost = {"F": F, "B": B, "W": W}
    work = steps * sum(cost[a.kind][a.stage] for a in made.every)
    bubble = sim.bubble if slip == "longest span" else 1 - work / made.p / sim.elapsed
    more = {"F": kept, "B": late - kept, "W": -late}
    counted = "F" if slip == "never gone" else "FBW"
    held = [
        int(max(accumulate(more[k][s] for s, k, _ in row if k in counted)))
        for row in made.ranks
    ]
    return [(float(bubble), ... if slip in OF_BUBBLE else held)]


def repeated(made, steps):
    """The rows one after the other; micro-batch i of step k has the number km + i."""
    shifts = [k * made.m for k in range(steps)]
    longer = lambda row: [a._replace(micro=a.micro + k) for k in shifts for a in row]
    return Schedule(tuple(tuple(longer(row)) for row in made.ranks))


def agrees(came, wanted, case):
    """The bubble to six digits, and the same bytes; `...` stands for any."""
    try:
        bubble, held = came
        bubble, held = float(bubble), [float(x) for x in held]
    except NO_NUMBER:
        return False
    near = wanted[0] is ... or math.isclose(bubble, wanted[0], abs_tol=1e-6)
    return near and (wanted[1] is ... or held == wanted[1])


exercise = Exercise(
    "13.4",
    cases,
    [],
    {
        "not two": both(signs.wrong, lambda a: not a.gives([(..., ...)])),
        **signs.slips(*OF_BUBBLE),
        **signs.slips_somewhere(*OF_BYTES),
    },
    agrees=agrees,
    processes=(),
)
