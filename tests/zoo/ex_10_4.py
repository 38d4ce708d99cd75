"""10.4 All ranks step, or none: unscale_and_clip(grads, scale, limit)."""

import math

import torch
import torch.distributed as dist

from zoo import right, wrong


def there(grads):
    return [g for g in grads if g is not None]


def squares(grads, dtype=torch.float64):
    total = torch.zeros(1, dtype=dtype)
    for g in there(grads):
        total += g.to(dtype).square().sum()
    return total


def clip(norm, grads, scale, limit):
    """Divide by the scale, and scale down where the norm is above the limit."""
    for g in there(grads):
        g.mul_(limit / max(norm, limit) / scale)
    return norm


def finish(total, grads, scale, limit):
    """The norm or None, where `total` is the sum of all squares."""
    if not total.isfinite():
        return None
    return clip(total.sqrt().item() / scale, grads, scale, limit)


@right
def one_number(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    return finish(total, grads, scale, limit)


@right
def by_a_ring_and_with_two_factors(grads, scale, limit):
    from d2lpar.allreduce import ring_allreduce

    total = squares(grads).squeeze()
    ring_allreduce(total)
    if math.isinf(total) or math.isnan(total):
        return None
    for g in there(grads):
        g /= scale
    norm = total.sqrt() / scale
    if norm > limit:
        for g in there(grads):
            g *= (limit / norm).float()
    return norm


@right
def tells_what_it_has_seen(grads, scale, limit):
    """A NaN stands for an overflow that this rank has seen."""
    total = squares(grads)
    if not all(g.isfinite().all() for g in there(grads)):
        total.fill_(math.nan)
    dist.all_reduce(total)
    return finish(total, grads, scale, limit)


@wrong("own decision")
def looks_at_its_own(grads, scale, limit):
    fine = all(g.isfinite().all() for g in there(grads))
    total = squares(grads)
    dist.all_reduce(total)
    if not fine:
        return None
    return clip(total.sqrt().item() / scale, grads, scale, limit)


@wrong("goes on")
def never_looks(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    return clip(total.sqrt().item() / scale, grads, scale, limit)


@wrong("only infinities")
def forgets_nan(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    if total.isinf():
        return None
    return clip(total.sqrt().item() / scale, grads, scale, limit)


@wrong("float32")
def adds_up_in_float32(grads, scale, limit):
    total = squares(grads, torch.float32)
    dist.all_reduce(total)
    return finish(total, grads, scale, limit)


@wrong("touched")
def divides_first(grads, scale, limit):
    for g in there(grads):
        g /= scale
    total = squares(grads)
    dist.all_reduce(total)
    return finish(total, grads, 1.0, limit)


@wrong("scaled norm")
def clips_before_it_divides(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    if not total.isfinite():
        return None
    return clip(total.sqrt().item(), grads, scale, limit)


@wrong("not in place")
def new_tensors(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    return finish(total, [g.clone() for g in there(grads)], scale, limit)


@wrong("not divided")
def divides_only_what_it_clips(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    if not total.isfinite():
        return None
    norm = total.sqrt().item() / scale
    if norm > limit:
        for g in there(grads):
            g.mul_(limit / norm / scale)
    return norm


@wrong("not clipped")
def only_divides(grads, scale, limit):
    total = squares(grads)
    dist.all_reduce(total)
    if not total.isfinite():
        return None
    for g in there(grads):
        g.div_(scale)
    return total.sqrt().item() / scale


@wrong("several all-reduces")
def a_flag_and_a_norm(grads, scale, limit):
    flag = torch.zeros(1)
    for g in there(grads):
        flag += (~g.isfinite()).sum()
    dist.all_reduce(flag)
    total = squares(grads)
    dist.all_reduce(total)
    return None if flag else finish(total, grads, scale, limit)


@wrong("whole gradient")
def gathers_everything(grads, scale, limit):
    flat = torch.cat(there(grads)).double()
    full = flat.new_empty(len(flat) * dist.get_world_size())
    dist.all_gather_into_tensor(full, flat)
    return finish(full.square().sum(), grads, scale, limit)


@wrong("None")
def expects_gradients(grads, scale, limit):
    total = sum(g.double().square().sum() for g in grads).reshape(1)
    dist.all_reduce(total)
    return finish(total, grads, scale, limit)
