"""Attention to pieces of keys by PyTorch's fused kernel, which needs no tiles of ours.

The one for CPUs returns the log-sum-exp that pieces are merged with, and its backward
pass takes the merged one.  Serial truth: the classes of `online_softmax`.
"""

import itertools

import torch

from .online_softmax import Online, OnlineBackward, meetings, merge

NAME = "_scaled_dot_product_flash_attention_for_cpu"


def calls(queries, keys, causal):
    """Yield what `meetings` yields of whole spans, in as few calls as there can be."""
    places = [key.position for key in keys]
    if causal and places != sorted(places):
        yield from meetings(queries, keys, causal)
    elif queries == keys or not causal:
        if queries and keys:
            yield slice(None), slice(None), causal
    else:  # apart, so a query sees the first few spans of keys
        seen = lambda query: sum(place < query.position for place in places)
        for count, some in itertools.groupby(queries, seen):
            rows = [query.rows for query in some]
            if count:
                last = keys[count - 1].rows
                yield slice(rows[0].start, rows[-1].stop), slice(0, last.stop), False


def each_head(x, R):
    """[N, G, T, d] -> [N, G R, T, d], a view where R is 1."""
    return x[:, :, None].expand(-1, -1, R, -1, -1).flatten(1, 2)


class Fused(Online):
    """`Online`, with one call of the kernel where two pieces meet."""

    def see(self, k, v, tiles):
        """Take in keys and values [N, G, T, d] whose spans these are."""
        heads = self.q.shape[1:3]
        for a, b, diagonal in calls(self.tiles, tiles, self.causal):
            kv = (each_head(x[..., b, :], heads[1]) for x in (k, v))
            given = self.q[..., a, :].flatten(1, 2), *kv, 0.0, diagonal
            found = (
                x.unflatten(1, heads) for x in getattr(torch.ops.aten, NAME)(*given)
            )
            merged = merge(self.out[..., a, :], self.lse[..., a], *found)
            self.out[..., a, :], self.lse[..., a] = merged


class FusedBackward(OnlineBackward):
    """`OnlineBackward`, with one call of the kernel where two pieces meet."""

    def __init__(self, q, y, dy, lse, tiles, causal):
        self.q, self.y, self.dy = (x.unflatten(1, lse.shape[1:3]) for x in (q, y, dy))
        self.lse, self.tiles, self.causal = lse, tiles, causal
        self.dq = torch.zeros_like(self.q, dtype=lse.dtype)

    def see(self, k, v, tiles):
        """Return the gradients of k and v, [2, N, G, T, d]."""
        heads, found = self.q.shape[1:3], self.dq.new_zeros(2, *k.shape)
        kernel = getattr(torch.ops.aten, f"{NAME}_backward")
        for a, b, diagonal in calls(self.tiles, tiles, self.causal):
            dy, q, y = (x[..., a, :].flatten(1, 2) for x in (self.dy, self.q, self.y))
            kv = (each_head(x[..., b, :], heads[1]) for x in (k, v))
            about = y, self.lse[..., a].flatten(1, 2), 0.0, diagonal
            dq, *dkv = (x.unflatten(1, heads) for x in kernel(dy, q, *kv, *about))
            self.dq[..., a, :] += dq
            for mine, gradient in zip(found, dkv, strict=True):
                mine[..., b, :] += (
                    gradient.sum(2) if heads[1] > 1 else gradient[:, :, 0]
                )
        return found
