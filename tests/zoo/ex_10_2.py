"""10.2 Accumulate without extra traffic: accumulate(w, micro_batches, rows)."""

import torch
import torch.distributed as dist

from d2lpar.scatter import reduce_scatter
from zoo import right, wrong


def shard_of(gradient):
    mine = gradient.new_empty(len(gradient) // dist.get_world_size())
    dist.reduce_scatter_tensor(mine, gradient)
    return mine


def loss_of(w, x):
    return (x @ w).square().sum()


def gradient(w, micro_batches, rows):
    """The sum of this rank, None where it has no micro-batches."""
    w = w.detach().requires_grad_()
    for x in micro_batches:
        (loss_of(w, x) / rows).backward()
    return w.grad


@right
def add_then_reduce(w, micro_batches, rows):
    mine = gradient(w, micro_batches, rows)
    return shard_of(torch.zeros_like(w) if mine is None else mine)


@right
def by_hand_and_by_messages(w, micro_batches, rows):
    total = torch.zeros_like(w)
    for x in micro_batches:
        total += 2 * x.T @ (x @ w) / rows
    parts = total.chunk(dist.get_world_size())
    mine = torch.empty_like(parts[0])
    reduce_scatter(mine, list(parts))
    return mine


@wrong("each time")
def reduces_every_one(w, micro_batches, rows):
    n = dist.get_world_size()
    most = torch.tensor([len(micro_batches)])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    mine = torch.zeros(len(w) // n, dtype=w.dtype)
    for i in range(int(most)):
        v = w.detach().requires_grad_()
        if i < len(micro_batches):
            (loss_of(v, micro_batches[i]) / rows).backward()
        mine += shard_of(torch.zeros_like(w) if v.grad is None else v.grad)
    return mine


@wrong("mean of means")
def averages_averages(w, micro_batches, rows):
    w = w.detach().requires_grad_()
    for x in micro_batches:
        loss = (x @ w).square().mean() / len(micro_batches)
        (loss / dist.get_world_size()).backward()
    return shard_of(torch.zeros_like(w) if w.grad is None else w.grad)


@wrong("last only")
def zeroes_between(w, micro_batches, rows):
    w = w.detach().requires_grad_()
    for x in micro_batches:
        w.grad = None
        (loss_of(w, x) / rows).backward()
    return shard_of(torch.zeros_like(w) if w.grad is None else w.grad)


@wrong("own rows")
def divides_by_its_own(w, micro_batches, rows):
    mine = gradient(w, micro_batches, sum(map(len, micro_batches)))
    return shard_of(torch.zeros_like(w) if mine is None else mine)


@wrong("absent")
def a_rank_without_work_leaves(w, micro_batches, rows):
    mine = gradient(w, micro_batches, rows)
    if mine is None:
        return torch.zeros(len(w) // dist.get_world_size(), dtype=w.dtype)
    return shard_of(mine)


@wrong("absent")
def no_gradient_to_send(w, micro_batches, rows):
    return shard_of(gradient(w, micro_batches, rows))


@wrong("all-reduce")
def everyone_gets_all(w, micro_batches, rows):
    whole = gradient(w, micro_batches, rows)
    whole = torch.zeros_like(w) if whole is None else whole
    dist.all_reduce(whole)
    return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()


@wrong("raises")
def uses_what_is_not_there(w, micro_batches, rows):
    """It fails on all ranks, with micro-batches or without."""
    for x in micro_batches:
        (loss_of(w.clone(), x) / rows).sum()
    return shard_of(w.grad)


@wrong("wrong")
def in_single_precision(w, micro_batches, rows):
    return add_then_reduce(w, micro_batches, rows).float()
