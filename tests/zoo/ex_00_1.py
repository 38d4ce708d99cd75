"""00.1 The mirror: mirror(x, n, r), in place."""

import torch
import torch.distributed as dist

from d2lpar.messages import exchange
from zoo import right, wrong


@right
def lower_half_sends_and_receives_at_once(x, n, r):
    partner = n - 1 - r
    if partner == r:
        return
    theirs = x.clone()
    works = [dist.irecv(theirs, partner), dist.isend(x, partner)]
    for work in reversed(works):
        work.wait()
    x[:] = theirs


@right
def by_exchange_for_all_but_the_middle(x, n, r):
    if 2 * r + 1 != n:
        theirs = torch.zeros_like(x)
        exchange(x, n - 1 - r, theirs, n - 1 - r)
        x -= x
        x += theirs


@wrong("middle")
def three_lines_for_an_even_number(x, n, r):
    theirs = torch.empty_like(x)
    exchange(x, n - 1 - r, theirs, n - 1 - r)
    x.copy_(theirs)


@wrong("hangs")
def all_send_first(x, n, r):
    partner = n - 1 - r
    if partner != r:
        theirs = torch.empty_like(x)
        dist.send(x, partner)
        dist.recv(theirs, partner)
        x.copy_(theirs)


@wrong("untouched")
def names_another_tensor(x, n, r):
    if n - 1 - r != r:
        theirs = torch.empty_like(x)
        exchange(x, n - 1 - r, theirs, n - 1 - r)
        x = theirs


@wrong("neighbour")
def the_ring_again(x, n, r):
    if n > 1:
        theirs = torch.empty_like(x)
        exchange(x, (r + 1) % n, theirs, (r - 1) % n)
        x.copy_(theirs)


@wrong("one after the other")
def lower_half_sends_first(x, n, r):
    partner = n - 1 - r
    theirs = torch.empty_like(x)
    if r < partner:
        dist.send(x, partner)
        dist.recv(theirs, partner)
    elif r > partner:
        dist.recv(theirs, partner)
        dist.send(x, partner)
    if r != partner:
        x.copy_(theirs)


@wrong("native collective")
def gathers_all(x, n, r):
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    x.copy_(every[n - 1 - r])


@wrong("hangs")
def everybody_picks_the_next_rank(x, n, r):
    if n > 1:
        theirs, partner = torch.empty_like(x), (r + 1) % n
        exchange(x, partner, theirs, partner)
        x.copy_(theirs)
