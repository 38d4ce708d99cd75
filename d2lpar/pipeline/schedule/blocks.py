"""The time of a schedule in which a forward and a backward pass run as one block.

DualPipe runs F of one phase and the whole backward pass of the other at once, so that
the messages of each are hidden behind the products of the other.  Both begin when what
they need is there, and both results leave when the block ends.
"""

from .actions import needs
from .simulation import costs


def blocks(row):
    """Return a row cut into tuples: an F with the B and W behind it, or one action.

    F and B belong to different stages, as `0F3 5B1 5W1`; otherwise they run apart.
    """
    found, left = [], list(row)
    while left:
        first, *rest = left[:3]
        kinds = "".join(action.kind for action in left[:3])
        apart = kinds != "FBW" or rest[0] != rest[1]._replace(kind="B")
        size = 1 if apart or rest[0].stage == first.stage else 3
        found.append(tuple(left[:size]))
        del left[:size]
    return found


def idle(schedule, forward=1.0, backward=1.0, weight=1.0, block=3.0):
    """Return how long each rank waits between its first and its last action.

    `block` is the time of an F and a whole backward pass together, the F&B of
    DeepSeek-V3's table 2; the other times are those of `simulate`.
    """
    cost, stages = costs(schedule, forward, backward, weight), schedule.stages
    rows, over = [blocks(row) for row in schedule.ranks], {}
    free, waited = [None] * schedule.p, [0.0] * schedule.p
    while any(rows):
        for r, row in enumerate(rows):
            while row:
                needed = {n for a in row[0] for n in needs(a, stages)} - {*row[0]}
                if not needed <= over.keys():
                    break
                start = max([over[n] for n in needed] + [free[r] or 0.0])
                waited[r] += 0.0 if free[r] is None else start - free[r]
                free[r] = start + (cost(row[0][0]) if len(row[0]) == 1 else block)
                over.update(dict.fromkeys(row.pop(0), free[r]))
    return waited
