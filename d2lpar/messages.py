"""Messages between ranks: send and receive at once, time a message, predict it.

The two ends of a message meet: a send is over when its receive is.  Ranks that send to
each other in a circle must therefore receive while they send, which is `exchange`.

A message of S bytes takes alpha + beta S seconds (Hockney 1994).  alpha is what every
message costs, beta what every byte costs.  `ping_pong` measures, `fit_alpha_beta` finds
the two numbers.
"""

import numpy as np
import torch
import torch.distributed as dist

from .launch.run import now


def exchange(mine, dst, incoming, src, group=None):
    """`mine` is at rank `dst`, and `incoming` holds what rank `src` sent.

    Both messages travel at once, so a circle of ranks does not hang.  `dst`
    and `src` are ranks of the group, others than this one.  `incoming` has the
    size and dtype of what comes, and no memory in common with `mine`.
    """
    for work in start_exchange(mine, dst, incoming, src, group):
        work.wait()


def start_exchange(mine, dst, incoming, src, group=None):
    """Start an exchange, and return its two works.

    Neither tensor may be touched until both have been waited for.
    """
    send = dist.P2POp(dist.isend, mine, group=group, group_peer=dst)
    recv = dist.P2POp(dist.irecv, incoming, group=group, group_peer=src)
    return dist.batch_isend_irecv([send, recv])


def ping_pong(sizes, repeats=10):
    """Rank 0 has a list: the seconds that a message of each size takes.

    That is half a round trip to rank 1.  Of `repeats` trips the shortest
    counts, since noise only adds; one trip before them warms up.  `sizes` are
    in bytes.  Rank 1 plays along, the others do nothing; they return None.
    """
    r, seconds = dist.get_rank(), []
    for size in sizes if r < 2 else ():
        ball = torch.zeros(size, dtype=torch.uint8)
        trips = []
        for _ in range(1 + repeats):
            start = now()
            if r == 0:
                dist.send(ball, 1)
                dist.recv(ball, 1)
            else:
                dist.recv(ball, 0)
                dist.send(ball, 0)
            if ball.is_cuda:
                torch.cuda.synchronize()  # a GPU lags behind its rank
            trips.append(now() - start)
        seconds.append(min(trips[1:]) / 2)
    return seconds if r == 0 else None


def fit_alpha_beta(sizes, seconds):
    """(alpha, beta) for which alpha + beta * size comes closest to `seconds`.

    Closest in relative error: each equation is divided by its time.  Otherwise
    the largest message would decide alone, and alpha would drown in its error.
    `sizes` in bytes, alpha in seconds, beta in seconds per byte.
    """
    sizes, seconds = np.array(sizes, float), np.array(seconds, float)
    if len(set(sizes)) < 2:
        raise ValueError("Two numbers need messages of at least two sizes.")
    rows = np.stack([1 / seconds, sizes / seconds], axis=1)  # [messages, 2]
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)
    return float(alpha), float(beta)
