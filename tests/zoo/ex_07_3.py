"""07.3 How many ranks, which batch?: plan(steps, row_seconds, S, most, alpha, beta)."""

import math
from itertools import product

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
