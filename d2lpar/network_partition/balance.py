"""What layers cost, and where to cut them: exact, for any cost of a part.

Sizes are found without computing, on the `meta` device; seconds by a rank's clock.  A
part is the layers from `first` to before `last`.  L layers, p parts, N rows of the
batch; a message of S bytes takes alpha + beta S seconds.
"""

import math
from typing import NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from ..launch.run import now
from .layers import build, comes_in


class Size(NamedTuple):
    """Hold what a layer makes and keeps, for a batch of so many rows.

    row       shape of a row of its value; dtype    that of its value
    weights   bytes of its parameters;     out      bytes of its value
    kept      bytes of tensors that it makes and keeps for its backward pass
    """

    row: tuple
    dtype: torch.dtype
    weights: int
    out: int
    kept: int


def sizes(net, x):
    """Return the Size of every layer, for a batch with the shape of x.

    Nothing is computed, because the network runs on the `meta` device.
    """
    with torch.device("meta"):
        layers, values = build(net), {-1: torch.empty_like(x, device="meta")}
    found = []
    for i, layer in enumerate(layers):
        inputs = [_leaf(values[v], v >= 0) for v in net[i].needs]
        values[i], kept = _kept(layer, inputs)
        out, weights = values[i], sum(map(_bytes, layer.parameters()))
        row = tuple(out.shape[1:])
        found.append(Size(row, out.dtype, weights, _bytes(out), kept))
    return found


def _leaf(x, trains):
    return x.detach().requires_grad_(trains and x.is_floating_point())


def _bytes(x):
    return x.numel() * x.element_size()


def _kept(layer, inputs):
    """Return (value, bytes that the layer saves and has made itself)."""
    known = [x.untyped_storage() for x in [*inputs, *layer.parameters()]]
    before = len(known)

    def pack(x):
        storage = x.untyped_storage()
        if not any(storage is other for other in known):
            known.append(storage)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        value = layer(*inputs)
    return value, sum(storage.nbytes() for storage in known[before:])


def layer_seconds(net, x):
    """Return [(forward, backward), ...] seconds of the layers, by this clock.

    Call it in a run: in `sim` the clock is the simulated GPU's, elsewhere it
    measures.
    """
    values, found = {-1: x}, []
    for i, layer in enumerate(build(net)):
        inputs = [_leaf(values[v], v >= 0) for v in net[i].needs]
        values[i], *seconds = _timed(layer, inputs)
        found.append(tuple(seconds))
    return found


def _timed(layer, inputs):
    """Return the layer's value and the seconds of its two passes."""
    start = _clock(inputs[0])
    value = layer(*inputs)
    middle = _clock(value)
    every = [*inputs, *layer.parameters()]
    ends = [t for t in every if t.requires_grad]
    torch.autograd.grad(value, ends, torch.empty_like(value))
    return value, middle - start, _clock(value) - middle


def _clock(x):
    if x.is_cuda:
        torch.cuda.synchronize()  # a GPU lags behind its rank
    return now()


def part_seconds(net, seconds, size=None, alpha=0.0, beta=0.0):
    """Make cost(first, last): seconds of a part in a step, with its messages.

    seconds    of each layer, forward and backward together
    size       its Size; a value that comes in, and its gradient that goes
               back, are messages of alpha + beta bytes seconds
    """

    def cost(first, last):
        come = [v for v in comes_in(net, first, last) if v >= 0]
        moved = sum(size[v].out for v in come) if size else 0
        messages = 2 * (alpha * len(come) + beta * moved)
        return sum(seconds[first:last]) + messages

    return cost


def part_bytes(net, size, copies=4):
    """Make cost(first, last): bytes of a part after its forward pass.

    They are `copies` of its weights (4: weight, gradient, Adam's two), what
    its layers keep for the backward pass, and what has come in.
    """

    def cost(first, last):
        come = [v for v in comes_in(net, first, last) if v >= 0]
        mine = sum(copies * s.weights + s.kept for s in size[first:last])
        return mine + sum(size[v].out for v in come)

    return cost


def best_cuts(cost, L, p, total=max):
    """Find a best way to cut L layers into p parts; return (value, cuts).

    cost(first, last)    of a part, 0 or more; `math.inf` forbids the part
    total(a, b)          of two costs: max for the largest part, operator.add
                         for the sum; may not fall when a or b grows

    No part is empty, and of equal ways the first is taken.  O(p L^2) costs.
    """
    if not 1 <= p <= L:
        raise ValueError(f"{L} layers cannot make {p} parts, none empty.")
    best = {0: (0, ())}  # layers so far: (value, where the parts begin)
    for k in range(1, p + 1):
        ends = range(k, L - p + k + 1)
        best = {b: _grown(best, b, cost, total) for b in ends}
    value, starts = best[L]
    if math.isinf(value):
        raise ValueError(f"No way to cut {L} layers into {p} is allowed.")
    return value, list(starts[1:])


def _grown(best, b, cost, total):
    """Return the best way with one more part, which ends before layer b."""
    return min(
        (total(value, cost(a, b)), (*starts, a))
        for a, (value, starts) in best.items()
        if a < b
    )


def within(cost, held, limit):
    """Make a cost that is infinite where a part holds more than `limit`."""
    return lambda a, b: cost(a, b) if held(a, b) <= limit else math.inf
