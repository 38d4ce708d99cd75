"""17.2 Only the keys that it needs."""

import operator
from functools import partial

from ...sequence.order import ORDERS, spans
from .. import signs
from ..judging import Case, Exercise

SLIPS = "itself", "later ones", "one too far", "one too few", "one run", "no window"
SLIPS += "far end", "first span", "asked", "empty span"


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
    if slip == "empty span":
        return [by_spans(spans(T, n, order), window)]
    pieces = [[i for a, b in mine for i in range(a, b)] for mine in spans(T, n, order)]
    back = {"one too far": window, "one too few": window - 2, "no window": T}
    back = back.get(slip, window - 1)
    forward = back if slip == "later ones" else 0
    keys = lambda i: range(i - back, i + forward + 1)
    if slip == "far end":
        keys = lambda i: [max(0, i - back)]
    elif slip in ("wraps", "cut short"):
        keys = lambda i: negative(range(T), i - min(back, T), i + 1, slip)
    found = []
    for r, mine in enumerate(pieces):
        if slip == "one run" and mine:
            mine = range(mine[0], mine[-1] + 1)
        if slip == "first span":
            mine = range(*spans(T, n, order)[r][0])
        seen = {j for i in mine for j in keys(i)}
        other = lambda s, r=r: s != r or slip == "itself"
        found.append([s for s in range(n) if other(s) and seen & {*pieces[s]}])
    if slip == "asked":
        found = [[r for r in range(n) if s in found[r]] for s in range(n)]
    return [found]


def by_spans(every, window):
    """The same from starts and stops, where empty spans are not left out."""
    meet = lambda mine, theirs: any(
        c < b and d > a - window + 1 for a, b in mine for c, d in theirs
    )
    n = range(len(every))
    return [[s for s in n if s != r and meet(every[r], every[s])] for r in n]


def negative(tokens, start, stop, slip):
    """What Python makes of a window that begins before token 0."""
    if slip == "wraps":
        return [tokens[j] for j in range(max(start, -len(tokens)), stop)]
    return tokens[start:stop]


def agrees(came, wanted, case):
    """A sequence of sequences with the same whole numbers."""
    try:
        return [list(map(operator.index, ranks)) for ranks in came] == wanted
    except TypeError:
        return False


def unsorted(attempt):
    """The right ranks, in another order."""
    try:
        found = [sorted(ranks) for ranks in attempt.came[0]]
    except TypeError:
        return False
    return signs.wrong(attempt) and found == attempt.case.expected[0]


exercise = Exercise(
    "17.2",
    cases,
    [],
    {
        "order": signs.always(unsorted, signs.wrong),
        "negative": signs.slip("wraps", "cut short"),
        **{name: signs.slip(name) for name in SLIPS},
    },
    agrees=agrees,
    processes=(),
)
