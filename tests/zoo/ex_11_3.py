"""11.3 When is the step over?: step_seconds(forward, backward, needs, moved, cut)."""

import heapq

from zoo import right, wrong


def readers_of(needs, cut):
    """{value that crosses: the layers behind the cut that take it}."""
    found = {}
    for i in range(cut, len(needs)):
        for v in needs[i]:
            if 0 <= v < cut:
                found.setdefault(v, []).append(i)
    return found


def sent(items, moved, side_by_side=False):
    """{value: when it arrives} of (moment, value) in the order of the line."""
    free, there = 0.0, {}
    for moment, v in items:
        free = max(moment, 0.0 if side_by_side else free) + moved[v]
        there[v] = free
    return there


def follow(
    forward, backward, needs, moved, cut, *, reader=min, queue=True, chain=False,
    wait_all=False, late=False, early=False, back=True, bare=False,
):  # fmt: skip
    readers = readers_of(needs, cut)
    if chain:
        readers = {v: x for v, x in readers.items() if v == cut - 1}
    ends = [sum(forward[: i + 1]) for i in range(cut)]
    down = [(ends[-1] if late else ends[v], v) for v in sorted(readers)]
    there = sent(down, moved, not queue)
    clock = max(there.values()) if wait_all else 0.0
    for i in range(cut, len(needs)):
        arrivals = [there.get(v, 0.0) for v in needs[i]]
        clock = max(clock, *arrivals) + forward[i]
    complete = {}
    for i in range(len(needs) - 1, cut - 1, -1):
        clock += backward[i]
        complete[i] = clock
    if not back:
        return clock + sum(backward[:cut])
    order = sorted(readers, key=lambda v: (-reader(readers[v]), -v))
    up = [(clock if late else complete[reader(readers[v])], v) for v in order]
    home = sent(up, moved, not queue)
    begin = home[cut - 1] if early else max(home.values())
    return (begin if bare else max(begin, clock)) + sum(backward[:cut])


@right
def layer_by_layer(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut)


@right
def by_events(forward, backward, needs, moved, cut):
    """Rank 1's gradients wait in a heap for the line."""
    readers, clock, line, there = readers_of(needs, cut), 0.0, 0.0, {}
    for i in range(cut):
        clock += forward[i]
        if i in readers:
            line = max(line, clock) + moved[i]
            there[i] = line
    clock = 0.0
    for i in range(cut, len(needs)):
        for v in needs[i]:
            clock = max(clock, there.get(v, 0.0))
        clock += forward[i]
    waiting, line = [], 0.0
    for i in reversed(range(cut, len(needs))):
        clock += backward[i]
        for v in [v for v in readers if min(readers[v]) == i]:
            heapq.heappush(waiting, (clock, -v))
        while waiting:
            moment, v = heapq.heappop(waiting)
            line = max(line, moment) + moved[-v]
    for i in reversed(range(cut)):
        line += backward[i]
    return line


@wrong("one way")
def forgets_the_way_back(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, back=False)


@wrong("chain only")
def forgets_the_skips(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, chain=True)


@wrong("no queue")
def side_by_side(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, queue=False)


@wrong("no overlap")
def sends_at_the_end(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, late=True)


@wrong("no overlap")
def adds_everything_up(forward, backward, needs, moved, cut):
    crossing = sum(moved[v] for v in readers_of(needs, cut))
    return sum(forward) + sum(backward) + 2 * crossing


@wrong("all at once")
def waits_for_all_values(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, wait_all=True)


@wrong("last reader")
def the_first_gradient_that_comes(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, reader=max)


@wrong("last reader")
def the_first_gradient_and_no_look_at_rank_1(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, reader=max, bare=True)


@wrong("early")
def the_last_layers_gradient_and_no_more(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, early=True, bare=True)


@wrong("early")
def begins_with_the_last_layers_gradient(forward, backward, needs, moved, cut):
    return follow(forward, backward, needs, moved, cut, early=True)


@wrong("no number")
def both_ranks(forward, backward, needs, moved, cut):
    return [follow(forward, backward, needs, moved, cut)]


@wrong("wrong")
def backward_is_twice_forward(forward, backward, needs, moved, cut):
    return follow(forward, [2 * t for t in forward], needs, moved, cut)
