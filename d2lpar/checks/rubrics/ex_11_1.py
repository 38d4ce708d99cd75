"""11.1 Nine layers, four different GPUs."""

import math
from itertools import pairwise

from .. import signs
from ..equality import NO_NUMBER, close
from ..judging import Case, Exercise
from ..signs import wrong

# GPUs, layers, how much room the GPUs have together (in parts of what is needed)
SIZES = ((1, 3, 2.0), (2, 5, 2.0), (3, 7, 3.0), (4, 9, 4.0), (4, 9, 1.6))
SIZES += ((4, 9, 1.4), (3, 2, 4.0), (5, 9, 8.0), (6, 12, 1.7), (4, 9, 0.9))
SIZES += ((4, 9, 3.0), (4, 11, 5.0), (5, 12, 3.0), (4, 9, 6.0), (8, 40, 2.0))
FULL = [7, 8, 3, 6, 2, 1, 3], [1] * 7, [2, 1, 2, 3, 2, 3, 2], [2, 4, 2, 4], [3] * 4
LAST = [4] * 4, [1] * 4, [1, 1, 1, 20], [1, 1], [4, 4]
ONE = [1.0], [2.0], [100.0], [4.0, 1.0], [2.0, 2.0]  # the second GPU stays empty
# A GPU that is full costs the next one more; the last one stays empty
LATER = [2, 1, 9], [1] * 3, [1, 4, 50], [1, 1, 0.5], [2, 3, 3]


def cases(rng):
    """GPUs of many speeds: too little room, enough, and just enough; many layers."""
    for p, L, share in SIZES:
        ends = (1, 9), (1, 4), (0.5, 6)
        seconds, held, moved = (rng.uniform(*x, size=L).tolist() for x in ends)
        speed = rng.choice([0.25, 0.5, 1, 2, 3], size=p).tolist()
        room = rng.uniform(0.6, 1.4, size=p)
        room = (room / room.sum() * sum(held) * share).tolist()
        given = seconds, held, moved, speed, room, 0.5
        yield case_of(given, f"room {share:g} of what is needed")
    yield case_of((*LAST, 0.5), "a large last value")
    yield case_of((*FULL, 0.25), "room for three layers on each")
    yield case_of((*ONE, 0.5), "just enough room on each")
    yield case_of((*LATER, 1.0), "a large value behind the second layer")


def case_of(given, text):
    """One placement to be found, in less than three seconds."""
    p, L = len(given[3]), len(given[0])
    text = f"{L} layers on {p} GPU{'s' * (p != 1)}, {text}"
    return Case(1, text, [given], [placed(given)], options={"timeout": 3.0})


def cost(given, a, b, r, slip=""):
    """Seconds of GPU r with the layers a to before b."""
    seconds, held, moved, speed, room, beta = given
    if a == b and slip != "passing by":
        return math.inf if slip == "empty" else 0.0
    used = sum(held[a:b])
    if used > room[r] or (used == room[r] and slip == "full"):
        return math.inf
    into = moved[a - 1] * (a > 0 and slip != "outgoing")
    out = moved[b - 1] * (0 < b < len(seconds) and slip != "incoming")
    work = sum(seconds[a:b]) / (1 if slip == "speeds" else speed[r])
    return work + beta * (into + out)


def placed(given, slip=""):
    """Where parts begin and end, [0, ..., L], or None where nothing fits."""
    best, total = {0: (0.0, [0])}, sum if slip == "sum" else max
    for r in range(len(given[3])):
        best = {
            b: min(
                (total((value, cost(given, a, b, r, slip))), [*ends, b])
                for a, (value, ends) in best.items()
                if a <= b
            )
            for b in range(len(given[0]) + 1)
        }
    value, ends = best[len(given[0])]
    return ends if value < math.inf else None


def agrees(came, wanted, case, slip=""):
    """Is it as good as what is wanted?  Several placements may be best."""
    if wanted is None or not rises(came, case):
        return came is wanted
    parts = [enumerate(pairwise(ends)) for ends in (came, wanted)]
    costs = [[cost(case.inputs[0], *x, r, slip) for r, x in some] for some in parts]
    return close(*map(sum if slip == "sum" else max, costs))


def rises(came, case):
    """It is p + 1 numbers from 0 to L which never fall."""
    L, p = len(case.inputs[0][0]), len(case.inputs[0][3])
    try:
        ends = [int(x) for x in came]
    except NO_NUMBER:
        return False
    fine = len(ends) == p + 1 and ends == sorted(ends) == list(came)
    return fine and (ends[0], ends[-1]) == (0, L)


def placement(attempt):
    """It is a placement that fits, but a wrong one."""
    return wrong(attempt) and rises(attempt.came[0], attempt.case) and roomy(attempt)


def roomy(attempt):
    """No GPU of this placement is too full."""
    parts = enumerate(pairwise(attempt.came[0]))
    return all(cost(attempt.case.inputs[0], *x, r) < math.inf for r, x in parts)


def too_full(attempt):
    """Wherever it is wrong, it is a placement that does not fit."""
    fails = [a for a in attempt.attempts if wrong(a)]
    return wrong(attempt) and all(
        rises(a.came[0], a.case) and not roomy(a) for a in fails
    )


def like(slip):
    """Each answer is best for what this slip takes for the cost, if anything fits."""

    def fits(a):
        best = placed(a.case.inputs[0], slip)
        nothing = a.came == a.case.expected == [None]
        return nothing or (a.came and agrees(a.came[0], best, a.case, slip))

    return lambda attempt: wrong(attempt) and all(map(fits, attempt.attempts))


SLIPS = ("speeds", "outgoing", "incoming", "full", "empty", "passing by", "sum")

exercise = Exercise(
    "11.1",
    cases,
    mistakes={
        "every way": signs.endless,
        "impossible": signs.only(lambda case: case.expected == [None]),
        "form": lambda a: (
            wrong(a) and a.came != [None] and not rises(a.came[0], a.case)
        ),
        **{slip: like(slip) for slip in SLIPS},
        "room": too_full,
        "not best": placement,
    },
    agrees=agrees,
    processes=(),
)
