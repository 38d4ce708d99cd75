"""Compute and count the bytes that a rank holds and sends under sharding.

The closed forms are exact with padding: a flat of `size` elements is cut into n shards
of ceil(size / n).  The counts are of what a model and its optimizer really hold, and of
what a forward pass keeps for the backward pass.
"""

from typing import NamedTuple

import torch


class Memory(NamedTuple):
    """Bytes that a rank holds between backward and step."""

    parameters: int
    gradients: int
    optimizer: int


def memory(sizes, n, stage, parameter=4, gradient=4, state=8):
    """Return the Memory of a rank, for flats with these numbers of elements.

    Stage 0 is data parallel.  `parameter`, `gradient` and `state` are bytes
    per element: 4, 4, 8 with Adam, and 2, 2, 12 in mixed precision.  A shard
    has ceil(size / n) elements.  ZeRO 2020, figure 1.
    """
    shard = sum(-(-size // n) for size in sizes)
    whole = n * shard if stage else sum(sizes)
    held = [shard if stage >= least else whole for least in (3, 2, 1)]
    return Memory(held[0] * parameter, held[1] * gradient, held[2] * state)


def traffic(sizes, n, stage, itemsize=4, kept=()):
    """Return the bytes that a rank sends in a step of stage 1, 2 or 3.

    A move of a flat sends n-1 shards.  A step makes two moves, and three in
    stage 3, but two for flats that are `kept` from forward to backward: the
    model's own.  All flats train.  ZeRO 2020, section 7.
    """
    moves = 3 if stage == 3 else 2
    each_way = sum(-(-size // n) for size in sizes)
    each_way_kept = sum(-(-size // n) for size in kept)
    return (n - 1) * itemsize * (moves * each_way + 2 * each_way_kept)


def held(model, optimizer):
    """Count the Memory that this rank really holds, each storage once."""
    states = [x for state in optimizer.state.values() for x in state.values()]
    kinds = [
        [x for flat in model.flats for x in (flat.full, flat.own)],
        [x for flat in model.flats for x in (flat.gradient, flat.grad)],
        [*model.shards, *states],
    ]
    seen, counts = [], []
    for tensors in kinds:
        counts.append(0)
        found = (x.untyped_storage() for x in tensors if torch.is_tensor(x))
        for storage in found:
            if not any(storage is other for other in seen):
                seen.append(storage)
                counts[-1] += storage.nbytes()
    return Memory(*counts)


def kept(forward, owned=()):
    """Return (what `forward()` returns, bytes that autograd keeps).

    What it keeps is for the backward pass.  Each storage counts once, even if
    several tensors share it.  Those of the tensors in `owned` do not count:
    usually these are the parameters, which are in memory anyway.
    """
    skipped = {id(x.untyped_storage()) for x in owned}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        if id(storage) not in skipped:
            storages[id(storage)] = storage  # else its id is used again
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = forward()
    return out, sum(storage.nbytes() for storage in storages.values())
