"""Random DTensors of ranks whose GPUs are played, as CUDA's generator draws them.

Its state is a seed and how much was drawn.  Replicas draw the same numbers and shards
different ones; before the first draw all ranks take over the state of rank 0.
"""

import contextlib
import math

import torch
import torch.distributed as dist

from .here import current_engine


class _Tracker:
    """What torch asks before it draws the numbers of a DTensor."""

    distribute_region_enabled = True

    @contextlib.contextmanager
    def _distribute_region(self, spec, generator=None):
        gpus, shard = current_engine().gpus, 0
        if not gpus.draws_agree:
            state = torch.tensor(gpus.drawn)
            dist.broadcast(state, 0)
            gpus.drawn, gpus.draws_agree = state.tolist(), True
        for axis, placement in enumerate(spec.placements):
            if placement.is_shard():
                shard = shard * spec.mesh.size(axis) + spec.mesh.get_local_rank(axis)
        start = tuple(gpus.drawn)
        if generator is not None:
            start = torch.randint(2**62, (2,), generator=generator).tolist()
        else:
            gpus.drawn[1] += math.prod(spec.shape)
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(hash((*start, shard)) % 2**63)
            yield


def draws_of_dtensors():
    """What `patched` replaces where GPUs are played: (module, name, new)."""
    from torch.distributed.tensor import _dispatch, _random

    yield _random, "_rng_tracker", lambda _: _Tracker()
    for module in (_random, _dispatch):
        yield module, "is_rng_supported_mesh", lambda _: lambda mesh: True
