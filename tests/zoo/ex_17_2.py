"""17.2 Only the keys that it needs: needed(T, n, window, order)."""

from d2lpar.sequence.order import spans
from zoo import right, wrong


def owners(T, n, order):
    """The rank of each token."""
    found = [0] * T
    for r, mine in enumerate(spans(T, n, order)):
        for a, b in mine:
            found[a:b] = [r] * (b - a)
    return found


def by_owner(T, n, back, order, forward=0, itself=False):
    owner, seen = owners(T, n, order), [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r] |= {*owner[max(0, i - back) : i + forward + 1]}
    return [sorted(s - (set() if itself else {r})) for r, s in enumerate(seen)]


@right
def with_sets(T, n, window, order):
    return by_owner(T, n, window - 1, order)


@right
def by_spans(T, n, window, order):
    """Two spans meet if a window of one reaches into the other."""
    every = spans(T, n, order)

    def meet(r, s):
        pairs = ((one, other) for one in every[r] for other in every[s])
        return any(
            a < b and c < d and c < b and d > a - window + 1 for (a, b), (c, d) in pairs
        )

    return tuple(tuple(s for s in range(n) if s != r and meet(r, s)) for r in range(n))


@wrong("itself")
def with_itself(T, n, window, order):
    return by_owner(T, n, window - 1, order, itself=True)


@wrong("later ones")
def to_both_sides(T, n, window, order):
    return by_owner(T, n, window - 1, order, forward=window - 1)


@wrong("one too far")
def sees_one_more(T, n, window, order):
    return by_owner(T, n, window, order)


@wrong("one too few")
def sees_one_less(T, n, window, order):
    owner = owners(T, n, order)
    seen = [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r] |= {*owner[max(0, i - window + 2) : i + 1]}
    return [sorted(s - {r}) for r, s in enumerate(seen)]


@wrong("one run")
def from_first_to_last(T, n, window, order):
    every, found = spans(T, n, order), []
    for r, mine in enumerate(every):
        mine = [span for span in mine if span[0] < span[1]]
        start = mine[0][0] - window + 1 if mine else 0
        stop = mine[-1][1] if mine else 0
        there = lambda s, start=start, stop=stop: any(
            a < b and a < stop and b > start for a, b in every[s]
        )
        found.append([s for s in range(n) if s != r and there(s)])
    return found


@wrong("far end")
def where_the_windows_begin(T, n, window, order):
    owner, seen = owners(T, n, order), [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r].add(owner[max(0, i - window + 1)])
    return [sorted(s - {r}) for r, s in enumerate(seen)]


@wrong("first span")
def the_early_tokens_only(T, n, window, order):
    owner, found = owners(T, n, order), []
    for r, mine in enumerate(spans(T, n, order)):
        each = [owner[max(0, i - window + 1) : i + 1] for i in range(*mine[0])]
        found.append(sorted({s for seen in each for s in seen} - {r}))
    return found


@wrong("empty span")
def by_spans_that_may_be_empty(T, n, window, order):
    every = spans(T, n, order)
    meet = lambda r, s: any(
        c < b and d > a - window + 1 for a, b in every[r] for c, d in every[s]
    )
    return [[s for s in range(n) if s != r and meet(r, s)] for r in range(n)]


@wrong("asked")
def who_needs_my_keys(T, n, window, order):
    needs = with_sets(T, n, window, order)
    return [[r for r in range(n) if s in needs[r]] for s in range(n)]


@wrong("negative")
def key_by_key(T, n, window, order):
    owner, seen = owners(T, n, order), [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r] |= {owner[i - k] for k in range(min(window, T))}
    return [sorted(s - {r}) for r, s in enumerate(seen)]


@wrong("negative")
def slices(T, n, window, order):
    owner, seen = owners(T, n, order), [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r] |= {*owner[i - window + 1 : i + 1]}
    return [sorted(s - {r}) for r, s in enumerate(seen)]


@wrong("wrong")
def as_if_the_pieces_were_equal(T, n, window, order):
    """Only where the tokens do not divide is this wrong."""
    spans_of = n if order == "contiguous" else 2 * n
    place = [min(i // max(1, T // spans_of), spans_of - 1) for i in range(T)]
    owner = [k if k < n else 2 * n - 1 - k for k in place]
    seen = [set() for _ in range(n)]
    for i, r in enumerate(owner):
        seen[r] |= {*owner[max(0, i - window + 1) : i + 1]}
    return [sorted(s - {r}) for r, s in enumerate(seen)]


@wrong("no window")
def all_before(T, n, window, order):
    return by_owner(T, n, T, order)


@wrong("order")
def in_falling_order(T, n, window, order):
    return [found[::-1] for found in with_sets(T, n, window, order)]
