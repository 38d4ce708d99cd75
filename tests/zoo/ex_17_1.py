"""17.1 Merge what ranks have seen: merge_ranks(out, lse)."""

import math

import torch
import torch.distributed as dist

from d2lpar.allreduce import ring_allreduce
from d2lpar.scatter import all_gather
from d2lpar.sequence.online_softmax import merge
from zoo import right, wrong


def of_all(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    all_gather(every, x)
    return torch.stack(every)


@right
def weights_first(out, lse):
    share = out * of_all(lse).softmax(0)[dist.get_rank()][..., None]
    ring_allreduce(share)
    return share


@right
def with_the_largest_subtracted(out, lse):
    top = of_all(lse).amax(0)
    weight = (lse - top).exp()[..., None]
    both = torch.cat([out * weight, weight], -1)
    ring_allreduce(both)
    return both[..., :-1] / both[..., -1:]


@right
def passes_a_merge_along(out, lse):
    """From rank to rank, and the last one's result back to all."""
    n, r = dist.get_world_size(), dist.get_rank()
    both = torch.cat([out, lse[..., None]], -1)
    if r > 0:
        before = torch.empty_like(both)
        dist.recv(before, r - 1)
        pair = before[..., :-1], before[..., -1], out, lse
        if r == 1 or torch.isfinite(lse).all():
            out, lse = merge(*pair)
        else:
            out, lse = before[..., :-1], before[..., -1]
        both = torch.cat([out, lse[..., None]], -1)
    if r < n - 1:
        dist.send(both, r + 1)
        dist.recv(both, r + 1)
    if r > 0:
        dist.send(both, r - 1)
    return both[..., :-1].contiguous()


@wrong("not a number")
def without_subtracting(out, lse):
    both = torch.cat([out, torch.ones_like(out[..., :1])], -1) * lse.exp()[..., None]
    ring_allreduce(both)
    return both[..., :-1] / both[..., -1:]


@wrong("not a number")
def subtracts_one_number_from_all_queries(out, lse):
    """The weights of a query with small scores become 0, and so does their sum."""
    weight = (lse - of_all(lse).max()).exp()[..., None]
    both = torch.cat([out * weight, weight], -1)
    ring_allreduce(both)
    return both[..., :-1] / both[..., -1:]


@wrong("not divided")
def weights_that_do_not_add_up_to_1(out, lse):
    share = out * (lse - of_all(lse).amax(0)).exp()[..., None]
    ring_allreduce(share)
    return share


@wrong("own")
def asks_nobody(out, lse):
    return out


@wrong("mean")
def everyone_counts_the_same(out, lse):
    share = out / dist.get_world_size()
    ring_allreduce(share)
    return share


@wrong("sum")
def only_adds(out, lse):
    ring_allreduce(out)
    return out


@wrong("largest")
def the_loudest_rank(out, lse):
    best = of_all(lse).argmax(0) == dist.get_rank()
    share = out * best[..., None]
    ring_allreduce(share)
    return share


def in_turn(out, lse, forgets):
    outs, lses = of_all(out), of_all(lse)
    found, total = outs[0], lses[0]
    for more, its in zip(outs[1:], lses[1:], strict=True):
        found, both = merge(found, total, more, its)
        total = total if forgets else both
    return found


@wrong("old sum")
def keeps_the_first_sum(out, lse):
    return in_turn(out, lse, True)


@wrong("too many bytes")
def gathers_everything(out, lse):
    return in_turn(out, lse, False)


@wrong("native collective")
def with_torchs_own(out, lse):
    top = lse.clone()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    weight = (lse - top).exp()[..., None]
    both = torch.cat([out * weight, weight], -1)
    dist.all_reduce(both)
    return both[..., :-1] / both[..., -1:]


@wrong("wrong")
def in_base_two(out, lse):
    return weights_first(out, lse * math.log(2))


@wrong("hangs")
def waits_for_a_neighbour(out, lse):
    n, r = dist.get_world_size(), dist.get_rank()
    if n > 1:
        dist.recv(torch.empty_like(lse), (r - 1) % n)
        dist.send(lse, (r + 1) % n)
    return weights_first(out, lse)
