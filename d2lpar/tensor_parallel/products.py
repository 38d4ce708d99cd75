"""Tensor parallelism: split the weights of a layer, and let all ranks compute it.

    split by     rank r has      takes         makes                    then
    columns      w [D, O/n]      x [N, D]      its columns [N, O/n]     nothing to add
    rows         w [D/n, O]      x [N, D/n]    partial sums [N, O]      sum over ranks

Split the first layer by columns and the second by rows, and nothing moves between them.
torch keeps w transposed, so a part of w's columns is a part of the rows of `weight`
[O, D]; channels likewise.  n ranks, r this rank, N batch, D and O features.  Serial
truth: one device with the whole layer, the same x and the same gradient of y.
Attention is in attention.py, embeddings and the loss in vocabulary.py.
Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..allreduce.fastest import allreduce
from ..messages import start_exchange
from ..scatter import ring_all_gather


def parts_of(count, what, group=None):
    """Return (n, r) of the group; ValueError unless n divides `count`."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if count % n:
        raise ValueError(f"{n} ranks cannot share {count} {what} evenly.")
    return n, r


def own_part(x, dim, group=None):
    """Return part r of n equal parts of `x` along `dim`, as a view."""
    n, r = parts_of(x.shape[dim], f"entries of dimension {dim}", group)
    return x.chunk(n, dim)[r]


# Moves in two pairs: what one does forward, its partner does backward.
#     move         forward              backward
#     Enter (f)    nothing              sum over ranks
#     Add (g)      sum over ranks       nothing
#     Join         all parts together   own part
#     Part         own part             all parts together
class Enter(torch.autograd.Function):
    """Return x unchanged; backward, sum its gradient over ranks."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x.view_as(x)  # the same numbers, as a new node for autograd

    @staticmethod
    def backward(ctx, dy):
        return _summed(dy, ctx.group), None


class Add(torch.autograd.Function):
    """Sum x over ranks; backward, pass the gradient on unchanged."""

    @staticmethod
    def forward(ctx, x, group=None):
        return _summed(x, group)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Join(torch.autograd.Function):
    """Concatenate the parts of all ranks; backward, keep part r."""

    @staticmethod
    def forward(ctx, x, dim, group=None):
        ctx.dim, ctx.group = dim, group
        return _joined(x, dim, group)

    @staticmethod
    def backward(ctx, dy):
        return own_part(dy, ctx.dim, ctx.group), None, None


class Part(torch.autograd.Function):
    """Keep part r of x; backward, concatenate all parts' gradients."""

    @staticmethod
    def forward(ctx, x, dim, group=None):
        ctx.dim, ctx.group = dim, group
        return own_part(x, dim, group)

    @staticmethod
    def backward(ctx, dy):
        return _joined(dy, ctx.dim, ctx.group), None, None


def _summed(x, group):
    total = x.clone(memory_format=torch.contiguous_format)
    allreduce(total, group)
    return total


def _joined(x, dim, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    x = x.contiguous()
    parts = [x if i == r else torch.empty_like(x) for i in range(n)]
    ring_all_gather(parts, group)
    return torch.cat(parts, dim)


class ColumnParallel(nn.Module):
    """Compute a part of a layer's outputs: features r O/n to (r+1) O/n.

    layer     the whole nn.Linear or nn.Conv2d, equal on all ranks
    whole     True to join y to all O features, which moves it

    Backward, one all-reduce sums the gradient of x.
    """

    def __init__(self, layer, whole=False, group=None):
        super().__init__()
        self.product, self.dim = product_of(layer)
        self.whole, self.group = whole, group
        what = "output features"
        self.weight = own_parameter(layer.weight, 0, what, group)  # [O/n, D]
        self.bias = own_parameter(layer.bias, 0, what, group)  # [O/n]

    def forward(self, x):
        """x [N, D], the same on all ranks -> [N, O/n], or [N, O] if whole."""
        y = self.product(Enter.apply(x, self.group), self.weight)  # [N, O/n]
        y = add_bias(y, self.bias, self.dim)
        return Join.apply(y, self.dim, self.group) if self.whole else y


class RowParallel(nn.Module):
    """Multiply a part of a layer's inputs: features r D/n to (r+1) D/n.

    layer     the whole nn.Linear or nn.Conv2d, equal on all ranks
    whole     True if x arrives with all D features and is cut here

    Forward, one all-reduce sums y.  The bias is added once, after the sum.
    """

    def __init__(self, layer, whole=False, group=None):
        super().__init__()
        self.product, self.dim = product_of(layer)
        self.whole, self.group = whole, group
        what = "input features"
        self.weight = own_parameter(layer.weight, 1, what, group)  # [O, D/n]
        self.bias = copy.deepcopy(layer.bias)  # [O], on all ranks

    def forward(self, x):
        """x [N, D/n], or [N, D] if whole -> [N, O], the same on all ranks."""
        if self.whole:
            x = Part.apply(x, self.dim, self.group)  # [N, D/n]
        y = Add.apply(self.product(x, self.weight), self.group)  # [N, O]
        return add_bias(y, self.bias, self.dim)


def product_of(layer):
    """Return (function of x and weight, dimension of x with features)."""
    if isinstance(layer, nn.Linear):
        return F.linear, -1
    if not isinstance(layer, nn.Conv2d):
        kind = type(layer).__name__
        raise TypeError(f"A Linear or a Conv2d can be split, not {kind}.")
    if layer.groups > 1 or layer.padding_mode != "zeros":
        raise TypeError("A Conv2d with groups=1 and padding of zeros, please.")
    how = layer.stride, layer.padding, layer.dilation
    return lambda x, weight: F.conv2d(x, weight, None, *how), -3


def add_bias(y, bias, dim):
    """Add the bias [O] to y, whose features are in dimension -1 or -3."""
    if bias is None:
        return y
    return y + (bias if dim == -1 else bias.view(-1, 1, 1))


def own_parameter(weight, dim, what, group):
    """Return this rank's part of a parameter as a parameter of its own."""
    if weight is None:
        return None
    n, r = parts_of(weight.shape[dim], what, group)
    mine = weight.detach().chunk(n, dim)[r].clone()
    return nn.Parameter(mine, weight.requires_grad)


# x [N, D] -> up, by columns [N, H/n] -> activation -> down, by rows -> [N, D]
#    backward: sum                                        forward: sum
def parallel_mlp(up, activation, down, group=None):
    """Split down(activation(up(x))): one all-reduce forward, one backward.

    The activation must work on each feature by itself.
    """
    columns = ColumnParallel(up, group=group)
    return nn.Sequential(columns, activation, RowParallel(down, group=group))


def ring_columns(x, weight, group=None):
    """Return all rows of x w.T in this rank's columns, [N, O/n].

    x         [N/n, D], this rank's rows, as many on every rank
    weight    [O/n, D], this rank's part of w transposed

    The rows travel around a ring in n-1 rounds, and in each round a product of
    the rows that are there hides the message.  No gradient.  Wang et al. 2023.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    y = x.new_empty(n, len(x), len(weight))  # [n, N/n, O/n]
    for k in range(n):
        works, coming = [], torch.empty_like(x)
        if k < n - 1:
            works = start_exchange(x, (r + 1) % n, coming, (r - 1) % n, group)
        torch.mm(x, weight.T, out=y[(r - k) % n])
        for work in works:
            work.wait()
        x = coming
    return y.flatten(0, 1)  # [N, O/n]
