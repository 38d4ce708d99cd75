"""05.3 Running sum: running_sum(x), in place."""

import torch
import torch.distributed as dist

from d2lpar import scatter
from zoo import right, wrong


def exchanged(x, dst, src):
    """What came from `src` while `x` left to `dst`; no such ranks, no message."""
    n = dist.get_world_size()
    incoming = torch.empty_like(x) if 0 <= src < n else None
    works = []
    if 0 <= dst < n:
        works.append(dist.isend(x, dst))
    if incoming is not None:
        works.append(dist.irecv(incoming, src))
    for work in works:
        work.wait()
    return incoming


@right
def doubling(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        incoming = exchanged(x, r + d, r - d)
        if incoming is not None:
            x += incoming
        d *= 2


@right
def halving(x):
    """The largest step first: the order of the steps does not matter."""
    n, r = dist.get_world_size(), dist.get_rank()
    spare = torch.empty_like(x)
    for k in reversed(range(8)):
        d, calls = 2**k, []
        if r >= d:
            calls.append(dist.P2POp(dist.irecv, spare, r - d))
        if r + d < n:
            calls.append(dist.P2POp(dist.isend, x, r + d))
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()
        if r >= d:
            x.add_(spare)


@right
def recursive(x, d=1):
    n, r = dist.get_world_size(), dist.get_rank()
    if d >= n:
        return
    spare = x.new_empty(x.shape if r >= d else 0)
    coming = dist.irecv(spare, r - d) if r >= d else None
    if r + d < n:
        dist.send(x, r + d)
    if coming:
        coming.wait()
        torch.add(x, spare, out=x)
    del spare, coming
    recursive(x, 2 * d)


@right
def a_copy_leaves(x):
    """What leaves is a copy, so `x` may change at once."""
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        work = dist.isend(x.clone(), r + d) if r + d < n else None
        if r >= d:
            incoming = torch.empty_like(x)
            dist.recv(incoming, r - d)
            x += incoming
        if work:
            work.wait()
        d *= 2


@wrong("chain")
def one_by_one(x):
    n, r = dist.get_world_size(), dist.get_rank()
    if r > 0:
        incoming = torch.empty_like(x)
        dist.recv(incoming, r - 1)
        x += incoming
    if r < n - 1:
        dist.send(x, r + 1)


@wrong("single terms")
def all_gather_first(x):
    n, r = dist.get_world_size(), dist.get_rank()
    everyones = [torch.empty_like(x) for _ in range(n)]
    scatter.all_gather(everyones, x)
    x.copy_(sum(everyones[: r + 1]))


@wrong("single terms")
def to_all_above(x):
    n, r = dist.get_world_size(), dist.get_rank()
    works = [dist.isend(x.clone(), peer) for peer in range(r + 1, n)]
    incoming = torch.empty_like(x)
    for peer in range(r):
        dist.recv(incoming, peer)
        x += incoming
    for work in works:
        work.wait()


@wrong("exclusive")
def without_its_own(x):
    own = x.clone()
    doubling(x)
    x -= own


@wrong("wraps")
def round_the_circle(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        x += exchanged(x, (r + d) % n, (r - d) % n)
        d *= 2


@wrong("total")
def reduce_and_broadcast(x):
    scatter.tree_reduce(x)
    scatter.tree_broadcast(x)


@wrong("mirrored")
def from_the_right(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        incoming = exchanged(x, r - d, r + d)
        if incoming is not None:
            x += incoming
        d *= 2


@wrong("adds before sending")
def receives_adds_sends(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        if r >= d:
            incoming = torch.empty_like(x)
            dist.recv(incoming, r - d)
            x += incoming
        if r + d < n:
            dist.send(x, r + d)
        d *= 2


@wrong("one after the other")
def receives_sends_adds(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    incoming = torch.empty_like(x)
    while d < n:
        if r >= d:
            dist.recv(incoming, r - d)
        if r + d < n:
            dist.send(x, r + d)
        if r >= d:
            x += incoming
        d *= 2


@wrong("touches what leaves")
def adds_while_it_leaves(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    incoming = torch.empty_like(x)
    while d < n:
        work = dist.isend(x, r + d) if r + d < n else None
        if r >= d:
            dist.recv(incoming, r - d)
            x += incoming
        if work:
            work.wait()
        d *= 2


@wrong("idle messages")
def butterfly(x):
    """MPICH's scan: both directions, so that everybody has the total as well."""
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    total = x.clone()
    while d < n:
        incoming = exchanged(total, r ^ d, r ^ d)
        if incoming is not None:
            total += incoming
            if r & d:
                x += incoming
        d *= 2


@wrong("lists")
def growing_lists(x):
    """All terms are kept, and as many of them are sent as a step has."""
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    terms = x.clone()[None]  # [terms, S], the nearest rank's first
    while d < n:
        works = [dist.isend(terms, r + d)] if r + d < n else []
        if r >= d:
            incoming = torch.empty(min(d, r - d + 1), len(x), dtype=x.dtype)
            works.append(dist.irecv(incoming, r - d))
        for work in works:
            work.wait()
        if r >= d:
            terms = torch.cat([terms, incoming])
        d *= 2
    x.copy_(terms.sum(0))


@wrong("buffer")
def keeps_all_that_came(x):
    """The sums of each step stay in a list, and are added at the end."""
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    sums = [x]
    while d < n:
        incoming = exchanged(sums[-1], r + d, r - d)
        sums.append(sums[-1] if incoming is None else sums[-1] + incoming)
        d *= 2
    x.copy_(sums[-1])


@wrong("not in place")
def a_new_sum(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        incoming = exchanged(x, r + d, r - d)
        if incoming is not None:
            x = x + incoming
        d *= 2
    return x


@wrong("too few steps")
def powers_of_two_only(x):
    n, r = dist.get_world_size(), dist.get_rank()
    for k in range(n.bit_length() - 1):
        incoming = exchanged(x, r + 2**k, r - 2**k)
        if incoming is not None:
            x += incoming


@wrong("to itself")
def for_one_rank_too(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 0
    while d < n:
        incoming = exchanged(x, r + d, r - d)
        if incoming is not None:
            x += incoming
        d = 2 * d or 1


@wrong("hangs")
def all_send_first(x):
    n, r, d = dist.get_world_size(), dist.get_rank(), 1
    while d < n:
        incoming = torch.empty_like(x)
        dist.send(x, (r + d) % n)
        dist.recv(incoming, (r - d) % n)
        if r >= d:
            x += incoming
        d *= 2


@wrong("native collective")
def torch_all_gather(x):
    n, r = dist.get_world_size(), dist.get_rank()
    everyones = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(everyones, x)
    x.copy_(sum(everyones[: r + 1]))
