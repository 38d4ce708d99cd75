"""14.3 Scheme d: deal(rows, m)."""

from itertools import accumulate, pairwise

from d2lpar.hybrid import passes
from zoo import right, wrong


def laid_out(counts, m):
    """From the numbers of rows of each rank in each pass to (start, stop)."""
    ends = [list(pairwise([0, *accumulate(each)])) for each in counts]
    return [[each[k] for each in ends] for k in range(m)]


@right
def like_cards(rows, m):
    first, counts = 0, []
    for count in rows:
        dealt = [(first + i) % m for i in range(count)]
        counts.append([dealt.count(k) for k in range(m)])
        first += count
    return laid_out(counts, m)


@right
def by_division(rows, m):
    """Row g of all goes into pass m - 1 - g mod m, counted by whole divisions."""
    starts = [0, *accumulate(rows)]
    below = lambda g, k: (g - k + m - 1) // m
    counts = [
        [below(b, m - 1 - k) - below(a, m - 1 - k) for k in range(m)]
        for a, b in pairwise(starts)
    ]
    return laid_out(counts, m)


@wrong("uneven passes")
def every_rank_from_pass_0(rows, m):
    return laid_out([[(c + m - 1 - k) // m for k in range(m)] for c in rows], m)


@wrong("uneven passes")
def as_scheme_c(rows, m):
    ends = [[count * k // m for k in range(m + 1)] for count in rows]
    return [[(e[k], e[k + 1]) for e in ends] for k in range(m)]


@wrong("uneven ranks")
def rank_after_rank(rows, m):
    N, starts = sum(rows), [0, *accumulate(rows)]
    cuts = [N * k // m for k in range(m + 1)]
    clip = lambda at, r: min(max(at - starts[r], 0), rows[r])
    return [
        [(clip(a, r), clip(b, r)) for r in range(len(rows))] for a, b in pairwise(cuts)
    ]


@wrong("uneven ranks")
def the_last_pass_takes_the_rest(rows, m):
    each = [count // m for count in rows]
    ends = [[k * size for k in range(m)] for size in each]
    ends = [[*e, count] for e, count in zip(ends, rows, strict=True)]
    return [[(e[k], e[k + 1]) for e in ends] for k in range(m)]


@wrong("rank by rank")
def passes_of_each_rank(rows, m):
    return [list(each) for each in zip(*like_cards(rows, m), strict=True)]


@wrong("lost rows")
def whole_parts_only(rows, m):
    sizes = [count // m for count in rows]
    return [[(k * size, (k + 1) * size) for size in sizes] for k in range(m)]


@wrong("number")
def without_empty_passes(rows, m):
    found = like_cards(rows, m)
    return [ends for ends in found if any(a < b for a, b in ends)]


@wrong("form")
def numbers_of_rows(rows, m):
    return [[b - a for a, b in ends] for ends in like_cards(rows, m)]


@wrong("raises")
def the_chapters_own(rows, m):
    return passes("d", rows)
