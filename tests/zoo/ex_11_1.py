"""11.1 Nine layers, four different GPUs: place(seconds, held, moved, speed, ..)."""

import functools
import itertools
import math

from zoo import right, wrong


def part(
    a, b, r, seconds, held, moved, speed, room, beta, into=1, out=1, empty=0.0
):  # fmt: skip
    if a == b and empty is not None:
        return empty
    if sum(held[a:b]) > room[r]:
        return math.inf
    into, out = into * (a > 0), out * (0 < b < len(seconds))
    return sum(seconds[a:b]) / speed[r] + beta * (
        into * moved[a - 1] + out * moved[b - 1]
    )


def forwards(*given, total=max, more=lambda a, b: 0.0, **otherwise):
    """By GPU after GPU, with one thing that may be otherwise."""
    best, L = {0: (0.0, (0,))}, len(given[0])
    for r in range(len(given[3])):
        best = {
            b: min(
                (total((v, part(a, b, r, *given, **otherwise) + more(a, b))), (*e, b))
                for a, (v, e) in best.items()
                if a <= b
            )
            for b in range(L + 1)
        }
    value, ends = best[L]
    return list(ends) if value < math.inf else None


@right
def card_by_card(seconds, held, moved, speed, room, beta):
    return forwards(seconds, held, moved, speed, room, beta)


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
def with_the_librarys_partitioner_for_each_card(*given):
    """No part is empty there, so more cards than layers are an error."""
    return forwards(*given, empty=math.inf)


@wrong("passing by")
def an_empty_card_pays(*given):
    return forwards(*given, empty=None)


@wrong("speeds")
def all_cards_alike(seconds, held, moved, speed, room, beta):
    return forwards(seconds, held, moved, [1.0] * len(speed), room, beta)


@wrong("room")
def endless_room(seconds, held, moved, speed, room, beta):
    found = card_by_card(seconds, held, moved, speed, room, beta)
    if found is None:
        return None
    return card_by_card(seconds, held, moved, speed, [math.inf] * len(room), beta)


@wrong("incoming")
def what_comes_in_only(*given):
    return forwards(*given, out=0)


@wrong("outgoing")
def what_goes_out_only(*given):
    return forwards(*given, into=0)


@wrong("sum")
def the_least_sum(*given):
    return forwards(*given, total=sum)


@wrong("not best")
def as_full_as_possible(*given):
    """The least limit at which cards that are filled one by one hold all layers."""
    L, p = len(given[0]), len(given[3])
    costs = {
        (a, b, r): part(a, b, r, *given)
        for r in range(p)
        for a in range(L + 1)
        for b in range(a, L + 1)
    }
    for limit in sorted(set(costs.values()) - {math.inf}):
        ends = [0]
        for r in range(p):
            ways = range(ends[-1], L + 1)
            ends.append(max(b for b in ways if costs[ends[-1], b, r] <= limit))
        if ends[-1] == L:
            return ends
    return None


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


@wrong("full")
def never_quite_full(seconds, held, moved, speed, room, beta):
    """`>=` where a GPU may hold just as much as it has room for."""
    given = seconds, held, moved, speed, [x * (1 - 1e-9) for x in room], beta
    if card_by_card(seconds, held, moved, speed, room, beta) is None:
        return None
    return card_by_card(*given)


@wrong("raises")
def a_misspelt_call(seconds, held, moved, speed, room, beta):
    """It raises in every case, and says nothing of empty parts or of None."""
    return card_by_card(seconds, held, moved, speed, room, beta, 3)


@wrong("not best")
def the_last_value_is_sent_too(*given):
    """What the last layer makes leaves its GPU, and costs something."""
    L, beta, moved = len(given[0]), given[5], given[2]
    return forwards(*given, more=lambda a, b: beta * moved[-1] * (a < b == L))


@wrong("not best")
def the_input_comes_in(*given):
    """`moved[a - 1]` is that of the last layer where a is 0."""
    beta, moved = given[5], given[2]
    return forwards(*given, more=lambda a, b: beta * moved[-1] * (a == 0 < b))
