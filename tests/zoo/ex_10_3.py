"""10.3 Which stage?: choose(units, n, card)."""

from zoo import right, wrong

ROOM = {1: 0, 2: 4, 3: 8}  # bytes for each element of the largest unit


def figures(units, n, stage, cut=lambda x, n: -(-x // n), gradients=2, room=ROOM):
    """(memory, bytes sent); gradients are sharded from that stage on."""
    k = sum(cut(size, n) for size in units)
    held = 2 * k * (1 if stage == 3 else n) + 2 * k * (1 if stage >= gradients else n)
    memory = held + 12 * k + room[stage] * n * cut(max(units), n)
    moves = 3 if stage == 3 else 2
    return memory, moves * (n - 1) * 2 * k


def first(units, n, card, stages=(1, 2, 3), **more):
    for stage in stages:
        memory, sent = figures(units, n, stage, **more)
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


@wrong("leanest")
def the_least_memory(units, n, card):
    order = sorted((1, 2, 3), key=lambda stage: figures(units, n, stage))
    return first(units, n, card, order)


@wrong("only if 3 fits")
def gives_up_on_stage_3(units, n, card):
    return first(units, n, card) if figures(units, n, 3)[0] <= card else None


@wrong("not rounded up")
def true_division(units, n, card):
    found = first(units, n, card, cut=lambda size, n: size / n)
    return found and (*found[:2], figures(units, n, found[0])[1])


@wrong("not rounded up")
def floor_division(units, n, card):
    return first(units, n, card, cut=lambda size, n: size // n)


@wrong("one flat")
def rounds_the_sum(units, n, card):
    k, largest = -(-sum(units) // n), n * -(-max(units) // n)
    held = (4 * n + 12) * k, (2 * n + 14) * k, 16 * k
    for stage in (1, 2, 3):
        memory = held[stage - 1] + ROOM[stage] * largest
        if memory <= card:
            return stage, memory, (3 if stage == 3 else 2) * (n - 1) * 2 * k
    return None


@wrong("no padding")
def works_on_the_bare_unit(units, n, card):
    for stage in (1, 2, 3):
        memory, sent = figures(units, n, stage, room=dict.fromkeys(ROOM, 0))
        memory += ROOM[stage] * max(units)
        if memory <= card:
            return stage, memory, sent
    return None


@wrong("held only")
def what_is_held(units, n, card):
    return first(units, n, card, room=dict.fromkeys(ROOM, 0))


@wrong("one gathered")
def nothing_is_gathered_ahead(units, n, card):
    return first(units, n, card, room=ROOM | {3: 6})


@wrong("sharded")
def gradients_are_whole_in_stage_2(units, n, card):
    return first(units, n, card, gradients=3)


@wrong("bytes sent")
def whole_vectors_travel(units, n, card):
    found = first(units, n, card)
    return found and (found[0], found[1], found[2] * n // max(1, n - 1))


@wrong("tight")
def wants_a_byte_to_spare(units, n, card):
    return first(units, n, card - 1)
