"""11.1 Nine layers, four unlike cards: place(seconds, held, moved, speed, room, ..)."""

import functools
import itertools
import math

from zoo import right, wrong


def part(a, b, r, seconds, held, moved, speed, room, beta):
    if a == b:
        return 0.0
    if sum(held[a:b]) > room[r]:
        return math.inf
    ends = moved[a - 1] * (a > 0) + moved[b - 1] * (b < len(seconds))
    return sum(seconds[a:b]) / speed[r] + beta * ends


def forwards(cost, L, p):
    best = {0: (0.0, (0,))}
    for r in range(p):
        best = {
            b: min(
                (max(v, cost(a, b, r)), (*e, b)) for a, (v, e) in best.items() if a <= b
            )
            for b in range(L + 1)
        }
    value, ends = best[L]
    return list(ends) if value < math.inf else None


@right
def card_by_card(seconds, held, moved, speed, room, beta):
    given = seconds, held, moved, speed, room, beta
    cost = lambda a, b, r: part(a, b, r, *given)
    return forwards(cost, len(seconds), len(speed))


@right
def from_the_last_card_with_memory(seconds, held, moved, speed, room, beta):
    L, p = len(seconds), len(speed)

    @functools.cache
    def rest(a, r):
        if r == p:
            return (0.0, ()) if a == L else (math.inf, ())
        found = (math.inf, ())
        for b in range(a, L + 1):
            here = part(a, b, r, seconds, held, moved, speed, room, beta)
            value, ends = rest(b, r + 1)
            found = min(found, (max(here, value), (b, *ends)))
        return found

    value, ends = rest(0, 0)
    return None if value == math.inf else (0, *ends)


@right
def by_asking_whether_a_time_is_enough(seconds, held, moved, speed, room, beta):
    """Sort all possible costs; the least with which the layers can be placed."""
    L, p = len(seconds), len(speed)
    cost = functools.cache(
        lambda a, b, r: part(a, b, r, seconds, held, moved, speed, room, beta)
    )

    def ends_within(limit):
        reached = {0: [0]}
        for r in range(p):
            reached = {
                b: [*ends, b]
                for a, ends in reached.items()
                for b in range(a, L + 1)
                if cost(a, b, r) <= limit
            }
        return reached.get(L)

    every = [(a, b, r) for a in range(L + 1) for b in range(a, L + 1) for r in range(p)]
    limits = sorted({cost(*x) for x in every} - {math.inf})
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ends_within(limits[middle]) else (middle + 1, high)
    return ends_within(limits[low]) if low < len(limits) else None


@wrong("every way")
def tries_every_way(seconds, held, moved, speed, room, beta):
    L, p = len(seconds), len(speed)
    best, found = math.inf, None
    for cuts in itertools.combinations_with_replacement(range(L + 1), p - 1):
        ends = [0, *cuts, L]
        given = seconds, held, moved, speed, room, beta
        value = max(part(*ends[r : r + 2], r, *given) for r in range(p))
        if value < best:
            best, found = value, ends
    return found


@wrong("form")
def only_the_cuts(seconds, held, moved, speed, room, beta):
    ends = card_by_card(seconds, held, moved, speed, room, beta)
    return ends and ends[1:-1]


@wrong("impossible")
def raises_where_nothing_fits(seconds, held, moved, speed, room, beta):
    ends = card_by_card(seconds, held, moved, speed, room, beta)
    if ends is None:
        raise ValueError("nothing fits")
    return ends


@wrong("impossible")
def an_empty_list_where_nothing_fits(seconds, held, moved, speed, room, beta):
    return card_by_card(seconds, held, moved, speed, room, beta) or []


@wrong("empty")
def with_the_librarys_partitioner_for_each_card(
    seconds, held, moved, speed, room, beta
):
    """No part is empty there, so more cards than layers are an error."""
    given = seconds, held, moved, speed, room, beta
    cost = lambda a, b, r: part(a, b, r, *given) if a < b else math.inf
    return forwards(cost, len(seconds), len(speed))


@wrong("speeds")
def all_cards_alike(seconds, held, moved, speed, room, beta):
    return card_by_card(seconds, held, moved, [1.0] * len(speed), room, beta)


@wrong("room")
def endless_room(seconds, held, moved, speed, room, beta):
    found = card_by_card(seconds, held, moved, speed, room, beta)
    if found is None:
        return None
    return card_by_card(seconds, held, moved, speed, [math.inf] * len(room), beta)


@wrong("incoming")
def what_comes_in_only(seconds, held, moved, speed, room, beta):
    def cost(a, b, r):
        if a == b:
            return 0.0
        if sum(held[a:b]) > room[r]:
            return math.inf
        return sum(seconds[a:b]) / speed[r] + beta * moved[a - 1] * (a > 0)

    return forwards(cost, len(seconds), len(speed))


@wrong("outgoing")
def what_goes_out_only(seconds, held, moved, speed, room, beta):
    L = len(seconds)

    def cost(a, b, r):
        if a == b:
            return 0.0
        if sum(held[a:b]) > room[r]:
            return math.inf
        return sum(seconds[a:b]) / speed[r] + beta * moved[b - 1] * (b < L)

    return forwards(cost, L, len(speed))


@wrong("sum")
def the_least_sum(seconds, held, moved, speed, room, beta):
    best = {0: (0.0, (0,))}
    given = seconds, held, moved, speed, room, beta
    for r in range(len(speed)):
        best = {
            b: min(
                (v + part(a, b, r, *given), (*e, b))
                for a, (v, e) in best.items()
                if a <= b
            )
            for b in range(len(seconds) + 1)
        }
    value, ends = best[len(seconds)]
    return list(ends) if value < math.inf else None


@wrong("not best")
def fills_card_after_card(seconds, held, moved, speed, room, beta):
    if card_by_card(seconds, held, moved, speed, room, beta) is None:
        return None
    share, ends, L = sum(seconds) / sum(speed), [0], len(seconds)
    for r in range(len(speed) - 1):
        b, used, full = ends[-1], 0.0, 0.0
        while b < L and full + held[b] <= room[r] and used < share * speed[r]:
            used, full, b = used + seconds[b], full + held[b], b + 1
        ends.append(b)
    return [*ends, L]
