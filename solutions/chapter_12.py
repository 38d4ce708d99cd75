"""What the checks of 12.2 and 12.4 share."""

import torch

from d2lpar.checks.judging import Requirement
from d2lpar.sim.cluster import Cluster

FREE_START = Cluster.ideal(alpha=0.0)  # messages cost bytes: rings win


def gradients(make, leaves, dy):
    """(y, gradients of the leaves), where y = make(*leaves)."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = make(*leaves)
    return y.detach(), list(torch.autograd.grad(y, leaves, dy))


def all_reduces(attempt):
    """Of the busiest rank, in bytes of one ring all-reduce of x."""
    n = attempt.case.n
    one = 2 * (n - 1) * -(-attempt.case.inputs[0][0][0].numel() // n) * 8
    return round(max(attempt.run.bytes_sent) / one, 2) if one else 0


ONE_EACH_WAY = Requirement(
    "all-reduces, there and back",
    all_reduces,
    lambda case: 2,
    exactly=False,
    show="{:g}".format,
)
