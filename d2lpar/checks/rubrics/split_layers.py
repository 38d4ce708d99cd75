"""What exercises of chapter 12 share: after an answer comes its backward pass."""

from functools import partial

import torch

from ...world.cluster import Cluster
from ..judging import Mistake, Requirement, on_ranks

FREE_START = Cluster.ideal(alpha=0.0)  # a message costs its bytes: rings win


def halves(fn, inputs, leaves, others, dy):
    """(y, gradients of the leaves) of `fn(*leaves, *others)`."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = fn(*leaves, *others, *inputs)
    if torch.is_tensor(y) and y.shape == dy.shape:
        y.backward(dy)
    return detached(y), [leaf.grad for leaf in leaves]


def detached(y):
    """A tensor without its graph; anything else as it is."""
    return y.detach() if torch.is_tensor(y) else y


def both_ways(fn, case, **options):
    """Tried by `run`, forward and backward.

    The arguments of a rank are (leaves, others, dy): the function gets leaves and
    others, and its outcome is y and the gradients of the leaves.
    """
    return on_ranks(partial(_forth_and_back, fn), case, **options)


def _forth_and_back(fn, leaves, others, dy):
    return halves(fn, (), leaves, others, dy)


def agrees(came, wanted, case=None):
    """y and every gradient, to ten digits of the largest."""
    y, grads = came
    if not near(y, wanted[0]):
        return False
    return all(map(near, grads, wanted[1]))


def near(a, b, digits=1e-10):
    """Tensors of one shape and dtype, equal but for rounding."""
    if not torch.is_tensor(a) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    most = max(1.0, float(b.abs().max())) if b.numel() else 1.0
    return bool(((a - b).abs() <= digits * most).all())


def outcomes_are(fake):
    """The outcome is wrong, and is (y, gradients) = `fake(case)[rank]`; None: any."""

    def ask(attempt):
        if attempt.error is not None or attempt.right:
            return False
        pairs = zip(attempt.came, fake(attempt.case), strict=True)
        return all(_is(came, guess) for came, guess in pairs)

    return ask


def _is(came, guess):
    (y, grads), (fake_y, fake_grads) = came, guess
    if fake_y is not None and not near(y, fake_y):
        return False
    pairs = zip(grads, fake_grads, strict=True)
    return all(b is None or near(a, b) for a, b in pairs)


def no_gradient(attempt):
    """autograd does not find the way back to the leaves."""
    if attempt.cause is not None:
        return "does not require grad" in str(attempt.cause)
    return any(
        torch.is_tensor(y) and any(grad is None for grad in grads)
        for y, grads in attempt.came or []
    )


def gradients(make, leaves, dy):
    """(y, gradients of the leaves) of one device, where y = make(*leaves)."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = make(*leaves)
    return y.detach(), list(torch.autograd.grad(y, leaves, dy))


def drawn(rng, *shape):
    """Normal numbers in float64."""
    return torch.from_numpy(rng.normal(size=shape))


def ring_bytes(n, elements, itemsize=8):
    """What a rank sends in the ring all-reduce of so many elements, at most."""
    return 2 * (n - 1) * -(-elements // n) * itemsize


def all_reduces(attempt):
    """Of the busiest rank, in bytes of one all-reduce of the case's "one" elements."""
    one = ring_bytes(attempt.case.n, attempt.case.facts["one"])
    return round(max(attempt.run.bytes_sent) / one, 2) if one else 0


one_each_way = Requirement(
    "all-reduces, there and back",
    all_reduces,
    lambda case: 2,
    exactly=False,
    show="{:g}".format,
)
no_way_back = Mistake(
    "no way back",
    no_gradient,
    "autograd finds no way from y back to an argument.",
    "What an all-reduce writes has no history: `Add` and `Enter` have one.",
)
