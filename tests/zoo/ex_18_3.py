"""18.3 Where the experts should live: placement(loads, n)."""

import functools
import itertools

from d2lpar.checks.rubrics.ex_18_3 import greedy as heaviest_first
from zoo import right, wrong


def cost(loads, n, way):
    totals = [0] * n
    for x, r in zip(loads, way, strict=True):
        totals[r] += x
    return max(totals)


@right
def permuted(loads, n):
    names = [r for r in range(n) for _ in range(len(loads) // n)]
    ways = sorted(set(itertools.permutations(names)))
    return min(ways, key=functools.partial(cost, loads, n))


@right
def backtracking(loads, n):
    E = len(loads)
    best = [float("inf"), None]

    def place(way, totals, room):
        if max(totals) >= best[0]:
            return
        if len(way) == E:
            best[:] = max(totals), way
            return
        for r in range(n):
            if room[r]:
                more = [t + loads[len(way)] * (k == r) for k, t in enumerate(totals)]
                less = [x - (k == r) for k, x in enumerate(room)]
                place([*way, r], more, less)

    place([], [0] * n, [E // n] * n)
    return best[1]


@wrong("in order")
def neighbours(loads, n):
    return [e // (len(loads) // n) for e in range(len(loads))]


@wrong("dealt out")
def like_cards(loads, n):
    return [e % n for e in range(len(loads))]


@wrong("greedy")
def never_looks_back(loads, n):
    return heaviest_first(loads, n)


@wrong("unequal numbers")
def any_number(loads, n):
    ways = itertools.product(range(n), repeat=len(loads))
    return list(min(ways, key=functools.partial(cost, loads, n)))


@wrong("last of equal")
def keeps_the_last(loads, n):
    names = [r for r in range(n) for _ in range(len(loads) // n)]
    ways = sorted(set(itertools.permutations(names)), reverse=True)
    return list(min(ways, key=functools.partial(cost, loads, n)))


def placed(loads, n, key):
    names = [r for r in range(n) for _ in range(len(loads) // n)]
    return list(min(sorted(set(itertools.permutations(names))), key=key))


def totals(loads, n, way):
    pairs = list(zip(loads, way, strict=True))
    return [sum(x for x, r in pairs if r == rank) for rank in range(n)]


@wrong("no list")
def experts_of_each_rank(loads, n):
    way = permuted(loads, n)
    return [[e for e in range(len(loads)) if way[e] == r] for r in range(n)]


@wrong("sorted loads")
def heaviest_experts_first(loads, n):
    return list(permuted(sorted(loads, reverse=True), n))


@wrong("most even")
def least_squares(loads, n):
    key = lambda way: sum(x * x for x in totals(loads, n, way))
    return placed(loads, n, key)


@wrong("most even")
def least_range(loads, n):
    spread = lambda each: max(each) - min(each)
    return placed(loads, n, lambda way: spread(totals(loads, n, way)))
