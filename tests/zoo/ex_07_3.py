"""07.3 How many ranks, which batch?: plan(steps, row_seconds, S, most, alpha, beta)."""

import math
from itertools import product

import numpy as np

from zoo import right, wrong


def ring(n, S, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * S / n)


def search(steps, row_seconds, most, link, batches=None, ns=None, share=None):
    share = share or (lambda B, n: math.ceil(B / n))
    found = [
        (steps[B] * (share(B, n) * row_seconds + link(n)), n, B)
        for n, B in product(ns or range(1, most + 1), batches or steps)
    ]
    seconds, n, B = min(found)
    return n, B, seconds


@right
def dearest_batches_first(steps, row_seconds, S, most, alpha, beta):
    """A loop that remembers the best, from the last batch backwards."""
    best = None
    for B in reversed(steps):
        for n in range(most, 0, -1):
            rows = -(-B // n)
            step = rows * row_seconds + (n - 1) * (2 * alpha + 2 * S * beta / n)
            if best is None or step * steps[B] < best[2]:
                best = [n, B, step * steps[B]]
    return best


@right
def nearly(steps, row_seconds, S, most, alpha, beta):
    n, B, seconds = search(steps, row_seconds, most, lambda n: ring(n, S, alpha, beta))
    return n, B, seconds * 1.009


@wrong("no triple")
def seconds_only(steps, row_seconds, S, most, alpha, beta):
    return search(steps, row_seconds, most, lambda n: ring(n, S, alpha, beta))[2]


@wrong("one step")
def of_one_step(steps, row_seconds, S, most, alpha, beta):
    n, B, seconds = search(steps, row_seconds, most, lambda n: ring(n, S, alpha, beta))
    return n, B, seconds / steps[B]


@wrong("free links")
def links_are_free(steps, row_seconds, S, most, alpha, beta):
    return search(steps, row_seconds, most, lambda n: 0.0)


@wrong("no alpha")
def bytes_only(steps, row_seconds, S, most, alpha, beta):
    return search(steps, row_seconds, most, lambda n: ring(n, S, 0.0, beta))


@wrong("whole tensor")
def whole_gradients(steps, row_seconds, S, most, alpha, beta):
    return search(steps, row_seconds, most, lambda n: 2 * (n - 1) * (alpha + beta * S))


@wrong("fraction of a row")
def splits_rows(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta)
    return search(steps, row_seconds, most, link, share=lambda B, n: B / n)


@wrong("largest batch")
def fewest_steps(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta)
    return search(steps, row_seconds, most, link, batches=[max(steps)])


@wrong("all ranks")
def all_there_are(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta)
    return search(steps, row_seconds, most, link, ns=[most])


@right
def numbers_of_an_array(steps, row_seconds, S, most, alpha, beta):
    """A table of all choices; what it returns are numbers of NumPy."""
    ns, Bs = np.arange(1, most + 1)[:, None], np.array(list(steps))
    step = np.ceil(Bs / ns) * row_seconds + ring(ns, S, alpha, beta)
    times = step * np.array(list(steps.values()))
    i, j = np.unravel_index(times.argmin(), times.shape)
    return ns[i, 0], Bs[j], times[i, j]


@wrong("wrong")
def never_takes_all(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta)
    return search(steps, row_seconds, most, link, ns=range(1, max(most, 2)))


@wrong("half a ring")
def once_round_only(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta) / 2
    return search(steps, row_seconds, most, link)


@wrong("never alone")
def from_two_ranks_on(steps, row_seconds, S, most, alpha, beta):
    link = lambda n: ring(n, S, alpha, beta)
    return search(steps, row_seconds, most, link, ns=range(2, most + 1))


@wrong("wrong")
def until_one_rank_more_is_slower(steps, row_seconds, S, most, alpha, beta):
    """Stops at the first dip, for each batch: no matter of the batch."""
    found = []
    for B in steps:
        link = lambda n: ring(n, S, alpha, beta)
        times = [search(steps, row_seconds, most, link, [B], [1])]
        for n in range(2, most + 1):
            plan = search(steps, row_seconds, most, link, [B], [n])
            if plan[2] > times[-1][2]:
                break
            times.append(plan)
        found.append(times[-1])
    return min(found, key=lambda plan: plan[2])
