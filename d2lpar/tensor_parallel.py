"""Tensor parallelism: every rank has a part of each weight, and all of them one layer.

    split by     rank r has      takes         makes                    then
    columns      w [D, O/n]      x [N, D]      its columns [N, O/n]     nothing to add
    rows         w [D/n, O]      x [N, D/n]    partial sums [N, O]      sum over ranks

Columns first, rows second: between the two nothing moves.  torch keeps w.T, so a part
of w's columns is a part of the rows of `weight` [O, D]; channels likewise.  n ranks,
r this rank, N batch, D and O features, V vocabulary.  Serial truth: one device with the
whole layer, the same x and gradient of y.  Shoeybi et al. 2019 (Megatron-LM), part 3.
"""

import copy
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from .fastest import allreduce
from .messages import start_exchange
from .scatter import ring_all_gather


def parts_of(count, what, group=None):
    """(n, r) of the group; ValueError where n does not divide `count`."""
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
    if not isinstance(layer, nn.Conv2d):
        kind = type(layer).__name__
        raise TypeError(f"A Linear or a Conv2d can be split, not {kind}.")
    if layer.groups > 1 or layer.padding_mode != "zeros":
        raise TypeError("A Conv2d with groups=1 and padding of zeros, please.")
    how = layer.stride, layer.padding, layer.dilation
    return lambda x, weight: F.conv2d(x, weight, None, *how), -3


def _plus(y, bias, dim):
    """y and the bias [O] of its features, which are in dimension -1 or -3."""
    if bias is None:
        return y
    return y + (bias if dim == -1 else bias.view(-1, 1, 1))


def _own(weight, dim, what, group):
    """This rank's part of a parameter, as a parameter."""
    if weight is None:
        return None
    n, r = parts_of(weight.shape[dim], what, group)
    mine = weight.detach().chunk(n, dim)[r].clone()
    return nn.Parameter(mine, weight.requires_grad)


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
        what = "output features"
        self.weight = _own(layer.weight, 0, what, group)  # [O/n, D]
        self.bias = _own(layer.bias, 0, what, group)  # [O/n]

    def forward(self, x):
        """x [N, D], the same on all ranks -> [N, O/n], or [N, O] if whole."""
        y = self.product(Enter.apply(x, self.group), self.weight)  # [N, O/n]
        y = _plus(y, self.bias, self.dim)
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
        what = "input features"
        self.weight = _own(layer.weight, 1, what, group)  # [O, D/n]
        self.bias = copy.deepcopy(layer.bias)  # [O], on all ranks

    def forward(self, x):
        """x [N, D/n], or [N, D] if whole -> [N, O], the same on all ranks."""
        if self.whole:
            x = Part.apply(x, self.dim, self.group)  # [N, D/n]
        y = Add.apply(self.product(x, self.weight), self.group)  # [N, O]
        return _plus(y, self.bias, self.dim)


# x [N, D] -> up, by columns [N, H/n] -> activation -> down, by rows -> [N, D]
#    backward: sum                                        forward: sum
def parallel_mlp(up, activation, down, group=None):
    """down(activation(up(x))), with one all-reduce forward and one backward.

    The activation works on each feature by itself.
    """
    columns = ColumnParallel(up, group=group)
    return nn.Sequential(columns, activation, RowParallel(down, group=group))


class SelfAttention(nn.Module):
    """Each token attends to itself and to those before it, with `heads` heads.

    D      features of a token; a head has D / heads of them
    pairs  heads of keys and values; fewer than `heads` are shared (grouped)

    Vaswani et al. 2017, section 3.2; grouped: Ainslie et al. 2023.
    """

    def __init__(self, D, heads, pairs=None):
        super().__init__()
        pairs = pairs or heads
        if D % heads or heads % pairs:
            text = f"{D} features, {heads} heads, {pairs} pairs: uneven."
            raise ValueError(text)
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
    scores = q @ k.transpose(-2, -1) / math.sqrt(size)
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    # weights: [N, heads, tokens, tokens]
    return (weights @ v).transpose(1, 2).flatten(2)


class ParallelAttention(nn.Module):
    """A rank has heads / n heads: queries, keys, values, and a part of `out`.

    One all-reduce forward and one backward, as in the MLP.  Serial truth: the
    whole `SelfAttention`.  All ranks of the world make it.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        self.size, self.group = whole.size, group
        heads = whole.queries.out_features // whole.size
        n, r = parts_of(heads, "heads", group)
        pairs = whole.keys.out_features // whole.size
        parts, sharing = shared_pairs(pairs, group)
        self.queries = PartOfLinear(whole.queries, n, r)
        one = parts, r * parts // n, sharing
        self.keys = PartOfLinear(whole.keys, *one)
        self.values = PartOfLinear(whole.values, *one)
        self.out = RowParallel(whole.out, group=group)

    def forward(self, x):
        """x [N, tokens, D], the same on all ranks -> the same shape."""
        x = Enter.apply(x, self.group)  # once, for all three
        qkv = self.queries(x), self.keys(x), self.values(x)
        return self.out(attend(*qkv, self.size))


class PartOfLinear(nn.Module):
    """Part i of `parts` of the outputs of a Linear with a bias.

    sharing    the group of the ranks that have this very part, or None; the
               gradients of its parameters are the sums over these ranks
    """

    def __init__(self, linear, parts, i, sharing=None):
        super().__init__()
        self.sharing = sharing
        for name, whole in linear.named_parameters():
            mine = whole.detach().chunk(parts)[i].clone()
            setattr(self, name, nn.Parameter(mine, whole.requires_grad))

    def forward(self, x):
        """x [..., D] -> [..., O / parts]."""
        if self.sharing is None:
            return F.linear(x, self.weight, self.bias)
        shared = self.weight, self.bias
        return F.linear(x, *(Enter.apply(p, self.sharing) for p in shared))


# Eight ranks, two pairs of keys and values: four neighbours have the same one.
#     ranks     0  1  2  3     4  5  6  7
#     pair      0  0  0  0     1  1  1  1
def shared_pairs(pairs, group=None):
    """(parts of the pairs, the group of ranks with the same part, or None)."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if n % pairs and pairs % n:
        raise ValueError(f"{n} ranks cannot share {pairs} pairs evenly.")
    if n <= pairs:
        return n, None
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    each = n // pairs  # ranks that have one pair
    groups = [dist.new_group(ranks[i : i + each]) for i in range(0, n, each)]
    return pairs, groups[r // each]


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
        if embedding.padding_idx is not None or embedding.max_norm is not None:
            raise TypeError("An Embedding without padding_idx or max_norm.")
        self.group = group
        self.weight = _own(embedding.weight, 0, "words", group)  # [V/n, D]

    def forward(self, words):
        """words [...], the same on all ranks -> their vectors [..., D]."""
        at, here = own_words(words, len(self.weight), self.group)
        vectors = F.embedding(at, self.weight) * here.unsqueeze(-1)
        return Add.apply(vectors, self.group)  # of partial sums


def own_words(words, size, group=None):
    """(places in this rank's `size` words, 0 elsewhere; which are here)."""
    first = dist.get_rank(group) * size
    here = (words >= first) & (words < first + size)
    return (words - first) * here, here


class _CrossEntropy(torch.autograd.Function):
    """-log softmax at the targets [N], from columns of the scores [N, V/n]."""

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
        hot = torch.zeros_like(softmax).scatter_(1, at[:, None], 1)
        return (softmax - hot * here[:, None]) * dy[:, None], None, None


def vocabulary_cross_entropy(scores, targets, group=None):
    """The cross-entropy of each row [N], where a rank has V/n of the scores.

    scores     [N, V/n], columns r V/n to (r+1) V/n
    targets    [N], words, the same on all ranks

    Moves 3 N numbers, and never all the scores.  Serial truth: F.cross_entropy
    of [N, V] with reduction="none".  Shoeybi et al. 2019, section 3.
    """
    return _CrossEntropy.apply(scores, targets, group)


# A rank has some rows of x and some columns of w, and wants its columns of all
# of x @ w.  It multiplies the rows that are there while the next ones come:
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
            works = start_exchange(x, (r + 1) % n, coming, (r - 1) % n, group)
        torch.mm(x, weight.T, out=y[(r - k) % n])
        for work in works:
            work.wait()
        x = coming
    return y.flatten(0, 1)  # [N, O/n]
