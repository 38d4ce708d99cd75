"""Attention without the T x T scores: tile by tile, forward and backward by hand.

A query needs the softmax over all keys, but it may see them in any portions:

    portion     what it gives                            log-sum-exp of its scores
    A           average a of A's values                  log A
    B           average b of B's values                  log B
    A and B     a e^(log A - log AB) + b e^(log B - log AB)    log AB = logaddexp

So a tile of queries meets one tile of keys at a time, and only the averages and their
log-sum-exp stay.  The backward pass computes the scores of each tile again.  H heads of
queries share G heads of keys, R = H / G each.  N batch, T tokens, d features of a head.
Milakov and Gimelshein 2018; Dao et al. 2022 (FlashAttention).
"""

import math
from typing import NamedTuple

import torch

TILE = 256  # tokens of a tile


class Tile(NamedTuple):
    """A run of tokens: its position in the sequence, and its rows on a rank."""

    position: int
    rows: slice


def tiles_of(spans, size=TILE):
    """Cut a rank's spans (start, stop) into tiles of at most `size` tokens."""
    if size < 1:
        raise ValueError(f"A tile has at least one token, not {size}.")
    tiles, row = [], 0
    for start, stop in spans:
        for at in range(start, stop, size):
            count = min(size, stop - at)
            tiles.append(Tile(at, slice(row, row + count)))
            row += count
    return tiles


def meetings(queries, keys, causal):
    """Yield (rows of queries, rows of keys, diagonal) of tiles that meet.

    Tiles are equal or apart.  So with causal=True a tile of queries sees all
    of an earlier tile, the lower triangle of its own, nothing of a later one.
    """
    for one in queries:
        for other in keys:
            if not causal or other.position <= one.position:
                diagonal = causal and other.position == one.position
                yield one.rows, other.rows, diagonal


def tile_scores(q, k, diagonal):
    """Scores of a tile, [N, G, R, A, B], in float32 at least.

    q            [N, G, R, A, d]
    k            [N, G, B, d]
    diagonal     True hides the keys behind a query
    """
    scores = q.flatten(2, 3) @ k.mT  # [N, G, R A, B]
    scores = scores.to(precise(q)).div_(math.sqrt(q.shape[-1]))
    scores = scores.unflatten(2, q.shape[2:4])
    if diagonal:
        later = torch.ones_like(scores[0, 0, 0], dtype=torch.bool).triu(1)
        scores.masked_fill_(later, -math.inf)
    return scores


def precise(x):
    """The dtype of sums: float32, or float64 if x has it."""
    return torch.promote_types(x.dtype, torch.float32)


def attend_tile(q, k, v, diagonal):
    """Return (averages of v [N, G, R, A, d], log-sum-exp [N, G, R, A])."""
    scores = tile_scores(q, k, diagonal)  # [N, G, R, A, B]
    lse = scores.logsumexp(-1)
    weights = scores.sub_(lse[..., None]).exp_().to(v.dtype)
    out = weights.flatten(2, 3) @ v  # [N, G, R A, d]
    return out.unflatten(2, q.shape[2:4]), lse


def merge(out, lse, more, more_lse):
    """Return the averages over two portions of keys, and their log-sum-exp.

    lse - both and more_lse - both are at most 0, so no exp overflows.
    """
    both = torch.logaddexp(lse, more_lse)
    out = out * (lse - both).exp()[..., None]
    return out + more * (more_lse - both).exp()[..., None], both


class Online:
    """The attention of a rank's queries to all keys that it has seen so far."""

    def __init__(self, q, G, tiles, causal):
        self.q = q.unflatten(1, (G, -1))  # [N, G, R, T, d]
        self.tiles, self.causal = tiles, causal
        self.out = torch.zeros_like(self.q, dtype=precise(q))
        self.lse = torch.full_like(self.out[..., 0], -math.inf)  # [N, G, R, T]

    def see(self, k, v, tiles):
        """Take in keys and values [N, G, T, d] whose tiles these are."""
        for a, b, diagonal in meetings(self.tiles, tiles, self.causal):
            keys, values = k[..., b, :], v[..., b, :]
            part = attend_tile(self.q[..., a, :], keys, values, diagonal)
            merged = merge(self.out[..., a, :], self.lse[..., a], *part)
            self.out[..., a, :], self.lse[..., a] = merged


def tile_gradients(q, k, v, dy, lse, delta, diagonal):
    """Return the gradients of q, k and v from one meeting of two tiles.

    Computes the scores again.  delta is the sum of dy y over the features of
    a query, [N, G, R, A]: what a softmax subtracts in its backward pass.
    """
    scores = tile_scores(q, k, diagonal)
    weights = scores.sub_(lse[..., None]).exp_()  # [N, G, R, A, B]
    dweights = (dy.flatten(2, 3) @ v.mT).unflatten(2, q.shape[2:4])
    dscores = dweights.sub_(delta[..., None]).mul_(weights)
    dscores = dscores.div_(math.sqrt(q.shape[-1])).to(q.dtype).flatten(2, 3)
    dq = (dscores @ k).unflatten(2, q.shape[2:4])
    dv = weights.to(q.dtype).flatten(2, 3).mT @ dy.flatten(2, 3)
    return dq, dscores.mT @ q.flatten(2, 3), dv


class OnlineBackward:
    """The gradient of a rank's queries, from all keys that it has seen so far."""

    def __init__(self, q, y, dy, lse, tiles, causal):
        heads = lse.shape[1:3]  # G, R
        self.q, y, self.dy = (x.unflatten(1, heads) for x in (q, y, dy))
        self.lse, self.tiles, self.causal = lse, tiles, causal
        self.delta = (self.dy * y).sum(-1, dtype=lse.dtype)  # [N, G, R, T]
        self.dq = torch.zeros_like(self.q, dtype=lse.dtype)

    def see(self, k, v, tiles):
        """Return the gradients of k and v, [2, N, G, T, d]."""
        dk = torch.zeros_like(k, dtype=self.lse.dtype)
        dv = torch.zeros_like(dk)
        for a, b, diagonal in meetings(self.tiles, tiles, self.causal):
            rows = self.q[..., a, :], k[..., b, :], v[..., b, :], self.dy[..., a, :]
            about = self.lse[..., a], self.delta[..., a]
            found = tile_gradients(*rows, *about, diagonal)
            self.dq[..., a, :] += found[0]
            dk[..., b, :] += found[1]
            dv[..., b, :] += found[2]
        return torch.stack([dk, dv])
