"""19.2 From n ranks to m."""

from functools import partial

from .. import signs
from ..judging import Case, Exercise

SIZES = [(12, 2, 3), (12, 3, 2), (10, 3, 4), (7, 4, 1), (7, 1, 4), (5, 5, 5)]
SIZES += [(3, 5, 2), (3, 2, 5), (17, 4, 6), (100, 8, 3), (0, 2, 3), (1, 3, 3)]
SLIPS = "chunk", "stays", "empty", "local", "back"


def cases(rng):
    """More and fewer ranks than before, also more ranks than numbers."""
    drawn = [tuple(int(x) for x in rng.integers((4, 1, 1), (60, 9, 9)))
             for _ in range(4)]  # fmt: skip
    for size, n, m in [*SIZES, *drawn]:
        text = f"{size} numbers, from {n} to {m} ranks"
        given = size, n, m
        yield Case(1, text, [given], truth=partial(moves, *given))


def borders(size, n, slip=""):
    """Where the parts of n ranks begin and end; the first ones may have one more."""
    if slip == "chunk":
        each = max(-(-size // n), 1)
        return [(min(r * each, size), min((r + 1) * each, size)) for r in range(n)]
    each, more = divmod(size, n)
    starts = [r * each + min(r, more) for r in range(n + 1)]
    return list(zip(starts, starts[1:], strict=False))


def moves(size, n, m, slip=""):
    """[all messages (src, dst, start, stop)]; a slip makes others."""
    found = []
    for src, (a, b) in enumerate(borders(size, n, slip)):
        for dst, (c, d) in enumerate(borders(size, m, slip)):
            low, high = max(a, c), min(b, d)
            if slip == "empty" and src != dst and low >= high:
                found.append((src, dst, low, low))
            if low < high and (src != dst or slip == "stays"):
                shift = a if slip == "local" else 0
                ends = (dst, src) if slip == "back" else (src, dst)
                found.append((*ends, low - shift, high - shift))
    return [sorted(found)]


def agrees(came, wanted, case):
    """The same messages, in any order."""
    try:
        return sorted(tuple(map(int, each)) for each in came) == wanted
    except (TypeError, ValueError):
        return False


exercise = Exercise(
    "19.2",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=agrees,
    processes=(),
)
