"""What torch does otherwise with tensors of a GPU, for ranks whose GPUs are played.

Random DTensors are drawn as CUDA's generator draws them.  Its state is a seed and how
much was drawn.  Replicas draw the same numbers and shards different ones; before the
first draw all ranks take over the state of rank 0.

Optimizers and clipping hand whole lists of tensors to one call.  The numbers of an
optimizer's steps are on the host, which asks for them without waiting for the GPU.
"""

import contextlib
import math
import sys

import torch
import torch.distributed as dist

from ...report.engine import _OURS, _TORCH
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


def done_on_meshes():
    """What `patched` replaces where there are meshes: (module, name, new)."""
    from torch.distributed.tensor import _dispatch, _random

    yield _random, "_rng_tracker", lambda _: _Tracker()
    for module in (_random, _dispatch):
        yield module, "is_rng_supported_mesh", lambda _: lambda mesh: True


def done_on_gpus():
    """What it replaces where GPUs are played."""
    from torch.nn.attention import flex_attention
    from torch.utils import _foreach_utils

    lists = lambda usual: lambda: usual() + (["cpu", "meta"] if _played() else [])
    for module in (_foreach_utils, sys.modules[torch.optim.Optimizer.__module__]):
        yield module, "_get_foreach_kernels_supported_devices", lists
    checked = lambda usual: lambda *of: None if _played() else usual(*of)
    if hasattr(flex_attention, "_validate_device"):  # it allows none backward on a CPU
        yield flex_attention, "_validate_device", checked


def _played():
    engine = current_engine()
    return engine is not None and engine.gpus is not None and engine.gpus.used


def number_of_steps():
    """Is it an optimizer that asks for a value now, the number of its steps?"""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    code = frame.f_code
    return code.co_name == "_get_value" and code.co_filename.startswith(_TORCH)
