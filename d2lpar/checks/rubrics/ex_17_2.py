"""17.2 Only the keys that it needs."""

import operator
from functools import partial

from ...sequence.order import ORDERS, spans
from .. import signs
from ..judging import Case, Exercise

SLIPS = "itself", "later ones", "one too far", "one too few", "one run", "no window"


def cases(rng):
    """Both orders; lengths that do not divide, short windows and long ones."""
    for order in ORDERS:
        sizes = [(4, 4, 2), (4, 16, 3), (2, 8, 1), (1, 5, 2), (4, 3, 2)]
        sizes += [(4, 16, 5), (3, 13, 13), (8, 33, 40), (8, 32, 2)]
        for _ in range(4):
            n = int(rng.integers(2, 9))
            sizes.append((n, int(rng.integers(n, 50)), int(rng.integers(1, 20))))
        for n, T, window in sizes:
            given = T, n, window, order
            text = f"{T} tokens, {n} ranks, window {window}, {order}"
            yield Case(1, text, [given], truth=partial(truth, *given))


def truth(T, n, window, order, slip=""):
    """[for each rank, the ranks whose keys its queries see]."""
    pieces = [[i for a, b in mine for i in range(a, b)] for mine in spans(T, n, order)]
    back = {"one too far": window, "one too few": window - 2, "no window": T}
    back = back.get(slip, window - 1)
    forward = back if slip == "later ones" else 0
    found = []
    for r, mine in enumerate(pieces):
        if slip == "one run" and mine:
            mine = range(mine[0], mine[-1] + 1)
        seen = {j for i in mine for j in range(i - back, i + forward + 1)}
        other = lambda s, r=r: s != r or slip == "itself"
        found.append([s for s in range(n) if other(s) and seen & {*pieces[s]}])
    return [found]


def agrees(came, wanted, case):
    """A sequence of sequences with the same whole numbers."""
    try:
        return [list(map(operator.index, ranks)) for ranks in came] == wanted
    except TypeError:
        return False


exercise = Exercise(
    "17.2",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=agrees,
    processes=(),
)
