"""11.3 When is the step over?"""

import math
from itertools import accumulate

from .. import signs
from ..equality import NO_NUMBER
from ..judging import Case, Exercise
from ..signs import wrong

# Two branches that meet in the last layer
BRANCHES = [(-1,), (0,), (0,), (1,), (2,), (3,), (4,), (5, 6)]
UNEVEN = [(-1,), (0,), (1,), (2, 0)]  # its backward pass takes other times than twice


def step_cases(rng):
    """U-Nets and webs of skips, on fast and on slow lines."""
    webs = [(unet_needs(levels), None) for levels in (2, 3, 4)]
    webs += [([(-1,), (0,), (1, 0), (2,), (3, 0, 1), (4, 2)], None), (BRANCHES, 5)]
    webs += [(web(rng, L), None) for L in (4, 7, 9, 12)]
    for needs, cut in webs:
        L = len(needs)
        for slow in (0.3, 1.0, 4.0):
            forward = rng.uniform(0.5, 2, size=L).tolist()
            moved = (rng.uniform(0.2, 2, size=L) * slow).tolist()
            here = cut or int(rng.integers(1, L))
            yield step_case(forward, [2 * t for t in forward], needs, moved, here)
    yield step_case([1.0, 2.0, 1.0, 2.0], [5.0, 1.0, 2.0, 1.0], UNEVEN, [3.0] * 4, 2)
    forward = rng.uniform(5e-4, 2e-3, size=len(unet_needs(2))).tolist()
    moved = rng.uniform(2e-4, 2e-3, size=len(forward)).tolist()
    yield step_case(forward, [2 * t for t in forward], unet_needs(2), moved, 3)


def step_case(*given):
    """One step to be predicted."""
    L, slow, cut = len(given[0]), min(given[3]), given[4]
    return Case(
        1,
        f"{L} layers, cut before {cut}, messages from {slow:.2g} s on",
        [given],
        facts={"given": given},
        truth=lambda slip="": [seconds_of_a_step(*given, slip)],
    )


def unet_needs(levels):
    """What the layers of a U-Net take, with two layers a level."""
    needs = [(i - 1,) for i in range(2 * levels)]
    for k in reversed(range(levels - 1)):
        at = len(needs)
        needs += [(at - 1,), (at, 2 * k + 1), (at + 1,)]
    return [*needs, (len(needs) - 1,)]


def web(rng, L):
    """Each layer takes the one before, and some take one or two from far back."""
    needs = []
    for i in range(L):
        far = rng.choice(max(i - 1, 1), size=min(2, max(i - 1, 1)), replace=False)
        count = int(rng.integers(0, 3)) if i > 1 else 0
        needs.append((i - 1, *far[:count].tolist()))
    return needs


def seconds_of_a_step(forward, backward, needs, moved, cut, slip=""):
    """When rank 0 has finished its backward pass; slip "..., bare": no max."""
    slip, _, bare = slip.partition(", ")
    behind = range(cut, len(needs))
    readers = {v: [i for i in behind if v in needs[i]] for v in range(cut)}
    crossing = [cut - 1] if slip == "chain only" else [v for v in readers if readers[v]]
    if slip == "in turn":
        return sum(forward + backward) + 2 * sum(moved[v] for v in crossing)
    made = dict(enumerate(accumulate(forward[:cut])))
    there = arrivals(crossing, made, made[cut - 1], moved, slip)
    clock = max(there.values()) if slip == "all at once" else 0.0
    for i in behind:
        clock = max([clock, *(there.get(v, 0.0) for v in needs[i])]) + forward[i]
    over, last = {}, max if slip == "last reader" else min
    for i in reversed(behind):
        clock += backward[i]
        over[i] = clock
    complete = {v: over[last(readers[v])] for v in crossing}
    order = sorted(crossing, key=lambda v: (complete[v], -v))
    back = arrivals(order, complete, clock, moved, slip)
    if slip == "one way":
        back = {}
    elif slip == "early":
        back = {cut - 1: back[cut - 1]}
    return max([clock * (not bare), *back.values()]) + sum(backward[:cut])


def arrivals(values, ready, end, moved, slip):
    """{value: when it is there}, of values in the order in which they leave."""
    line, there = 0.0, {}
    for v in values:
        leaves = end if slip == "no overlap" else ready[v]
        line = max(leaves, 0.0 if slip == "no queue" else line) + moved[v]
        there[v] = line
    return there


def number(came):
    """Seconds, as a float; NaN where it is no number."""
    try:
        return float(came)
    except NO_NUMBER:
        return math.nan


exercise = Exercise(
    "11.3",
    step_cases,
    mistakes={
        "no number": lambda a: wrong(a) and math.isnan(number(a.came[0])),
        **signs.slips("one way", "chain only", "no queue", "all at once"),
        "last reader": signs.slip("last reader", "last reader, bare"),
        "early": signs.slip("early", "early, bare"),
        "no overlap": signs.slip("no overlap", "in turn"),
    },
    agrees=lambda came, wanted, case: abs(number(came) - wanted) <= 1e-6 * wanted,
    processes=(),
)
