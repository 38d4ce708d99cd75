"""The two large tables of a language model, split by words: embedding and loss.

Every rank has V/n words: rows of the embedding's weight [V, D], and their scores.
V words, n ranks, r this rank, N rows of scores.  Serial truth: `nn.Embedding` and
`F.cross_entropy` on one device.  Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..allreduce.fastest import allreduce
from .products import Add, own_parameter


class VocabularyEmbedding(nn.Module):
    """Look words up in this rank's V/n rows of an embedding's weight [V, D].

    Forward, one all-reduce sums the vectors.  Backward, nothing moves.
    n must divide V.
    """

    def __init__(self, embedding, group=None):
        super().__init__()
        if embedding.padding_idx is not None or embedding.max_norm is not None:
            raise TypeError("An Embedding without padding_idx or max_norm.")
        self.group = group
        weight = embedding.weight
        self.weight = own_parameter(weight, 0, "words", group)  # [V/n, D]

    def forward(self, words):
        """Take words [...], equal on all ranks; return vectors [..., D]."""
        at, here = own_words(words, len(self.weight), self.group)
        vectors = F.embedding(at, self.weight) * here.unsqueeze(-1)
        return Add.apply(vectors, self.group)  # of partial sums


def own_words(words, size, group=None):
    """Return (places among this rank's words, 0 elsewhere; which are here)."""
    first = dist.get_rank(group) * size
    here = (words >= first) & (words < first + size)
    return (words - first) * here, here


class _CrossEntropy(torch.autograd.Function):
    """-log softmax at the targets [N], from this rank's scores [N, V/n]."""

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
    """Return the cross-entropy of each row [N], from scores split over ranks.

    scores     [N, V/n], columns r V/n to (r+1) V/n
    targets    [N], words, the same on all ranks

    Adds up 3 N numbers over ranks and never moves the scores.  Serial truth:
    F.cross_entropy with reduction="none".  Shoeybi et al. 2019, section 3.
    """
    return _CrossEntropy.apply(scores, targets, group)
