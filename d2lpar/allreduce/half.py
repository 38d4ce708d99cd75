"""Train with numbers of two bytes on several ranks.

    what can go wrong                  what helps                 who must agree
    a sum of many terms is rounded     `wide_allreduce`           nobody
    a message of four bytes is slow    `NarrowSum`                nobody
    a small gradient becomes 0         `LossScale.scale`          all: one scale
    a large one becomes infinite       `LossScale.step` skips     all: one decision

bfloat16 has the range of float32 and 8 bits of precision, float16 has 11 bits and ends
at 65504, so only float16 needs a loss scale.  n is the number of ranks, r this rank, S
the bytes of a tensor.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.
"""

import torch
import torch.distributed as dist

from ..scatter import all_to_all, members, ring_all_gather
from .algorithms import flat_view

LEAST = 2.0**-24  # a scale below this one cures no overflow
LARGEST = 2.0**127  # the largest power of two that is a float32


# Rank r adds chunk r, in the order of the ranks.  Only messages are narrow.
#
#     step   rank 0          rank 1          rank 2
#     0-1    1 -> 1, 2 -> 2  2 -> 2, 0 -> 0  0 -> 0, 1 -> 1    chunk -> rank
#     then   adds 0          adds 1          adds 2            in float32
#     2-3    a ring gathers the three sums
def wide_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, added in float32 at least.

    Messages have the tensor's dtype, and short sums are rounded to it once,
    so the error does not grow with n.  2(n-1) rounds of S/n bytes, as in the
    ring; the spare chunks take S bytes.  Wang et al. 2023 (ZeRO++) send
    gradients in this way.
    """
    n, r = members(group)
    with flat_view(tensor) as x:
        chunks = list(x.tensor_split(n))  # n views of [elements / n]
        terms = [torch.empty_like(chunks[r]) for _ in range(n)]
        all_to_all(terms, chunks, group)
        short = x.is_floating_point() and x.dtype.itemsize < 4
        total = terms[0].to(torch.float32 if short else x.dtype)
        for term in terms[1:]:
            total += term
        chunks[r].copy_(total)  # the only rounding
        ring_all_gather(chunks, group)


class NarrowSum:
    """Sum `flat` over ranks in a narrower dtype; a Work with `wait`.

    Sends half the bytes of a float32.  `wait` writes the sum back into
    `flat`.  Scale before: the terms are rounded first, and added then.
    An `allreduce` of `overlap.OverlappedDDP`.
    """

    def __init__(self, flat, group=None, dtype=torch.bfloat16):
        self.flat, self.narrow = flat, flat.to(dtype)
        self.work = dist.all_reduce(self.narrow, group=group, async_op=True)

    def wait(self):
        """Wait for the sum, and write it into `flat`."""
        self.work.wait()
        self.flat.copy_(self.narrow)


class LossScale:
    """Multiply a loss, so that its gradients fit into float16.

    scale.scale(loss).backward()
    stepped = scale.step(optimizer)

    `value` is the factor.  A step with a gradient that is not finite on any
    rank is left out on all of them, and `value` is multiplied by `backoff`;
    after `interval` good steps in a row it is multiplied by `growth`.
    """

    def __init__(self, value=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        _check_numbers(value, growth, backoff, interval)
        self.value, self.good = float(value), 0  # good steps in a row
        self.growth, self.backoff = growth, backoff
        self.interval = interval

    def scale(self, loss):
        """Return the loss times `value`, in float32 or wider."""
        wide = torch.promote_types(loss.dtype, torch.float32)
        return loss.to(wide) * self.value

    def step(self, optimizer, group=None):
        """Step with the gradients divided by `value`, if all are finite.

        Returns whether it stepped.  All ranks of `group` that hold a part of
        one model call it, even with no gradient, and decide alike: it makes
        one all-reduce of 4 bytes.  Gradients must be float32 or wider.
        """
        overflow = unscale(optimizer, 1 / self.value)
        if dist.is_initialized():
            dist.all_reduce(overflow, dist.ReduceOp.MAX, group=group)
        stepped = not overflow.item()
        if stepped:
            optimizer.step()
        self.update(stepped)
        return stepped

    def update(self, stepped):
        """Choose the next `value`, after a step or one that was left out."""
        self.good = self.good + 1 if stepped else 0
        if not stepped:
            self.value *= self.backoff
        elif self.good == self.interval:
            self.good = 0
            largest = max(self.value, LARGEST)
            self.value = min(self.value * self.growth, largest)
        if self.value < LEAST:
            raise FloatingPointError(
                f"The loss scale has fallen to {self.value:.1e}, and some "
                "gradient is still not finite. Look for an infinity or a NaN "
                "in the loss."
            )


def _check_numbers(value, growth, backoff, interval):
    """Raise ValueError unless a LossScale can work with these numbers."""
    good = growth >= 1 and 0 < backoff < 1 and interval >= 1
    if not (good and 0 < value <= LARGEST):
        raise ValueError(
            "A loss scale needs 0 < value <= 2^127, growth >= 1, 0 < backoff "
            f"< 1 and interval >= 1, not {value}, {growth}, {backoff} and "
            f"{interval}."
        )


@torch.no_grad()
def unscale(optimizer, factor):
    """Multiply all gradients by `factor`; return 1.0 if one is not finite.

    Returns a float32 tensor [1], which is 0.0 if all are finite.  Raises
    TypeError for a gradient of two bytes, in which the result may vanish.
    """
    params = [p for each in optimizer.param_groups for p in each["params"]]
    overflow = torch.zeros(1, device=params[0].device)
    for grad in (p.grad for p in params if p.grad is not None):
        if grad.dtype.itemsize < 4:
            raise TypeError(
                f"A gradient is {grad.dtype}, and divided by the loss scale "
                "it may vanish again: let the optimizer step float32 copies."
            )
        grad.mul_(factor)
        overflow += ~grad.isfinite().all()
    return overflow.clamp_(max=1)
