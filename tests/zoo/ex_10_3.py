"""10.3 Which stage?: choose(units, n, card)."""

import math

from zoo import right, wrong


def figures(units, n, stage, cut=lambda size, n: -(-size // n)):
    k = sum(cut(size, n) for size in units)
    parameters = k if stage == 3 else n * k
    gradients = k if stage >= 2 else n * k
    largest = n * cut(max(units), n)
    memory = 2 * parameters + 2 * gradients + 12 * k
    memory += {1: 0, 2: 4, 3: 8}[stage] * largest
    moves = 3 if stage == 3 else 2
    return memory, moves * (n - 1) * 2 * k


def first(units, n, card, stages=(1, 2, 3), of=figures):
    for stage in stages:
        memory, sent = of(units, n, stage)
        if memory <= card:
            return stage, memory, sent
    return None


@right
def from_one_on(units, n, card):
    return first(units, n, card)


@right
def a_list_of_those_that_fit(units, n, card):
    rows = [[s, *figures(units, n, s)] for s in (3, 2, 1)]
    fitting = [row for row in rows if row[1] <= card]
    return min(fitting, key=lambda row: (row[2], row[0])) if fitting else None


@wrong("leanest")
def from_three_down(units, n, card):
    return first(units, n, card, (3, 2, 1))


@wrong("no padding")
def true_division(units, n, card):
    return first(
        units,
        n,
        card,
        of=lambda u, n, s: (
            figures(u, n, s, lambda size, n: size / n)[0],
            figures(u, n, s)[1],
        ),
    )


@wrong("held only")
def what_is_held(units, n, card):
    def of(units, n, stage):
        memory, sent = figures(units, n, stage)
        largest = n * math.ceil(max(units) / n)
        return memory - {1: 0, 2: 4, 3: 8}[stage] * largest, sent

    return first(units, n, card, of=of)


@wrong("bytes sent")
def whole_vectors_travel(units, n, card):
    found = first(units, n, card)
    return found and (found[0], found[1], found[2] * n // max(1, n - 1))
