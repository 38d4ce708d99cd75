"""Attention by an all-to-all: from T/n tokens of all heads to all tokens of H/n heads.

n ranks, r this rank, N batch, T tokens, H heads of d features, G heads of keys and
values.  Jacobs et al. 2023 (DeepSpeed Ulysses).
"""

import torch

from ..scatter import all_to_all, members
from .online_softmax import TILE
from .order import both_ways, lengths_of, spans
from .ring import Ring, SplitAttention, check_qkv, tiled


def to_heads(x, lengths, group=None):
    """Return one share of the heads for all tokens, [N, H/n, T, d].

    x          [n, N, H/n, T/n, d], the heads of each rank for these tokens
    lengths    tokens of each rank
    """
    every = [x.new_empty(*x.shape[1:3], T, x.shape[-1]) for T in lengths]
    all_to_all(every, list(x.contiguous()), group)
    return torch.cat(every, 2)


def to_sequence(x, lengths, group=None):
    """Undo `to_heads`: [N, H/n, T, d] -> [n, N, H/n, T/n, d]."""
    parts = [part.contiguous() for part in x.split(lengths, 2)]
    n, r = members(group)
    every = x.new_empty(n, *parts[r].shape)
    all_to_all(list(every), parts, group)
    return every


tokens_to_heads = both_ways(to_heads, to_sequence)
heads_to_tokens = both_ways(to_sequence, to_heads)


def ulysses_attention(q, k, v, causal=True, group=None, order=None, tile=TILE):
    """Attend to the whole sequence with H/n heads; return [N, H, T/n, d].

    q          [N, H, T/n, d], this rank's tokens; n must divide H
    k, v       [N, G, T/n, d]; n must divide G, or G divide n: then n/G ranks
               get the same head, as if there were n of them
    order      how split_sequence has cut the tokens; None: in contiguous order

    Sends (n-1)/n of q, k, v and of the result, and the same backward, besides
    8 (n-1) bytes of lengths.  Raises ValueError where sizes do not fit.
    """
    n, _ = members(group)
    mine, heads = shares_of_heads(q, k, v, n)
    order = order or "contiguous"
    lengths = lengths_of(q, 2, order, group)
    mine = tokens_to_heads(mine, lengths, group)  # [N, (H + 2 G)/n, T, d]
    T = sum(lengths)
    every = [span for own in spans(T, n, order) for span in own]
    alone = Ring(1, 0, [T], None), *tiled(q, [every], tile)
    qkv = mine.split(heads, 1)
    y = SplitAttention.apply(*qkv, causal, *alone)  # [N, H/n, T, d]
    return heads_to_tokens(y, lengths, group).transpose(0, 1).flatten(1, 2)


def shares_of_heads(q, k, v, n):
    """Return (the heads for each rank [n, N, (H + 2 G)/n, T/n, d], counts)."""
    check_qkv(q, k, v)
    H, G = q.shape[1], k.shape[1]
    if H % n or (G % n and n % G):
        text = f"{n} ranks cannot share {H} heads of queries and {G} of keys"
        raise ValueError(f"{text} evenly. ring_attention needs no division.")
    if n > G:
        k, v = (x.repeat_interleave(n // G, 1) for x in (k, v))
    shares = zip(*(x.chunk(n, 1) for x in (q, k, v)), strict=True)
    counts = [x.shape[1] // n for x in (q, k, v)]
    return torch.stack([torch.cat(share, 1) for share in shares]), counts
