"""10.1 Clip by the global norm: clip(grads, limit)."""

import math

import torch
import torch.distributed as dist

from zoo import right, wrong


def there(grads):
    return [g for g in grads if g is not None]


def squares(grads):
    found = [g.square().sum() for g in there(grads)]
    return torch.stack(found).sum().reshape(1)


def scale(grads, norm, limit):
    for g in there(grads):
        g.mul_(min(1.0, limit / norm) if norm > 0 else 1.0)


def clipped(total, grads, limit):
    """The norm, where `total` is the sum of this rank's squares."""
    dist.all_reduce(total)
    norm = total.sqrt().item()
    scale(grads, norm, limit)
    return norm


@right
def one_number(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > limit:
        for g in there(grads):
            g *= limit / norm
    return norm


@right
def by_messages_and_with_a_tensor_for_the_norm(grads, limit):
    from d2lpar.allreduce import ring_allreduce

    total = torch.zeros((), dtype=torch.float64)
    for g in there(grads):
        total += torch.dot(g, g)
    ring_allreduce(total)
    norm = total.sqrt()
    scale(grads, norm.item(), limit)
    return norm


@right
def never_divides(grads, limit):
    total = torch.tensor([sum(float(g @ g) for g in there(grads))], dtype=torch.float64)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    norm = math.sqrt(total.item())
    share = limit / max(norm, limit)
    for g in grads:
        if g is not None:
            g.copy_(g * share)
    return norm


@wrong("own norm")
def each_its_own(grads, limit):
    norm = squares(grads).sqrt().item()
    scale(grads, norm, limit)
    return norm


@wrong("epsilon")
def a_little_below(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    scale(grads, norm + 1e-6, limit)
    return norm


@wrong("own decision")
def asks_itself(grads, limit):
    own = squares(grads)
    total = own.clone()
    dist.all_reduce(total)
    norm = total.sqrt().item()
    if own.item() > limit**2:
        scale(grads, norm, limit)
    return norm


@wrong("sum of norms")
def norms_added(grads, limit):
    norm = squares(grads).sqrt()
    dist.all_reduce(norm)
    scale(grads, norm.item(), limit)
    return norm.item()


@wrong("mean")
def squares_averaged(grads, limit):
    return clipped(squares(grads) / dist.get_world_size(), grads, limit)


@wrong("no root")
def clips_by_the_sum_of_squares(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    scale(grads, total.item(), limit)
    return total.item()


@wrong("float32")
def adds_up_in_float32(grads, limit):
    total = torch.zeros(1)
    for g in there(grads):
        total += g @ g
    return clipped(total, grads, limit)


@wrong("not in place")
def new_tensors(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    grads = [
        None if g is None else g * min(1.0, limit / max(norm, 1e-9)) for g in grads
    ]
    return norm


@wrong("stretched")
def always_at_the_limit(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    for g in there(grads):
        g.mul_(limit / norm if norm else 1.0)
    return norm


@wrong("not a number")
def divides_by_zero(grads, limit):
    total = squares(grads)
    dist.all_reduce(total)
    norm = total.sqrt()
    for g in there(grads):
        g.mul_((limit / norm).clamp(max=1.0) if norm != 0 else norm / norm)
    return norm.item()


@wrong("whole gradient")
def gathers_everything(grads, limit):
    flat = torch.cat(there(grads))
    full = flat.new_empty(len(flat) * dist.get_world_size())
    dist.all_gather_into_tensor(full, flat)
    norm = full.norm().item()
    scale(grads, norm, limit)
    return norm


@wrong("several all-reduces")
def one_for_each_shard(grads, limit):
    total = torch.zeros(1, dtype=torch.float64)
    for g in there(grads):
        square = g.square().sum().reshape(1)
        dist.all_reduce(square)
        total += square
    norm = total.sqrt().item()
    scale(grads, norm, limit)
    return norm


@wrong("None")
def expects_gradients(grads, limit):
    total = torch.stack([g.square().sum() for g in grads]).sum().reshape(1)
    return clipped(total, grads, limit)


@wrong("memory")
def joins_the_shards(grads, limit):
    """The joined gradient is as large as all shards together."""
    flat = torch.cat(there(grads))
    return clipped((flat @ flat).reshape(1), grads, limit)


@wrong("raises")
def fails_everywhere(grads, limit):
    """For another reason than that a gradient is None."""
    total = dist.all_reduce(squares(grads))
    return total.sqrt().item()
