"""18.3 Where the experts should live."""

import itertools
import operator
from functools import partial

from .. import signs
from ..judging import Case, Exercise

SIZES = (1, 1), (4, 1), (3, 3), (4, 2), (6, 2), (6, 3), (8, 2), (8, 4)
SLIPS = "in order", "dealt out", "greedy", "unequal numbers", "last of equal"


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
    ways = itertools.product(range(n), repeat=E)
    if slip != "unequal numbers":
        ways = (way for way in ways if all(way.count(r) == E // n for r in range(n)))
    ways = reversed(list(ways)) if slip == "last of equal" else ways
    return [list(min(ways, key=partial(busiest, loads, n)))]


def busiest(loads, n, way):
    """The load of the busiest rank."""
    totals = [0] * n
    for load, r in zip(loads, way, strict=True):
        totals[r] += load
    return max(totals)


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


exercise = Exercise(
    "18.3",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=agrees,
    processes=(),
)
