"""What a step holds and what sharding costs: bytes held by a rank, and bytes sent.

By closed forms, exact with padding: a flat of `size` elements is cut into n shards of
ceil(size / n).  And counted: what a model and its optimizer really hold, and what a
forward pass keeps for the backward pass.
"""

from typing import NamedTuple

import torch


class Memory(NamedTuple):
    """Bytes that a rank holds between backward and step."""

    parameters: int
    gradients: int
    optimizer: int


def memory(sizes, n, stage, parameter=4, gradient=4, state=8):
    """The Memory of a rank, for flats of so many elements each.

    Stage 0 is data parallel.  `parameter`, `gradient` and `state` are bytes
    per element: Adam has two numbers of 4 bytes, in mixed precision it is
    2, 2, 12.  ZeRO 2020, figure 1; a shard has ceil(size / n) elements.
    """
    shard = sum(-(-size // n) for size in sizes)
    whole = n * shard if stage else sum(sizes)
    held = [shard if stage >= least else whole for least in (3, 2, 1)]
    return Memory(held[0] * parameter, held[1] * gradient, held[2] * state)


def traffic(sizes, n, stage, itemsize=4, kept=()):
    """Bytes that a rank sends in a step of stage 1, 2 or 3.

    A move of a flat sends n-1 shards.  There are two moves, and three in stage
    3, except for flats that are `kept` from forward to backward: the model's
    own.  All of them train.  ZeRO 2020, section 7.
    """
    moves = 3 if stage == 3 else 2
    each_way = sum(-(-size // n) for size in sizes)
    each_way_kept = sum(-(-size // n) for size in kept)
    return (n - 1) * itemsize * (moves * each_way + 2 * each_way_kept)


def held(model, optimizer):
    """The Memory that this rank really holds, each storage counted once."""
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
    """(what `forward()` returns, bytes that autograd keeps for backward).

    Each storage counts once, however many tensors look into it.  Those of the
    tensors in `owned` do not count: parameters are there anyway.
    """
    skipped = {id(x.untyped_storage()) for x in owned}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        if id(storage) not in skipped:
            storages[id(storage)] = storage  # alive, so its id is its own
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = forward()
    return out, sum(storage.nbytes() for storage in storages.values())
