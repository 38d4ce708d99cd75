"""Attention, split by heads: every rank computes some heads from start to end.

    queries, keys, values     by columns: the features of this rank's heads
    attention itself          each head on its own, so nothing moves
    out                       by rows: partial sums, added over ranks

In grouped attention several heads of queries share one head of keys and values.
D features of a token, n ranks, r this rank.  Serial truth: `SelfAttention` and
`GroupedAttention` on one device.  Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from .products import Enter, RowParallel, parts_of


class SelfAttention(nn.Module):
    """Let each token attend to itself and to the tokens before it.

    A token has D features, and each head D / heads of them.  The serial
    truth.  Vaswani et al. 2017, section 3.2.
    """

    def __init__(self, D, heads):
        super().__init__()
        if D % heads:
            text = f"{heads} heads cannot share {D} features evenly."
            raise ValueError(text)
        self.size = D // heads  # features of a head
        self.queries, self.keys = nn.Linear(D, D), nn.Linear(D, D)
        self.values, self.out = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        """Return a tensor of the shape of x, [N, tokens, D]."""
        qkv = self.queries(x), self.keys(x), self.values(x)
        return self.out(attend(*qkv, self.size))


def attend(queries, keys, values, size):
    """Return what the heads find, in the shape of the arguments.

    All are [N, tokens, heads * size].  No head sees another one, so a rank
    may call it with its own heads only.
    """
    qkv = queries, keys, values
    q, k, v = (x.unflatten(-1, (-1, size)).transpose(1, 2) for x in qkv)
    # q, k, v: [N, heads, tokens, size]
    scores = q @ k.transpose(-2, -1) / math.sqrt(size)
    later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    # weights: [N, heads, tokens, tokens]
    return (weights @ v).transpose(1, 2).flatten(2)


class PartOfLinear(nn.Module):
    """Compute part i of `parts` of a Linear's outputs; x entered before."""

    def __init__(self, linear, parts, i):
        super().__init__()
        for name, whole in linear.named_parameters():
            mine = whole.detach().chunk(parts)[i].clone()
            setattr(self, name, nn.Parameter(mine, whole.requires_grad))

    def forward(self, x):
        """x [..., D] -> [..., O / parts]."""
        return F.linear(x, self.weight, self.bias)


class GroupedAttention(SelfAttention):
    """Attend with `pairs` heads of keys and values, shared by all query heads.

    The serial truth.  Ainslie et al. 2023.
    """

    def __init__(self, D, heads, pairs):
        super().__init__(D, heads)
        if heads % pairs:
            text = f"{heads} heads cannot share {pairs} pairs evenly."
            raise ValueError(text)
        self.keys = nn.Linear(D, pairs * self.size)
        self.values = nn.Linear(D, pairs * self.size)

    def forward(self, x):
        """Return a tensor of the shape of x, [N, tokens, D]."""
        qkv = self.queries(x), self.keys(x), self.values(x)
        return self.out(grouped_attend(*qkv, self.size))


def grouped_attend(queries, keys, values, size):
    """Attend, with each head of keys and values repeated for its queries."""
    times = queries.shape[-1] // keys.shape[-1]
    heads = (x.unflatten(-1, (-1, size)) for x in (keys, values))
    keys, values = (x.repeat_interleave(times, -2).flatten(-2) for x in heads)
    return attend(queries, keys, values, size)


class ParallelGroupedAttention(nn.Module):
    """Compute heads / n heads of an attention, and a part of its `out`.

    With more ranks than pairs of keys and values, it makes groups that share
    a pair, so all ranks of the world must create it.
    """

    def __init__(self, whole, group=None):
        super().__init__()
        self.size, self.group = whole.size, group
        both = whole.queries, whole.keys
        heads, pairs = (layer.out_features // self.size for layer in both)
        n, r = parts_of(heads, "heads", group)
        sharing, parts = ranks_sharing_a_pair(pairs, group), min(n, pairs)
        part = parts, r * parts // n, sharing
        self.queries = PartOfLinear(whole.queries, n, r)
        self.keys = SharedPart(whole.keys, *part)
        self.values = SharedPart(whole.values, *part)
        self.out = RowParallel(whole.out, group=group)

    def forward(self, x):
        """Take x [N, tokens, D], equal on all ranks; return the same shape."""
        x = Enter.apply(x, self.group)  # once, for all three
        qkv = self.queries(x), self.keys(x), self.values(x)
        return self.out(grouped_attend(*qkv, self.size))


class SharedPart(PartOfLinear):
    """Compute a part that all ranks of `sharing` have; sum its gradients.

    If `sharing` is None, no other rank has the part.
    """

    def __init__(self, linear, parts, i, sharing):
        super().__init__(linear, parts, i)
        self.sharing = sharing

    def forward(self, x):
        """x [..., D] -> [..., O / parts]."""
        shared = self.weight, self.bias
        if self.sharing is not None:
            shared = (Enter.apply(p, self.sharing) for p in shared)
        return F.linear(x, *shared)


# Eight ranks, two pairs of keys and values: four neighbours have the same one.
#     ranks     0  1  2  3     4  5  6  7
#     pair      0  0  0  0     1  1  1  1
def ranks_sharing_a_pair(pairs, group=None):
    """Return the group of ranks with this rank's pair, or None if alone."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if n % pairs and pairs % n:
        raise ValueError(f"{n} ranks cannot share {pairs} pairs evenly.")
    if n <= pairs:
        return None
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    each = n // pairs  # ranks that have one pair
    groups = [dist.new_group(ranks[i : i + each]) for i in range(0, n, each)]
    return groups[r // each]
