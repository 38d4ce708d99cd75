"""Chapter 17: attention by length on one GPU, and three ways to split it over all."""

from functools import partial

import torch
import torch.distributed as dist
from torch.nn import functional as F

from ..planning import Model, Shares
from ..planning.times import Speed
from ..sequence import (
    ToHeads,
    ToSequence,
    gather_attention,
    online_attention,
    ring_attention,
)
from ..sequence.ulysses import shares_of_heads
from ..shared.model_zoo import attention
from .measuring import Case, experiment, half


@experiment(small={"lengths": (32,), "heads": 2, "tile": 8})
def attentions(lengths=(8192, 32768), heads=8, tile=4096):
    """Causal attention, forward and backward: all scores, tiles, PyTorch's."""

    def prepare(attend, T):
        shape = 3, 1, heads, T, 128
        qkv = torch.randn(shape, dtype=half(), requires_grad=True)
        return lambda: attend(*qkv).sum().backward()

    def at_rate(T, cluster):  # on "meta" PyTorch would write all scores
        model = Model(1, 128 * heads, heads, 1, T)
        speed = Speed(cluster, Shares(), model)
        return sum(speed.flash(model.scores(causal=True)))

    tiled, found = partial(online_attention, tile=tile), {}
    fused = partial(F.scaled_dot_product_attention, is_causal=True)
    for T in lengths:
        found[f"{T}, all scores"] = partial(prepare, attention, T)
        found[f"{T}, tiles"] = partial(prepare, tiled, T)
        predicted = partial(at_rate, T)
        found[f"{T}, fused"] = Case(partial(prepare, fused, T), predicted)
    return found


@experiment(small={"tokens": 32, "tile": 8}, ranks=None)
def split_attention(tokens=16384, heads=24, tile=4096):
    """Causal attention of all GPUs, forward only: three ways."""

    def prepare(attend):
        n = dist.get_world_size()
        shape = 3, 1, heads, tokens // (2 * n) * 2, 128
        qkv = torch.randn(shape, dtype=half())
        return lambda: attend(*qkv)

    def at_rate(cluster):
        n, model = cluster.n, Model(1, 128 * heads, heads, 1, tokens)
        fused = Speed(cluster, Shares(), model).flash(model.scores(True) / n)
        sent = 4 * 2 * tokens * model.q * (n - 1) / n**2  # q, k, v and y
        return fused.forward + sent / cluster.rate

    tiled = {"ring": ring_attention, "gather": gather_attention}
    tiled = {way: partial(f, tile=tile) for way, f in tiled.items()}
    found = {way: partial(prepare, f) for way, f in tiled.items()}
    fused = Case(partial(prepare, ulysses_fused), at_rate)
    return found | {"Ulysses, fused": fused}


def ulysses_fused(q, k, v):
    """Do what ulysses_attention does, with PyTorch's attention inside."""
    shares, counts = shares_of_heads(q, k, v, dist.get_world_size())
    lengths = [q.shape[2]] * dist.get_world_size()
    mine = ToHeads.apply(shares, lengths, None).split(counts, 1)
    y = F.scaled_dot_product_attention(*mine, is_causal=True)
    return ToSequence.apply(y, lengths, None).transpose(0, 1).flatten(1, 2)
