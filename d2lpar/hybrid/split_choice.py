"""The cheapest split of each layer of a net, exactly, for a batch and a cluster.

A layer can be split in five ways.  Each takes its input in one layout and leaves its
output in one, and the same holds for gradients on the way back:

    split         takes       gives       its gradient    takes       gives
    data          batch       batch                       batch       batch
    domain        height      height                      height      height
    out           whole       channels                    channels    sums
    in            channels    sums                        whole       channels
    replicated    whole       whole                       whole       whole

    layout        a rank has
    batch         1/n of the rows of the batch
    height        1/n of the rows of each picture
    channels      1/n of the channels, or features
    whole         everything
    sums          partial sums of everything, one per rank

Where a layout is not the one that comes next, something moves.  n ranks, N rows of the
batch, elements of 4 bytes.  Nothing that moves is hidden.  After Gholami et al. 2018.
"""

import math
from itertools import pairwise
from typing import NamedTuple

from torch import nn

from ..allreduce import ring_allreduce
from ..allreduce.fastest import CANDIDATES, pace_on
from .domain import window_of

SPLITS = ("data", "domain", "out", "in", "replicated")
ITEM = 4  # bytes of an element


class Layout(NamedTuple):
    """Name the layouts of a split, forward and on the way back."""

    takes: str
    gives: str
    takes_back: str
    gives_back: str


LAYOUTS = {
    "data": Layout("batch", "batch", "batch", "batch"),
    "domain": Layout("height", "height", "height", "height"),
    "out": Layout("whole", "channels", "channels", "sums"),
    "in": Layout("channels", "sums", "whole", "channels"),
    "replicated": Layout("whole", "whole", "whole", "whole"),
}


class Shape(NamedTuple):
    """Describe a layer with weights; counts are for one row of the batch.

    weights           elements of weight and bias
    flops             of one forward pass
    inputs, outputs   elements of x, and of y before any pooling
    features          (features or channels of x, of y)
    height            rows of the smallest picture in it, 1 if it is dense
    halo              elements in the rows that come from both neighbours
    """

    name: str
    weights: int
    flops: int
    inputs: int
    outputs: int
    features: tuple
    height: int
    halo: int


def shapes(model, x):
    """Return the Shape of every Conv2d and Linear of a Sequential, for one x.

    x is [1, ...], on the device of the model; on `meta` nothing is computed.
    A pool's halo counts to the layer before.  ValueError for layers of layers.
    """
    found = []
    for layer in model:
        if len([*layer.modules()]) > 1:
            text = "has layers of its own: unpack it into the chain."
            raise ValueError(f"A {type(layer).__name__} {text}")
        before, x = x, layer(x)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            found.append(_shape(f"layer {len(found)}", layer, before, x))
        elif isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
            last = found.pop()
            height = min(last.height, x.shape[-2])
            halo = last.halo + _halo(layer, before)
            found.append(last._replace(height=height, halo=halo))
    return found


def _shape(name, layer, x, y):
    """Return the Shape of a layer that makes y of x."""
    weights = sum(p.numel() for p in layer.parameters())
    flops = 2 * y.numel() * layer.weight[0].numel()
    sizes = weights, flops, x.numel(), y.numel()
    if isinstance(layer, nn.Linear):
        features = layer.in_features, layer.out_features
        return Shape(name, *sizes, features, 1, 0)
    height = min(x.shape[-2], y.shape[-2])
    channels = layer.in_channels, layer.out_channels
    return Shape(name, *sizes, channels, height, _halo(layer, x))


def _halo(layer, x):
    """Count the elements of x in the rows that two windows share."""
    window, _ = window_of(layer, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
    rows = max(0, window.span - window.stride)
    return rows * x.numel() // x.shape[-2]


def fits(layer, split, n):
    """Tell whether n ranks can share the layer in this way."""
    if split in ("in", "out"):
        return layer.features[split == "out"] % n == 0
    return split != "domain" or layer.height >= n


class Costs:
    """Count the seconds of layers and of what moves, forward and backward.

    n ranks of the cluster make a ring; a batch has N rows.
    """

    def __init__(self, n, N, cluster):
        self.n, self.N, self.cluster = n, N, cluster
        _, steps = CANDIDATES[ring_allreduce]
        self.alpha, self.beta = pace_on(cluster, tuple(range(n)), steps)

    def rounds(self, times, elements):
        """Return the seconds of a ring that goes round `times` times."""
        if self.n == 1:
            return 0.0
        each = self.alpha + elements * ITEM / self.n * self.beta
        return times * (self.n - 1) * each

    def move(self, layout, wanted, elements):
        """Return the seconds that turn one layout of a tensor into another."""
        if wanted == layout or layout == "whole":
            return 0.0  # a part of the whole is here already
        if layout == "sums":
            return self.rounds(2 if wanted == "whole" else 1, elements)
        if wanted == "whole":
            return self.rounds(1, elements)  # all-gather
        return self.rounds(1, elements / self.n)  # all-to-all

    def between(self, layer, split, after, then):
        """Return the seconds between a layer and the next, there and back."""
        one, two = LAYOUTS[split], LAYOUTS[then]
        # sums are added before ReLU and pooling, all else moves after the pool
        size = layer.outputs if one.gives == "sums" else after.inputs
        there = self.move(one.gives, two.takes, self.N * size)
        back = self.move(two.gives_back, one.takes_back, self.N * after.inputs)
        return there + back

    def within(self, layer, split, first=False):
        """Return the seconds inside of a layer; infinite if it cannot be so.

        The first layer needs no gradient of its x.
        """
        if not fits(layer, split, self.n):
            return math.inf
        products = 2 if first else 3  # y, dw, and dx
        moved = 0.0
        if split in ("data", "domain"):
            moved = self.rounds(2, layer.weights)
        if split == "domain" and self.n > 1:
            halo = 2 * self.alpha + self.N * layer.halo * ITEM * self.beta
            moved += (products - 1) * halo
        return moved + products * self.compute(layer, split)

    def compute(self, layer, split):
        """Return the seconds in which this rank computes y, dw or dx."""
        n, N = self.n, self.N
        share = 1.0 if split == "replicated" else 1 / n
        if split == "data":
            share = math.ceil(N / n) / N
        elif split == "domain":
            share = math.ceil(layer.height / n) / layer.height
        x = N * layer.inputs * (1.0 if split == "out" else share)
        w = layer.weights * (share if split in ("in", "out") else 1.0)
        y = N * layer.outputs * (1.0 if split == "in" else share)
        work = N * layer.flops * share, ITEM * (x + w + y)
        return self.cluster.compute_seconds(0, *work, "float32")


def plan_seconds(layers, splits, n, batch, cluster):
    """Return the seconds of a step whose layers are split in these ways.

    Afterwards the loss takes its scores by rows of the batch, or whole.
    """
    costs = Costs(n, batch, cluster)
    total, pairs = 0.0, list(zip(layers, splits, strict=True))
    for i, (layer, split) in enumerate(pairs):
        total += costs.within(layer, split, first=i == 0)
        if i + 1 < len(pairs):
            total += costs.between(layer, split, *pairs[i + 1])
    return total + to_loss(costs, *pairs[-1])


def to_loss(costs, layer, split):
    """Return the seconds between the last layer and the loss, at the least."""
    scores = layer._replace(inputs=layer.outputs)
    ends = ("data", "replicated")
    return min(costs.between(layer, split, scores, end) for end in ends)


# A best plan that ends with a split of layer i extends one for those before.
#
#     layer 0             layer 1                            layer 2
#     data                data, data    or    out, data      ...
#     out                 data, out     or    out, out       ...
def best_splits(layers, n, batch, cluster):
    """Find the splits of the layers that make a step shortest; exact.

    layers    from `shapes`

    Returns (seconds of a step, [split of each layer]).  Of equal plans the one
    that comes first in `SPLITS` is taken.  O(25 L).
    """
    costs, last = Costs(n, batch, cluster), layers[-1]
    best = {s: (costs.within(layers[0], s, first=True), [s]) for s in SPLITS}
    for before, layer in pairwise(layers):
        shorter, best = best, {}  # split of its last layer: (seconds, plan)
        for split in SPLITS:
            own, plans = costs.within(layer, split), []
            for s, (seconds, plan) in shorter.items():
                moved = costs.between(before, s, layer, split)
                plans.append((seconds + own + moved, [*plan, split]))
            best[split] = min(plans, key=lambda found: found[0])
    ends = [(t + to_loss(costs, last, s), p) for s, (t, p) in best.items()]
    return min(ends, key=lambda found: found[0])
