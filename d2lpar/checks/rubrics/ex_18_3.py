"""18.3 Where the experts should live."""

import functools
import itertools
import operator
from functools import partial

from .. import signs
from ..judging import Case, Exercise

SIZES = (1, 1), (4, 1), (3, 3), (4, 2), (6, 2), (6, 3), (8, 2), (8, 4)
SLIPS = "in order", "dealt out", "greedy", "unequal numbers", "last of equal"
SORTED = "sorted up", "sorted down"
EVEN = "range", "squares"


def cases(rng):
    """Random loads, one hot expert, two hot neighbours, and equal loads."""
    for E, n in SIZES:
        every = [[int(x) for x in rng.integers(0, 30, size=E)] for _ in range(3)]
        every[1][int(rng.integers(E))] = 100
        every[2][:2] = [60, 50][:E]
        for loads in [*every, [7] * E]:
            given = loads, n
            text = f"{n} ranks, loads {loads}"
            yield Case(1, text, [given], truth=partial(best, *given))


def best(loads, n, slip=""):
    """[the rank of each expert]."""
    E = len(loads)
    if slip in ("in order", "dealt out"):
        return [[e * n // E if slip == "in order" else e % n for e in range(E)]]
    if slip == "greedy":
        return [greedy(loads, n)]
    if slip in SORTED:
        return best(sorted(loads, reverse=slip == "sorted down"), n)
    ways = itertools.product(range(n), repeat=E)
    ways = ways if slip == "unequal numbers" else full(E, n)
    ways = ways[::-1] if slip == "last of equal" else ways
    return [list(min(ways, key=partial(busiest, loads, n, slip)))]


@functools.cache
def full(E, n):
    """All placements with E/n experts on each rank, in the order of the lists."""
    ways = itertools.product(range(n), repeat=E)
    return [way for way in ways if all(way.count(r) == E // n for r in range(n))]


def busiest(loads, n, slip, way):
    """The load of the busiest rank, or what a slip takes for it."""
    totals = [0] * n
    for load, r in zip(loads, way, strict=True):
        totals[r] += load
    if slip == "squares":
        return sum(x * x for x in totals)
    return max(totals) - min(totals) * (slip == "range")


def greedy(loads, n):
    """The heaviest expert first, to the least loaded rank that has room."""
    E = len(loads)
    way, totals, room = [0] * E, [0] * n, [E // n] * n
    for e in sorted(range(E), key=lambda e: -loads[e]):
        r = min((r for r in range(n) if room[r]), key=totals.__getitem__)
        way[e], totals[r], room[r] = r, totals[r] + loads[e], room[r] - 1
    return way


def agrees(came, wanted, case):
    """The same whole numbers, in a list or a tuple."""
    try:
        whole = list(map(operator.index, came))
    except TypeError:
        return False
    return isinstance(came, list | tuple) and whole == wanted


def no_list(attempt):
    """It is no list with a rank for each expert."""
    came, (loads, _) = (attempt.came or [None])[0], attempt.case.inputs[0]
    ranks = isinstance(came, list | tuple) and len(came) == len(loads)
    return signs.wrong(attempt) and not (
        ranks and all(hasattr(r, "__index__") for r in came)
    )


exercise = Exercise(
    "18.3",
    cases,
    [],
    {
        "no list": no_list,
        **{name: signs.slip(name) for name in SLIPS},
        "sorted loads": signs.slip(*SORTED),
        "most even": signs.slip(*EVEN),
    },
    agrees=agrees,
    processes=(),
)
