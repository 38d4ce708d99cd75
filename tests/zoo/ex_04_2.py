"""04.2 Mend three hangs: mended(program, *args) calls one of three programs."""

import torch
import torch.distributed as dist

from d2lpar.messages import exchange
from zoo import right, wrong


def place():
    return dist.get_world_size(), dist.get_rank()


# The programs as the exercise shows them: each hangs


def hangs_neighbours(x):
    n, r = place()
    left, right = x.clone(), x.clone()
    if r < n - 1:
        dist.send(x, r + 1)
    if r > 0:
        dist.send(x, r - 1)
    if r > 0:
        dist.recv(left, r - 1)
    if r < n - 1:
        dist.recv(right, r + 1)
    return left, right


def hangs_pair_sum(x):
    n, r = place()
    partner = r ^ 1
    if partner >= n:
        return x
    theirs = torch.empty_like(x)
    dist.isend(x, partner).wait()
    dist.irecv(theirs, partner).wait()
    return x + theirs


def hangs_collect(x, sizes):
    n, r = place()
    if r > 0:
        if len(x) > 0:
            dist.send(x, 0)
        return None
    parts = [x]
    for src in range(1, n):
        part = torch.empty(sizes[src], dtype=x.dtype)
        dist.recv(part, src)
        parts.append(part)
    return [part for part in parts if len(part) > 0]


# Mended with as little as can be


def neighbours(x):
    n, r = place()
    left, right = x.clone(), x.clone()
    if r < n - 1:
        dist.send(x, r + 1)
    if r > 0:
        dist.recv(left, r - 1)
    if r > 0:
        dist.send(x, r - 1)
    if r < n - 1:
        dist.recv(right, r + 1)
    return left, right


def pair_sum(x):
    n, r = place()
    if r ^ 1 >= n:
        return x
    theirs = torch.empty_like(x)
    exchange(x, r ^ 1, theirs, r ^ 1)
    return x + theirs


def collect(x, sizes):
    n, r = place()
    if r > 0:
        if len(x) > 0:
            dist.send(x, 0)
        return None
    parts = [x]
    for src in range(1, n):
        part = torch.empty(sizes[src], dtype=x.dtype)
        if sizes[src] > 0:
            dist.recv(part, src)
        parts.append(part)
    return [part for part in parts if len(part) > 0]


def mended(program, *args, neighbours=neighbours, pair_sum=pair_sum, collect=collect):
    programs = {"neighbours": neighbours, "pair_sum": pair_sum, "collect": collect}
    return programs[program](*args)


# Right


@right
def as_little_as_can_be(program, *args):
    return mended(program, *args)


@right
def in_batches_and_backwards(program, *args):
    """All messages of a program at once, the last receive first."""
    n, r = place()
    x = args[0]
    if program == "collect":
        sizes = args[1]
        parts = [torch.zeros(size).double() for size in sizes]
        if r > 0 and sizes[r]:
            dist.isend(x, 0).wait()
        if r > 0:
            return None
        parts[0] = x.clone()
        works = [dist.irecv(parts[s], s) for s in range(n - 1, 0, -1) if sizes[s]]
        for work in works:
            work.wait()
        return [part for part in parts if part.numel()]
    peers = [r - 1, r + 1] if program == "neighbours" else [r ^ 1]
    there = [peer for peer in peers if 0 <= peer < n]
    came = {peer: torch.empty_like(x) for peer in there}
    ops = [dist.P2POp(dist.irecv, came[peer], peer) for peer in reversed(there)]
    ops += [dist.P2POp(dist.isend, x, peer) for peer in there]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    if program == "neighbours":
        return came.get(r - 1, x), came.get(r + 1, x)
    return sum(came.values(), start=x)


@right
def even_ranks_first_and_any_source(program, *args):
    def in_turns(x):
        n, r = place()
        left, right = x.clone(), x.clone()
        for turn in (0, 1):
            if r % 2 == turn:
                for peer in (r + 1, r - 1):
                    if 0 <= peer < n:
                        dist.send(x, peer)
            else:
                for side, peer in ((left, r - 1), (right, r + 1)):
                    if 0 <= peer < n:
                        dist.recv(side, peer)
        return left, right

    def lower_first(x):
        n, r = place()
        theirs = torch.zeros_like(x)
        if r % 2 == 0 and r + 1 < n:
            dist.send(x, r + 1)
            dist.recv(theirs, r + 1)
        elif r % 2 == 1:
            dist.recv(theirs, r - 1)
            dist.send(x, r - 1)
        return x + theirs

    def full_first(x, sizes):
        n, r = place()
        if r > 0:
            return dist.send(x, 0) if len(x) else None
        most = [s for s in range(1, n) if sizes[s] > 0]
        parts = {s: x.new_empty(sizes[s]) for s in most} | {0: x}
        for s in most:
            dist.recv(parts[s], src=s)
        return [parts[s] for s in sorted(parts) if len(parts[s])]

    return mended(
        program,
        *args,
        neighbours=in_turns,
        pair_sum=lower_first,
        collect=full_first,
    )


# Wrong


@wrong("no batch")
def partners_without_a_batch(program, *args):
    def pair_sum(x):
        n, r = place()
        if r ^ 1 >= n:
            return x
        theirs = torch.empty_like(x)
        for work in (dist.isend(x, r ^ 1), dist.irecv(theirs, r ^ 1)):
            work.wait()
        return x + theirs

    return mended(program, *args, pair_sum=pair_sum)


@wrong("neighbours hangs")
def neighbours_as_it_was(program, *args):
    return mended(program, *args, neighbours=hangs_neighbours)


@wrong("neighbours hangs")
def neighbours_receive_first(program, *args):
    def receive_first(x):
        n, r = place()
        left, right = x.clone(), x.clone()
        if r > 0:
            dist.recv(left, r - 1)
        if r < n - 1:
            dist.recv(right, r + 1)
        if r < n - 1:
            dist.send(x, r + 1)
        if r > 0:
            dist.send(x, r - 1)
        return left, right

    return mended(program, *args, neighbours=receive_first)


@wrong("pair_sum hangs")
def pair_sum_as_it_was(program, *args):
    return mended(program, *args, pair_sum=hangs_pair_sum)


@wrong("collect hangs")
def collect_as_it_was(program, *args):
    return mended(program, *args, collect=hangs_collect)


@wrong("native collective")
def a_barrier_in_between(program, *args):
    def with_barrier(x):
        n, r = place()
        left, right = x.clone(), x.clone()
        if r < n - 1:
            dist.send(x, r + 1)
        if r > 0:
            dist.recv(left, r - 1)
        dist.barrier()
        if r > 0:
            dist.send(x, r - 1)
        if r < n - 1:
            dist.recv(right, r + 1)
        return left, right

    return mended(program, *args, neighbours=with_barrier)


@wrong("no wait")
def nobody_waits_for_the_send(program, *args):
    def hasty(x):
        n, r = place()
        if r ^ 1 >= n:
            return x
        theirs = torch.empty_like(x)
        dist.isend(x, r ^ 1)
        dist.irecv(theirs, r ^ 1).wait()
        return x + theirs

    return mended(program, *args, pair_sum=hasty)


@wrong("no wait")
def nobody_waits_at_all(program, *args):
    def hasty(x):
        n, r = place()
        left, right = x.clone(), x.clone()
        if r < n - 1:
            dist.isend(x, r + 1)
            dist.irecv(right, r + 1)
        if r > 0:
            dist.isend(x, r - 1)
            dist.irecv(left, r - 1)
        return left, right

    return mended(program, *args, neighbours=hasty)


@wrong("no partner")
def for_even_numbers_of_ranks(program, *args):
    def even_only(x):
        theirs = torch.empty_like(x)
        partner = place()[1] ^ 1
        exchange(x, partner, theirs, partner)
        return x + theirs

    return mended(program, *args, pair_sum=even_only)


@wrong("exchange gone")
def no_exchange_no_hang(program, *args):
    return mended(program, *args, neighbours=lambda x: (x.clone(), x.clone()))


@wrong("exchange gone")
def collects_from_nobody(program, *args):
    def own(x, sizes):
        if dist.get_rank() > 0:
            return None
        return [x] if len(x) else []

    return mended(program, *args, collect=own)


@wrong("sides swapped")
def left_is_right(program, *args):
    return mended(program, *args, neighbours=lambda x: neighbours(x)[::-1])


@wrong("empty travels")
def everybody_sends(program, *args):
    def empty_too(x, sizes):
        n, r = place()
        if r > 0:
            dist.send(x, 0)
            return None
        parts = [x]
        for src in range(1, n):
            parts.append(torch.empty(sizes[src], dtype=x.dtype))
            dist.recv(parts[src], src)
        return [part for part in parts if len(part) > 0]

    return mended(program, *args, collect=empty_too)


@wrong("more messages")
def sends_twice(program, *args):
    def twice(x):
        pair_sum(x)
        return pair_sum(x)

    return mended(program, *args, pair_sum=twice)


@wrong("raises")
def misspelt(program, *args):
    return mended(program.upper(), *args)
