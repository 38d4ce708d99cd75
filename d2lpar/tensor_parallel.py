"""Tensor parallelism: every rank has a part of each weight, and all of them one layer.

    split by     rank r has      takes         makes                    then
    columns      w [D, O/n]      x [N, D]      its columns [N, O/n]     nothing to add
    rows         w [D/n, O]      x [N, D/n]    partial sums [N, O]      sum over ranks

Columns first, rows second: between the two nothing moves.  torch keeps w.T, so a part
of w's columns is a part of the rows of `weight` [O, D].  Channels of a convolution are
split in the same way.  n ranks, r this rank, N batch, D and O features, V vocabulary.
Serial truth: the whole layer on one device; all ranks get the same x and the same
gradient of y.  Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from .allreduce import allreduce
from .scatter import ring_all_gather


def parts_of(count, what, group=None):
    """(n, r) of the group; ValueError where n does not divide `count` of `what`."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if count % n:
        raise ValueError(f"{n} ranks cannot share {count} {what} evenly.")
    return n, r


def own_part(x, dim, group=None):
    """Part r of n equal ones of `x`, as a view."""
    n, r = parts_of(x.shape[dim], f"entries of dimension {dim}", group)
    return x.chunk(n, dim)[r]


# Four moves, in two pairs: what one does forward, its partner does backward.
#
#     move       forward              backward
#     Enter      nothing              sum over ranks
#     Add        sum over ranks       nothing
#     Join       all parts together   own part
#     Part       own part             all parts together
class Enter(torch.autograd.Function):
    """x, the same on all ranks; its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return _summed(dy, ctx.group), None


class Add(torch.autograd.Function):
    """The sum over ranks of their partial sums."""

    @staticmethod
    def forward(ctx, x, group=None):
        return _summed(x, group)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Join(torch.autograd.Function):
    """The parts of all ranks, behind each other in dimension `dim`."""

    @staticmethod
    def forward(ctx, x, dim, group=None):
        ctx.dim, ctx.group = dim, group
        return _joined(x, dim, group)

    @staticmethod
    def backward(ctx, dy):
        return own_part(dy, ctx.dim, ctx.group), None, None


class Part(torch.autograd.Function):
    """Part r of x, which all ranks have."""

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


def product_of(layer):
    """(product of x and a weight, the dimension of x with the features)."""
    if isinstance(layer, nn.Linear):
        return F.linear, -1
    if isinstance(layer, nn.Conv2d) and layer.groups == 1:
        how = layer.stride, layer.padding, layer.dilation
        return lambda x, weight: F.conv2d(x, weight, None, *how), -3
    kind = type(layer).__name__
    raise TypeError(f"A Linear or an ungrouped Conv2d can be split, not {kind}.")


def _column(bias, dim):
    """The bias [O], to be added to features in dimension -1 or -3."""
    return bias if dim == -1 else bias.view(-1, 1, 1)


class ColumnParallel(nn.Module):
    """A part of the layer's outputs: features r O/n to (r+1) O/n.

    layer     the whole nn.Linear or nn.Conv2d, equal on all ranks
    whole     whether y is joined to all features, which moves it

    One sum over ranks backward, of the gradient of x.
    """

    def __init__(self, layer, whole=False, group=None):
        super().__init__()
        self.product, self.dim = product_of(layer)
        self.whole, self.group = whole, group
        parts_of(len(layer.weight), "output features", group)
        self.weight = _own(layer.weight, 0, group)  # [O/n, D]
        self.bias = None if layer.bias is None else _own(layer.bias, 0, group)

    def forward(self, x):
        """x [N, D], the same on all ranks -> [N, O/n], or [N, O] if whole."""
        y = self.product(Enter.apply(x, self.group), self.weight)  # [N, O/n]
        if self.bias is not None:
            y = y + _column(self.bias, self.dim)
        return Join.apply(y, self.dim, self.group) if self.whole else y


class RowParallel(nn.Module):
    """A part of the layer's inputs: features r D/n to (r+1) D/n.

    layer     the whole nn.Linear or nn.Conv2d, equal on all ranks
    whole     whether x comes with all features, and is cut here

    One sum over ranks forward, of y.  The bias is added once, after it.
    """

    def __init__(self, layer, whole=False, group=None):
        super().__init__()
        self.product, self.dim = product_of(layer)
        self.whole, self.group = whole, group
        parts_of(layer.weight.shape[1], "input features", group)
        self.weight = _own(layer.weight, 1, group)  # [O, D/n]
        self.bias = layer.bias  # [O], on all ranks

    def forward(self, x):
        """x [N, D/n], or [N, D] if whole -> [N, O], the same on all ranks."""
        if self.whole:
            x = Part.apply(x, self.dim, self.group)  # [N, D/n]
        y = Add.apply(self.product(x, self.weight), self.group)  # [N, O]
        return y if self.bias is None else y + _column(self.bias, self.dim)


def _own(weight, dim, group):
    mine = own_part(weight.detach(), dim, group).clone()
    return nn.Parameter(mine, weight.requires_grad)


# x [N, D]  ->  up, by columns [N, H/n]  ->  activation  ->  down, by rows  ->  [N, D]
#       backward: sum                                         forward: sum
def parallel_mlp(up, activation, down, group=None):
    """down(activation(up(x))), with one all-reduce forward and one backward.

    The activation works on each feature by itself.
    """
    columns, rows = ColumnParallel(up, group=group), RowParallel(down, group=group)
    return nn.Sequential(columns, activation, rows)


class SelfAttention(nn.Module):
    """Attention of each token to itself and those before it, with `heads` heads.

    D      features of a token; a head has D / heads of them
    pairs  heads of keys and values; fewer than `heads` are shared (grouped)

    The serial truth of `ParallelAttention`.  Vaswani et al. 2017, section 3.2;
    grouped: Ainslie et al. 2023.
    """

    def __init__(self, D, heads, pairs=None):
        super().__init__()
        pairs = pairs or heads
        if D % heads or heads % pairs:
            raise ValueError(f"{D} features, {heads} heads, {pairs} pairs: uneven.")
        self.size = D // heads
        self.queries, self.out = nn.Linear(D, D), nn.Linear(D, D)
        self.keys = nn.Linear(D, pairs * self.size)
        self.values = nn.Linear(D, pairs * self.size)

    def forward(self, x):
        """x [N, tokens, D] -> the same shape."""
        qkv = self.queries(x), self.keys(x), self.values(x)
        return self.out(attend(*qkv, self.size))


def attend(queries, keys, values, size):
    """[N, tokens, heads * size], from features of queries, keys and values."""
    qkv = queries, keys, values
    q, k, v = (x.unflatten(-1, (-1, size)).transpose(1, 2) for x in qkv)
    # q: [N, heads, tokens, size]    k, v: [N, pairs, tokens, size]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(size)  # [N, heads, tokens, tokens]
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


class ParallelAttention(nn.Module):
    """A rank has heads / n heads: their queries, keys, values, their part of `out`.

    One all-reduce forward and one backward, as in the MLP.  Where there are
    fewer pairs of keys and values than ranks, several ranks have the same one,
    and add up its gradient among themselves.  All ranks of the world make it.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        self.size, self.group = whole.size, group
        n, r = parts_of(whole.queries.out_features // self.size, "heads", group)
        pairs = whole.keys.out_features // self.size
        if n % pairs and pairs % n:
            raise ValueError(f"{n} ranks cannot share {pairs} pairs evenly.")
        parts = min(n, pairs)
        self.queries = part_of_linear(whole.queries, n, r)
        self.keys = part_of_linear(whole.keys, parts, r * parts // n)
        self.values = part_of_linear(whole.values, parts, r * parts // n)
        self.sharing = neighbours(n // parts, group) if n > parts else None
        self.out = RowParallel(whole.out, group=group)

    def forward(self, x):
        """x [N, tokens, D], the same on all ranks -> the same shape."""
        x = Enter.apply(x, self.group)
        k, v = (self.shared(layer, x) for layer in (self.keys, self.values))
        return self.out(attend(self.queries(x), k, v, self.size))

    def shared(self, layer, x):
        """What the layer makes of x; its gradient is a sum where it is shared."""
        if self.sharing is None:
            return layer(x)
        weight, bias = (Enter.apply(p, self.sharing) for p in layer.parameters())
        return F.linear(x, weight, bias)


def part_of_linear(linear, n, r):
    """Part r of n of the outputs of a Linear with bias, as a Linear."""
    some = nn.Linear(linear.in_features, linear.out_features // n, device="meta")
    some.weight = nn.Parameter(linear.weight.detach().chunk(n)[r].clone())
    some.bias = nn.Parameter(linear.bias.detach().chunk(n)[r].clone())
    return some


def neighbours(count, group=None):
    """The group of this rank and those beside it, `count` ranks each.

    All ranks of the world call it, since each makes all the groups.
    """
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    rows = [ranks[i : i + count] for i in range(0, len(ranks), count)]
    groups = [dist.new_group(row) for row in rows]
    return groups[dist.get_rank(group) // count]


# Four ranks, eight words; word 5 is asked for:
#
#     rank 0    0 1        zeros
#     rank 1    2 3        zeros
#     rank 2    4 5        row 1 of its part      the sum over ranks is row 5
#     rank 3    6 7        zeros
class VocabularyEmbedding(nn.Module):
    """A part of the words: V/n rows of the whole embedding's weight [V, D].

    One sum over ranks forward, none backward.  V divides by n.
    """

    def __init__(self, embedding, group=None):
        super().__init__()
        self.group = group
        self.weight = _own(embedding.weight, 0, group)  # [V/n, D]

    def forward(self, words):
        """words [...], the same on all ranks -> their vectors [..., D]."""
        at, here = own_words(words, len(self.weight), self.group)
        vectors = F.embedding(at, self.weight) * here.unsqueeze(-1)  # partial sum
        return Add.apply(vectors, self.group)


def own_words(words, size, group=None):
    """(places in this rank's part of `size` words, 0 elsewhere; which are here)"""
    first = dist.get_rank(group) * size
    here = (words >= first) & (words < first + size)
    return (words - first) * here, here


class _CrossEntropy(torch.autograd.Function):
    """-log softmax at the targets [N], from the columns of the scores [N, V/n]."""

    @staticmethod
    def forward(ctx, scores, targets, group):
        top = scores.amax(1, keepdim=True)  # [N, 1]
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        at, here = own_words(targets, scores.shape[1], group)
        shifted = scores - top
        powers = shifted.exp()  # [N, V/n]
        wanted = shifted.gather(1, at[:, None])[:, 0] * here
        sums = torch.stack([powers.sum(1), wanted])  # [2, N], partial sums
        allreduce(sums, group)
        ctx.save_for_backward(powers / sums[0][:, None], at, here)
        return sums[0].log() - sums[1]  # [N]

    @staticmethod
    def backward(ctx, dy):
        softmax, at, here = ctx.saved_tensors
        hot = torch.zeros_like(softmax).scatter_(1, at[:, None], 1) * here[:, None]
        return (softmax - hot) * dy[:, None], None, None


def vocabulary_cross_entropy(scores, targets, group=None):
    """The cross-entropy of each row [N], where a rank has V/n of the scores.

    scores     [N, V/n], columns r V/n to (r+1) V/n
    targets    [N], words, the same on all ranks

    Moves 3 N numbers, and never all the scores.  Serial truth: F.cross_entropy
    of [N, V] with reduction="none".  Shoeybi et al. 2019, section 3.
    """
    return _CrossEntropy.apply(scores, targets, group)


# Rows of x are on all ranks, and so are the columns of w; all of x @ w is wanted by
# columns.  Instead of waiting for x, multiply what is there while the next comes:
#
#     step   rank 0 multiplies   and meanwhile
#     0      x0                  x0 -> 1, x3 comes
#     1      x3                  x3 -> 1, x2 comes
#     2      x2                  x2 -> 1, x1 comes
#     3      x1
def ring_columns(x, weight, group=None):
    """x w.T of all rows and this rank's columns [N, O/n]; the rows go round.

    x         [N/n, D], this rank's rows, as many on every rank
    weight    [O/n, D]

    n-1 rounds, in each of which a product hides the message.  No gradient.
    Wang et al. 2023 (Overlap communication with dependent computation).
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    y = x.new_empty(n, len(x), len(weight))  # [n, N/n, O/n]
    for k in range(n):
        works, coming = [], torch.empty_like(x)
        if k < n - 1:
            right = dist.P2POp(dist.isend, x, group=group, group_peer=(r + 1) % n)
            left = dist.P2POp(dist.irecv, coming, group=group, group_peer=(r - 1) % n)
            works = dist.batch_isend_irecv([right, left])
        torch.mm(x, weight.T, out=y[(r - k) % n])
        for work in works:
            work.wait()
        x = coming
    return y.flatten(0, 1)  # [N, O/n]
