"""Chapter 14: strips of a picture on one GPU, and AlexNet's splits on all GPUs."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from ..hybrid import WeirdTrick
from ..overlap import OverlappedDDP
from ..shared.model_zoo import alexnet
from .measuring import experiment, half


@experiment(small={"side": 64, "channels": 4})
def strips(side=2048, channels=128, ways=(1, 2, 4, 8, 16)):
    """1/n of a picture's rows and their halo through a 3x3 convolution."""

    def prepare(*heights):
        w = torch.randn(channels, channels, 3, 3, dtype=half())
        like = {"dtype": half()}
        own = [torch.randn(1, channels, h, side, **like) for h in heights]
        leaves = [leaf.requires_grad_() for leaf in (w, *own)]
        height = sum(heights) - 2 * len(heights)
        dy = torch.randn(1, channels, height, side, dtype=half())
        return lambda: torch.autograd.grad(convolved(*leaves), leaves, dy)

    cases = {f"1/{n}": partial(prepare, side // n + 2) for n in ways}
    h = side // ways[-1]
    return cases | {f"1/{ways[-1]} in three": partial(prepare, 3, h, 3)}


def convolved(w, *pictures):
    """Convolve rows below each other, each picture with its halo."""
    found = [F.conv2d(x, w, padding=(0, 1)) for x in pictures]
    return torch.cat(found, -2) if len(found) > 1 else found[0]


def summed_scores(scores, targets):
    """Return the sum of the losses of these rows."""
    return F.cross_entropy(scores, targets, reduction="sum")


def by_trick(scheme, net, x, y):
    """Prepare a step of the trick: data in one half, weights in the other."""
    rest = [layer for layer in net[14:] if not isinstance(layer, nn.Dropout)]
    trick = WeirdTrick(net[:14], nn.Sequential(*rest), scheme)

    def step():
        trick.zero_grad()
        trick.step(x, y, summed_scores)

    return step


def by_data(net, x, y):
    """Prepare a step in which all layers are split by data: chapter 08."""
    model = OverlappedDDP(net)

    def step():
        model.zero_grad()
        (summed_scores(model(x), y) / len(x)).backward()
        model.finish()

    return step


@experiment(small={"rows": 2}, ranks=None)
def alexnet_splits(rows=128):
    """A step of AlexNet with so many rows on each GPU: data, or the trick."""

    def prepare(way):
        torch.manual_seed(0)
        net = alexnet().to(dtype=half())
        x = torch.randn(rows, 3, 227, 227, dtype=half())
        return way(net, x, torch.zeros(rows, dtype=torch.int64))

    ways = {"data": by_data}
    ways |= {f"trick, {s}": partial(by_trick, s) for s in "ac"}
    return {name: partial(prepare, way) for name, way in ways.items()}
