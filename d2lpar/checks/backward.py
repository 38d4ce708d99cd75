"""For exercises about autograd: after an answer comes its backward pass."""

from functools import partial

import torch

from .judging import on_ranks
from .signs import both, either, says, wrong


def both_ways(fn, case, **options):
    """Tried by `run`, forward and backward.

    The arguments of a rank are (leaves, others, dy): the function gets leaves and
    others, and its outcome is y and the gradients of the leaves.
    """
    return on_ranks(partial(forth_and_back, fn), case, **options)


def forth_and_back(fn, leaves, others, dy):
    """(y, gradients of the leaves) of `fn(*leaves, *others)`."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = fn(*leaves, *others)
    if torch.is_tensor(y) and y.shape == dy.shape:
        y.backward(dy)
    y = y.detach() if torch.is_tensor(y) else y
    return y, [leaf.grad for leaf in leaves]


def agrees(came, wanted, case=None):
    """y and every gradient, to ten digits of the largest; `...` stands for any."""
    (y, grads), (true, wanted) = came, wanted
    return near(y, true) and (wanted is ... or all(map(near, grads, wanted)))


def near(a, b, digits=1e-10):
    """Tensors of one shape and dtype, equal but for rounding; `...` is near to all."""
    if b is ...:
        return True
    if not torch.is_tensor(a) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    most = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return bool(((a - b).abs() <= digits * most).all())


def by_name(*names):
    """For reports: the names of y and of the gradients in the place of numbers."""
    return lambda outcome, n: dict(zip(names, (outcome[0], *outcome[1]), strict=True))


def unlinked(attempt):
    """y is right on some rank, and an argument has no gradient there."""
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return any(
        near(y, true) and any(grad is None for grad in grads)
        for (y, grads), (true, _) in pairs
    )


def drawn(rng, *shapes):
    """Normal numbers in float64, a tensor of each shape."""
    return [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]


NO_WAY_BACK = either(says("does not require grad"), both(wrong, unlinked))
