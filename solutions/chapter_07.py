"""What the checks of chapter 07 share."""

import copy
import math

import torch
from torch import nn

from d2lpar.checks.equality import NO_NUMBER

ITEM = 8  # bytes of a float64
CLASSES = 5


def equal_nets(rng, n):
    """n equal nets in float64; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)
        net = nn.Sequential(*layers).double()
    return [copy.deepcopy(net) for _ in range(n)]


def batch(rng, *shape):
    """x [*shape, 4] and as many targets."""
    x = torch.from_numpy(rng.normal(size=(*shape, 4)))
    return x, torch.from_numpy(rng.integers(CLASSES, size=shape))


def weights(net):
    """Copies of the parameters."""
    return [p.detach().clone() for p in net.parameters()]


def near(came, wanted, case=None):
    """Equal in kind and shape, and in value to 1e-10; `...` equals anything.

    A tensor of one number is as good as this number.
    """
    if wanted is ...:
        return True
    if torch.is_tensor(wanted):
        alike = torch.is_tensor(came) and came.shape == wanted.shape
        return alike and torch.allclose(came.double(), wanted, rtol=1e-9, atol=1e-10)
    if isinstance(wanted, dict):
        return all(near(came[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        alike = isinstance(came, list) and len(came) == len(wanted)
        return alike and all(map(near, came, wanted))
    try:
        return math.isclose(came, wanted, rel_tol=1e-9, abs_tol=1e-10)
    except NO_NUMBER:
        return False


def sizes(case):
    """Elements of each parameter."""
    return [p.numel() for p in case.inputs[0][0].parameters()]


def ring_bytes(sizes, n):
    """Most bytes that a rank of rings over tensors of these sizes sends."""
    return sum(2 * (n - 1) * -(-size // n) * ITEM for size in sizes)


def idle(case):
    """Some rank has nothing to compute on."""
    return not all(inputs[1] for inputs in case.inputs)


def uneven(case):
    """Ranks have different numbers of batches."""
    return len({len(inputs[1]) for inputs in case.inputs}) > 1
