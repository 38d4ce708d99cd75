"""A network as a list of layers, which take what earlier ones have made.

Value i is what layer i makes, value -1 is the network's input.  A layer is a recipe:
its module is made where it is needed, with values that depend on its number alone.
L layers, N rows of the batch, [N, C, H, W] pictures with C channels.

A U-Net (Ronneberger et al. 2015) with three levels; a number is a layer, and layers
6 and 9 double width and height:

    channels     8    0  1 ------------ skip ----------> 10  11  12
                          \\                             /
                16         2  3 ---- skip ----> 7  8 -- 9
                               \\               /
                32              4  5 -------- 6
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn


class Layer(NamedTuple):
    """Describe a layer: `make()` builds its module, `needs` are its inputs."""

    name: str
    make: Callable
    needs: tuple


def chain(*makers):
    """Return the network in which every layer takes the value before it."""
    makers = enumerate(makers)
    return [Layer(f"layer {i}", make, (i - 1,)) for i, make in makers]


def build(net, first=0, last=None, seed=0):
    """Build the modules of the layers from `first` to before `last`.

    Initial values depend on the layer's number and the seed, not on the rank.
    """
    here, layers = torch.get_default_device(), nn.ModuleList()
    seeded = [here] if here.type == "cuda" else []
    for i, layer in enumerate(net[first:last], start=first):
        with torch.random.fork_rng(seeded):
            torch.manual_seed(seed + i)
            layers.append(layer.make())
    return layers


class Whole(nn.Module):
    """Run all layers on one device.  The serial truth."""

    def __init__(self, net, seed=0):
        super().__init__()
        self.net, self.layers = net, build(net, seed=seed)

    def forward(self, x):
        """Return the value of the last layer."""
        values = {-1: x}
        for i, layer in enumerate(self.layers):
            values[i] = layer(*[values[v] for v in self.net[i].needs])
        return values[i]


class Conv(nn.Module):
    """Apply a 3x3 convolution, a norm and a ReLU to one value or two joined.

    With `pool` it first halves the width and height of the picture.
    """

    def __init__(self, channels, out, norm=None, pool=False, dtype=None):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1, dtype=dtype)
        self.norm = norm(out, dtype=dtype) if norm else nn.Identity()
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, x, skip=None):
        """[N, channels, H, W] to [N, out, H, W], or half of H and W."""
        if skip is not None:
            x = side_by_side(skip, x)
        return torch.relu(self.norm(self.conv(self.pool(x))))


def side_by_side(skip, x):
    """Join the channels of two values; ValueError unless pixels agree."""
    if skip.shape[-2:] != x.shape[-2:]:
        raise ValueError(
            f"The skip has {list(skip.shape[-2:])} pixels, what comes "
            f"from below {list(x.shape[-2:])}: take a picture whose "
            "sides can be halved evenly on each level."
        )
    return torch.cat([skip, x], dim=1)


def unet(widths, channels=1, classes=3, norm=None, dtype=None):
    """Return the layers of a U-Net, with two convolutions on each level.

    `widths` are the channels of the levels from the top; a level has half the
    width and height of the one above.  `norm(channels, dtype=...)` makes a
    module.  Pictures [N, channels, H, W] become scores [N, classes, H, W].
    """
    conv = partial(partial, Conv, norm=norm, dtype=dtype)
    net, wide = [], channels
    for k, width in enumerate(widths):
        down = conv(wide, width, pool=k > 0)
        net.append(Layer(f"down {k}a", down, (2 * k - 1,)))
        net.append(Layer(f"down {k}b", conv(width, width), (2 * k,)))
        wide = width
    for k, width in reversed(list(enumerate(widths[:-1]))):
        at, skip = len(net), 2 * k + 1
        up = partial(nn.ConvTranspose2d, wide, width, 2, stride=2, dtype=dtype)
        net.append(Layer(f"up {k}", up, (at - 1,)))
        net.append(Layer(f"up {k}a", conv(2 * width, width), (at, skip)))
        net.append(Layer(f"up {k}b", conv(width, width), (at + 1,)))
        wide = width
    out = partial(nn.Conv2d, wide, classes, 1, dtype=dtype)
    return [*net, Layer("out", out, (len(net) - 1,))]


def comes_in(net, first, last):
    """Return the values that layers first to before last take from outside.

    The network's input lives with layer 0.
    """
    taken = {v for layer in net[first:last] for v in layer.needs}
    return sorted(v for v in taken if max(v, 0) < first)
