"""11.1 Nine layers, four different GPUs: place(seconds, held, moved, speed, ...)."""

import bisect
import math
from itertools import pairwise

from d2lpar.checks import solutions
from d2lpar.checks.equality import NO_NUMBER, close
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, both, endless, only, wrong


def agrees(came, wanted, case):
    """Is it as good as what is wanted?  Several placements may be best."""
    if wanted is None or not rises(came, case):
        return came is wanted
    return close(*(slowest(ends, case.inputs[0]) for ends in (came, wanted)))


ex = Exercise("11.1", agrees=agrees, processes=())
cost = solutions.of("11.1").reference("cost_reference")
# GPUs, layers, how much room the GPUs have together (in parts of what is needed)
SIZES = [(1, 1, 2.0), (1, 3, 2.0), (1, 3, 0.9), (2, 5, 2.0), (3, 7, 3.0), (4, 9, 4.0)]
SIZES += [(4, 9, 1.6), (4, 9, 1.4), (3, 2, 4.0), (5, 9, 8.0), (6, 12, 1.7), (4, 9, 0.9)]
SIZES += [(4, 9, 3.0), (4, 11, 5.0), (5, 12, 3.0), (4, 9, 6.0), (8, 40, 2.0)]
FULL = [7, 8, 3, 6, 2, 1, 3], [1] * 7, [2, 1, 2, 3, 2, 3, 2], [2, 4, 2, 4], [3] * 4
LAST = [4] * 4, [1] * 4, [1, 1, 1, 20], [1, 1], [4, 4]
ONE = [1.0], [2.0], [100.0], [4.0, 1.0], [2.0, 2.0]  # the second GPU stays empty
# A GPU that is full costs the next one more; the last one stays empty
LATER = [2, 1, 9], [1] * 3, [1, 4, 50], [1, 1, 0.5], [2, 3, 3]
FREE = [3, 1, 4, 1], [1] * 4, [9, 9, 9, 9], [0.1, 2, 1], [0, 4, 4]


@ex.cases
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
    yield case_of((*FREE, 0.0), "beta 0, no room on GPU 0")


def case_of(given, text):
    """One placement, to be found in less than three seconds."""
    p, L = len(given[3]), len(given[0])
    text = f"{L} layer{'s' * (L != 1)} on {p} GPU{'s' * (p != 1)}, {text}"
    return Case(1, text, [given], [placed(given)], options={"timeout": 3.0})


def placed(given):
    """A best placement, by the least time within which all layers find a place."""
    L, p = len(given[0]), len(given[3])
    parts = [(a, b) for b in range(L + 1) for a in range(b + 1)]
    costs = {(*x, r): cost(*x, r, *given) for x in parts for r in range(p)}

    def within(limit):
        reached = {0: [0]}
        for r in range(p):
            fit = [x for x in parts if x[0] in reached and costs[*x, r] <= limit]
            reached = {b: [*reached[a], b] for a, b in fit}
        return reached.get(L)

    limits = sorted({*costs.values()} - {math.inf})
    at = bisect.bisect_left(limits, 1, key=lambda limit: within(limit) is not None)
    return within(limits[at]) if at < len(limits) else None


def slowest(ends, given):
    """Seconds of the slowest GPU; infinite where a part does not fit."""
    return max(cost(*part, r, *given) for r, part in enumerate(pairwise(ends)))


def rises(came, case):
    """It is p + 1 numbers from 0 to L which never fall."""
    L, p = len(case.inputs[0][0]), len(case.inputs[0][3])
    try:
        ends = [int(x) for x in came]
    except NO_NUMBER:
        return False
    fine = len(ends) == p + 1 and ends == sorted(ends) == list(came)
    return fine and (ends[0], ends[-1]) == (0, L)


parts = lambda case: [b - a for a, b in pairwise(case.expected[0] or [])]
gpus = lambda case: len(case.inputs[0][3])
layers = lambda case: len(case.inputs[0][0])
impossible = lambda case: case.expected == [None]
ex.boundaries(
    one_gpu=lambda case: gpus(case) == 1 < layers(case),
    two_gpus=lambda case: gpus(case) == 2,
    one_layer=lambda case: layers(case) == 1 == gpus(case),
    more_gpus_than_layers=lambda case: gpus(case) > layers(case),
    first_gpu_stays_empty=lambda case: parts(case)[:1] == [0],
    last_gpu_stays_empty=lambda case: parts(case)[-1:] == [0],
    nothing_fits=impossible,
    nothing_fits_on_one_gpu=lambda case: gpus(case) == 1 and impossible(case),
    free_messages=lambda case: case.inputs[0][5] == 0,
    too_many_to_try=lambda case: layers(case) == 40,
)

# Texts of the answer, for edits

START, FITS = "best = {0: (0.0, [0])}", "sum(held[a:b]) > room[r]"
INTO, OUT = "moved[a - 1] * (a > 0) + ", " + moved[b - 1] * (b < L)"

# Mistakes of its own

given = "seconds, held, moved, speed, room, beta"
ways = {START: f"return place_reference({given})\n    {START}"}
ex.mistake("every way", endless, ways).says("""
    It does not come to an end with 40 layers on eight GPUs.
    Hint: There are 62 million placements. The best placement of the layers before a cut
    does not depend on the layers after it, so keep only this one.
""")
ex.mistake("impossible", only(impossible), {"else None": "else []"}).says("""
    In this case no placement fits, and the answer should be None.
    Hint: What does the best of these placements cost? If even that is infinite, return
    None.
""")
ex.wrong("impossible", {"ends if value < math.inf else None": "ends"})
ex.slip("empty", {"return 0.0": "return math.inf"}).says("""
    In this case the best placement leaves a GPU empty, but yours leaves none.
    Hint: A slow GPU may cost more in messages than it helps, and an empty GPU costs
    nothing.
""")
ex.slip("sum", {"max(value, cost(a, b, r))": "value + cost(a, b, r)"}).says("""
    It minimizes the sum over all GPUs instead of the time of the slowest.
    Hint: The slowest GPU sets the pace, so compare placements by their largest cost.
""")


def fits(attempt):
    """It is a placement in which no GPU is too full."""
    came, case = attempt.came[0], attempt.case
    return rises(came, case) and slowest(came, case.inputs[0]) < math.inf


too_full = lambda a: rises(a.came[0], a.case) and not fits(a)
ex.mistake("room", both(wrong, always(too_full, wrong)), {FITS: "False"}).says("""
    It places more layers on a GPU than the GPU has room for.
    Hint: What should such a part cost, so that it is never the best? Give a part that
    does not fit an infinite cost.
""")
ex.mistake("not best", both(wrong, fits), {" / speed[r]": ""}).says("""
    It returns a placement, but there is a faster one.
    Hint: Compare the costs of your parts with those of `cost_reference`. Both what
    enters and what leaves a GPU counts, and a part may be empty, at an end, or just
    fit. For each number of layers, keep the best placement on the GPUs so far.
""")
ex.wrong("not best", {INTO: ""})
ex.wrong("not best", {OUT: ""})
ex.wrong("not best", {FITS: "sum(held[a:b]) >= room[r]"})
ex.wrong("not best", {"if a == b:": "if False:"})
ex.wrong("not best", {"(a > 0)": "(a >= 0)"})
ex.wrong("not best", {"(b < L)": "(b <= L)"})

# Answers to which the general sentences apply

ex.wrong("raises", {"cost(a, b, r)),": "cost(a, b)),"})
ex.wrong("wrong", {"return ends if": "return ends[1:-1] if"})
ex.right({"return ends if": "return tuple(ends) if"})
ex.right({"min(longer.get(b, found), found)": "min(found, longer.get(b, found))"})
