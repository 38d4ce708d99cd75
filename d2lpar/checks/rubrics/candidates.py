"""All-reduces to be judged in exercise 06.5: right ones, and wrong ones by their fault.

A wrong one is a right one with a fault put in.  All of them look alike from outside.
"""

import functools

import torch
import torch.distributed as dist

from ...allreduce import (
    direct_allreduce,
    halving_doubling_allreduce,
    naive_allreduce,
    recursive_doubling_allreduce,
    ring_allreduce,
    segmented_ring_allreduce,
)
from ...scatter import all_gather, all_to_all, flat_broadcast, flat_reduce


def disguised(body, *arguments):
    """`body(*arguments, tensor, group)` behind a name that says nothing."""

    def allreduce(tensor, group=None):
        return body(*arguments, tensor, group)

    return allreduce


# Right: 2(n-1)/n S bytes from each rank, rounded up to whole chunks


def _native(x, group):
    dist.all_reduce(x, group=group)


def _in_pieces(x, group):
    segmented_ring_allreduce(x, group, segment=2)


def _owner_by_owner(x, group):
    """Chunk i is reduced to rank i and sent to all from there, one after the other."""
    for i, chunk in enumerate(x.tensor_split(dist.get_world_size(group))):
        flat_reduce(chunk, i, group)
        flat_broadcast(chunk, i, group)


def _all_owners_at_once(x, group):
    """Everyone gives chunk i to rank i, which adds them and gives the sum to all."""
    chunks = list(x.tensor_split(dist.get_world_size(group)))
    mine = chunks[dist.get_rank(group)]
    terms = [torch.empty_like(mine) for _ in chunks]
    all_to_all(terms, chunks, group)
    all_gather(chunks, sum(terms), group)


def _by_halves(x, group):
    """Halving and doubling for powers of two, else a ring."""
    n = dist.get_world_size(group)
    way = ring_allreduce if n & (n - 1) else halving_doubling_allreduce
    way(x, group)


RIGHT = {  # what it does: the function
    "is right, the ring": ring_allreduce,
    "is right, the ring in small pieces": _in_pieces,
    "is right, torch's own": _native,
    "is right, one owner of a chunk after the other": _owner_by_owner,
    "is right, all owners of chunks at once": _all_owners_at_once,
    "is right, halving and doubling where n is a power of two": _by_halves,
}


# Wrong: `base` is a right one


def _zero_beyond_power_of_two(base, x, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r >= 2 ** (n.bit_length() - 1):
        x.zero_()
    base(x, group)


def _head_only(base, x, group):
    n = dist.get_world_size(group)
    base(x[: len(x) // n * n], group)


def _on_rank_0_only(base, x, group):
    before = x.clone()
    base(x, group)
    if dist.get_rank(group) > 0:
        x.copy_(before)


def _returns_the_sum(base, x, group):
    total = x.clone()
    base(total, group)
    return total


def _keeps_the_sum(base, x, group):
    x = x.clone()
    base(x, group)


def _average(base, x, group):
    base(x, group)
    x.copy_(x / dist.get_world_size(group))


def _gives_it_back(base, x, group):
    base(x, group)
    return x


def _rank_0_everywhere(base, x, group):
    if dist.get_rank(group) > 0:
        x.zero_()
    base(x, group)


def _without_the_last(base, x, group):
    n = dist.get_world_size(group)
    if n > 1 and dist.get_rank(group) == n - 1:
        x.zero_()
    base(x, group)


def _own_times_n(base, x, group):
    x *= dist.get_world_size(group)


def _in_single_precision(base, x, group):
    y = x.float()
    base(y, group)
    x.copy_(y)


def _not_when_small(base, x, group):
    if len(x) >= dist.get_world_size(group):
        base(x, group)


def _refuses_when_small(base, x, group):
    if 0 < len(x) < dist.get_world_size(group):
        raise ValueError("fewer elements than ranks")
    base(x, group)


def _whole_ring(base, x, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    mine = x.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(x)
        sending = dist.isend(mine, group=group, group_dst=(r + 1) % n)
        dist.recv(incoming, group=group, group_src=(r - 1) % n)
        sending.wait()
        x += incoming
        mine = incoming


def _other(way, base, x, group):
    way(x, group)


def _odd_ranks_knot(base, x, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if n > 1 and n % 2:
        dist.send(x, group=group, group_dst=(r + 1) % n)
        dist.recv(torch.empty_like(x), group=group, group_src=(r - 1) % n)
    base(x, group)


def _odd_one_leaves(base, x, group):
    n = dist.get_world_size(group)
    if not (n > 1 and n % 2 and dist.get_rank(group) == n - 1):
        base(x, group)


_WASTEFUL = [naive_allreduce, direct_allreduce, recursive_doubling_allreduce]

FAULTS = {  # fault: (what such an all-reduce does, how one finds out, its forms)
    "equal but wrong": (
        "gives all ranks the same numbers, but not the sum",
        "Compare with the sum, computed in one process.",
        [_rank_0_everywhere, _without_the_last],
    ),
    "powers of two": (
        "is right only where the number of ranks is a power of two",
        "Try 3 and 5 ranks.",
        [_zero_beyond_power_of_two],
    ),
    "tail": (
        "is right only where the number of ranks divides the size",
        "Try sizes that n does not divide.",
        [_head_only],
    ),
    "rank 0": (
        "is right on rank 0 only",
        "Compare the tensor of every rank.",
        [_on_rank_0_only],
    ),
    "rebinding": (
        "leaves the tensor as it was; the sum is in another one",
        "Compare the tensor that went in, whatever comes back.",
        [_returns_the_sum, _keeps_the_sum],
    ),
    "returns": (
        "is right in place, and returns the tensor as well",
        "An all-reduce returns None.",
        [_gives_it_back],
    ),
    "average": (
        "gives the average, not the sum",
        "Compare with the sum, without a factor.",
        [_average],
    ),
    "own times n": (
        "multiplies by n, and never asks the others",
        "Give every rank other numbers.",
        [_own_times_n],
    ),
    "integers": (
        "adds in single precision, so large integers are rounded",
        "Try integers that need more than 24 binary digits.",
        [_in_single_precision],
    ),
    "few elements": (
        "fails where there are fewer elements than ranks",
        "Try one element on several ranks.",
        [_not_when_small, _refuses_when_small],
    ),
    "bytes": (
        "has the right sum, but some rank sends more than its share",
        "See Run.bytes_sent, with more than two ranks.",
        [_whole_ring, *(functools.partial(_other, way) for way in _WASTEFUL)],
    ),
    "deadlock": (
        "hangs where the number of ranks is odd",
        "Try an odd number of ranks, and catch d2lpar.RankError.",
        [_odd_ranks_knot, _odd_one_leaves],
    ),
}


def draw(rng):
    """[(all-reduce, its fault or None, what it does)]: 3 right ones, 17 wrong ones.

    Every fault is there, in two forms at most.  The generator decides which right
    ones there are, where a fault is put in, and the order.
    """
    ways = list(RIGHT.values())
    names = [list(RIGHT)[i] for i in rng.permutation(len(RIGHT))[:3]]
    found = [(disguised(RIGHT[what]), None, what) for what in names]
    for fault, (what, _, forms) in FAULTS.items():
        for i in rng.permutation(len(forms))[:2]:
            base = ways[rng.integers(len(ways))]
            found.append((disguised(forms[i], base), fault, what))
    return [found[i] for i in rng.permutation(len(found))]
