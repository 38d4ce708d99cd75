"""A block whose norms work on T/n tokens, and whose products on heads / n of them all.

    move      forward                    backward
    Gather    tokens of all ranks        sum, keep own tokens
    Reduce    sum, keep own tokens       tokens of all ranks

Chapter 12 sums with an all-reduce and gives all ranks all tokens.  Here the same bytes
travel in two halves, and between them each rank has its own tokens only.  n ranks, N
batch, T tokens, D features.  Serial truth: `model_zoo.Block` on one device.
Korthikanti et al. 2022, section 4.2.
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from ..mesh.gpt_parts import by_rank
from ..scatter import members, ring_all_gather, ring_reduce_scatter
from ..tensor_parallel import Enter, own_parameter, parts_of
from .order import both_ways, lengths_of, spans
from .ring import online_attention


def gathered(x, lengths, group=None):
    """[N, T/n, D] of each rank -> [N, T, D] on all ranks."""
    every = [x.new_empty(len(x), T, x.shape[-1]) for T in lengths]
    every[members(group)[1]] = x.contiguous()
    ring_all_gather(every, group)
    return torch.cat(every, 1)


def reduced(x, lengths, group=None):
    """[N, T, D], a part of a sum on each rank -> own tokens of the sum."""
    kind = {"memory_format": torch.contiguous_format}
    parts = [part.clone(**kind) for part in x.split(lengths, 1)]
    ring_reduce_scatter(parts, group)
    return parts[members(group)[1]]


gather_tokens = both_ways(gathered, reduced)
reduce_tokens = both_ways(reduced, gathered)


class GatheredLinear(torch.autograd.Function):
    """A Linear of all ranks' tokens, which keeps own tokens and gathers again.

    Korthikanti et al. 2022, section 4.2.2.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, lengths, group):
        ctx.save_for_backward(x, weight)
        ctx.how = lengths, group
        return F.linear(gathered(x, *ctx.how), weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = reduced(dy @ weight, *ctx.how)
        x = gathered(x, *ctx.how)
        dweight = dy.flatten(0, 1).T @ x.flatten(0, 1)
        return dx, dweight, dy.sum((0, 1)), None, None


class SequenceParallelBlock(nn.Module):
    """Run a block of chapter 02 with its heads and its tokens split over ranks.

    block           a whole `model_zoo.Block`, equal on all ranks
    gather_again    keep own tokens of each norm's result, and gather the others
                    again in the backward pass

    Norms, biases and sums work on T/n tokens, products on H/n heads of all T.
    Each all-reduce of chapter 12 is a reduce-scatter and an all-gather, which
    send as many bytes.  Scores are never kept.  A norm's gradient is a sum over
    tokens, so it is added over ranks: one all-reduce of 6 D numbers.
    """

    def __init__(self, block, group=None, gather_again=False):
        super().__init__()
        n, _ = parts_of(block.heads, "heads", group)
        self.group, self.again, self.heads = group, gather_again, block.heads // n
        self.norm1, self.norm2 = copy.deepcopy(block.norm1), copy.deepcopy(block.norm2)
        qkv = copy.deepcopy(block.qkv)
        for parameter in qkv.parameters():
            parameter.data = by_rank(parameter.data, n)
        self.qkv, self.out = cut(qkv, 0, group), cut(block.out, 1, group)
        up, activation, down = block.mlp
        self.mlp = nn.Sequential(cut(up, 0, group), activation, cut(down, 1, group))

    def forward(self, x, T=None):
        """Take own tokens x [N, T/n, D] in contiguous order; return their shape.

        T, all tokens, saves the messages that find the other ranks' lengths.
        """
        lengths = self.lengths(x, T)
        scale1, shift1, scale2, shift2, bias1, bias2 = self.shared()
        y = F.layer_norm(x, x.shape[-1:], scale1, shift1, self.norm1.eps)
        y = self.attend(self.widen(y, self.qkv, lengths))
        x = x + self.narrow(y, self.out, lengths) + bias1
        y = F.layer_norm(x, x.shape[-1:], scale2, shift2, self.norm2.eps)
        y = self.mlp[1](self.widen(y, self.mlp[0], lengths))
        return x + self.narrow(y, self.mlp[2], lengths) + bias2

    def lengths(self, x, T):
        """Return the tokens of each rank; ValueError if this one has others."""
        if T is None:
            return lengths_of(x, 1, "contiguous", self.group)
        n, r = members(self.group)
        lengths = [b - a for ((a, b),) in spans(T, n, "contiguous")]
        if lengths[r] != x.shape[1]:
            text = f"Of {T} tokens this rank has {lengths[r]}, not {x.shape[1]}."
            raise ValueError(f"{text} T counts the whole sequence.")
        return lengths

    def shared(self):
        """Return the vectors that own tokens alone use; sum their gradients."""
        norms = self.norm1.weight, self.norm1.bias, self.norm2.weight, self.norm2.bias
        every = torch.cat([*norms, self.out.bias, self.mlp[2].bias])
        return Enter.apply(every, self.group).chunk(6)

    def widen(self, y, layer, lengths):
        """[N, T/n, D] -> this rank's outputs for all tokens, [N, T, O/n]."""
        how = lengths, self.group
        if self.again:
            return GatheredLinear.apply(y, layer.weight, layer.bias, *how)
        return layer(gather_tokens(y, *how))

    def narrow(self, y, layer, lengths):
        """[N, T, O/n] -> own tokens of the sum over ranks, [N, T/n, D]."""
        part = F.linear(y, layer.weight)  # [N, T, D], a part of the sum
        return reduce_tokens(part, lengths, self.group)

    def attend(self, qkv):
        """[N, T, 3 D/n] -> [N, T, D/n]."""
        qkv = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return online_attention(*qkv).transpose(1, 2).flatten(2)


def cut(linear, dim, group):
    """Return a Linear with this rank's part of the outputs (0) or inputs (1)."""
    mine = copy.deepcopy(linear)
    mine.weight = own_parameter(linear.weight, dim, "features", group)
    if dim == 0:
        mine.bias = own_parameter(linear.bias, 0, "features", group)
    return mine
