"""14.2 Which split?"""

from fractions import Fraction
from functools import partial

from .. import signs
from ..judging import Case, Exercise

# ranks, rows, inputs, outputs: ordinary layers, ties, and what does not divide
LAYERS = ((4, 32, 1024, 64), (4, 32, 64, 1024), (8, 16, 4096, 4096), (2, 6, 12, 8))
LAYERS += ((8, 4096, 512, 256), (4, 8, 30, 512), (4, 64, 512, 30), (3, 27, 81, 54))
LAYERS += ((4, 16, 30, 30), (1, 64, 10, 10), (2, 32, 64, 64), (4, 8, 16, 16))
LAYERS += ((2, 8, 24, 12), (8, 64, 9216, 4096), (5, 100, 1000, 10), (2, 5, 4, 10))
LAYERS += ((4, 40, 64, 100), (4, 40, 100, 64), (8, 40, 72, 640), (8, 40, 640, 72))
ORDER = "data", "out", "in"
SLIPS = "there only", "joined", "summed", "any width", "all ranks", "no dx", "no y"
SLIPS += "once", "bytes", "other width", "whole rows"


def cases(rng):
    """Layers of which each split is the cheapest, and some drawn ones."""
    drawn = rng.integers(1, 20, size=(12, 4))
    every = [
        *LAYERS,
        *((int(n) % 8 + 1, 8 * N, 8 * D, 8 * out) for n, N, D, out in drawn),
    ]
    for n, N, D, out in map(tuple, every):
        yield Case(
            1,
            f"{n} ranks, {N} rows, {D} inputs, {out} outputs",
            [(n, int(N), int(D), int(out))],
            truth=partial(cheapest, n, int(N), int(D), int(out)),
        )


def elements(split, n, N, D, out, slip=""):
    """Elements that a rank sends in a step of this split."""
    share = Fraction(n - 1, n) * {"all ranks": n, "bytes": 4}.get(slip, 1)
    part = 1 if slip == "joined" else Fraction(1, n)
    adds = 2 if slip == "summed" else 1
    back = 0 if slip == "there only" else 1
    dx = 0 if slip == "no dx" else back
    if split == "data":
        return (1 if slip == "once" else 2) * share * D * out
    if split == "out":
        y = 0 if slip == "no y" else (1 + back) * part * out
        return share * N * (D + dx * adds * D + y)
    return share * N * ((1 + dx) * part * D + adds * out + back * out)


def cheapest(n, N, D, out, slip=""):
    """[(split, elements)] of the cheapest."""
    edge = {"out": out, "in": D, "data": N if slip == "whole rows" else n}
    if slip == "other width":
        edge |= {"out": D, "in": out}
    ways = [s for s in ORDER if edge[s] % n == 0 or slip == "any width"] or ["data"]
    ways = {"later": ways[::-1], "alphabet": sorted(ways)}.get(slip, ways)
    found = {split: elements(split, n, N, D, out, slip) for split in ways}
    best = min(ways, key=found.get)
    return [(best, float(found[best]))]


def agrees(came, wanted, case):
    """The same split, and the elements to six digits; `...` stands for any."""
    try:
        split, count = came
        count = float(count)
    except (TypeError, ValueError):
        return False
    same = wanted[0] is ... or split == wanted[0]
    return same and (
        wanted[1] is ... or abs(count - wanted[1]) <= 1e-6 * max(1, wanted[1])
    )


def no_pair(attempt):
    """It is no split with a number."""
    return signs.wrong(attempt) and not attempt.gives([(..., ...)])


exercise = Exercise(
    "14.2",
    cases,
    [],
    {
        "no pair": no_pair,
        **signs.slips(*SLIPS),
        "later": signs.slip("later", "alphabet"),
    },
    agrees=agrees,
    processes=(),
)
