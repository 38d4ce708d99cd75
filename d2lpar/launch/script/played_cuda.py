"""What a script hears from `torch.cuda`, out of the simulated cluster.

Memory is what the rank holds, events and clocks have its virtual time.  Torch, which
would call CUDA, sees no GPU.  What is not played raises torch's own error.
"""

import functools
import sys

import torch
import torch.distributed.distributed_c10d as c10d

from ...report.engine import _OURS, _TORCH
from ...sim.patching import in_both
from ...sim.torch_private import AllOf
from .played_gpus import PlayedGpus
from .streams import Event, Stream, mine

_WITHOUT = _OURS, _TORCH  # the folders whose code sees no GPU


def _nothing(gpus, *args, **kwargs):
    return None


def _synchronize(gpus, device=None):
    """The GPU has done all that it was asked for, and NCCL's calls are part of it."""
    if gpus.plays_nccl():
        gpus.engine.wait_for_all()
    gpus.catch_up()


def _one_work(usual):
    """`batch_isend_irecv` of NCCL gives one Work for all of its messages."""

    @functools.wraps(usual)
    def batch_isend_irecv(p2p_op_list):
        works, gpus = usual(p2p_op_list), mine()
        one = gpus is not None and gpus.plays_nccl()
        return [AllOf(works)] if one else works

    return batch_isend_irecv


def _free(gpus, device=None):
    whole = gpus.about().total_memory
    return whole - gpus.memory("bytes"), whole


def _statistics(gpus, device=None):
    """The keys that scripts read of `torch.cuda.memory_stats`."""
    now, peak = gpus.memory("bytes"), gpus.memory("peak")
    found = {"num_alloc_retries": 0, "num_ooms": 0}
    for what in ("allocated", "active", "reserved"):
        found[f"{what}_bytes.all.current"] = now
        found[f"{what}_bytes.all.peak"] = peak
    return found


def _capability(gpus, device=None):
    about = gpus.about()
    return about.major, about.minor


# What the script itself is told; torch, which would go on and call CUDA, is not.
_TOLD = {
    "is_available": lambda gpus: True,
    "device_count": lambda gpus: gpus.count,
    "is_initialized": lambda gpus: True,
    "is_bf16_supported": lambda gpus, *_: _capability(gpus) >= (8, 0),
    "current_accelerator": lambda gpus, *_: torch.device("cuda"),
}
_TOLD_OF_GROUPS = {
    "get_backend": lambda gpus, group=None: gpus.engine.asked or "nccl",
    "get_default_backend_for_device": lambda gpus, device: "nccl",
}
_PLAYED = {
    "device": PlayedGpus.chosen,
    "device_index": PlayedGpus.chosen,
    "synchronize": _synchronize,
    "get_device_properties": PlayedGpus.about,
    "get_device_name": lambda gpus, device=None: gpus.about().name,
    "get_device_capability": _capability,
    "mem_get_info": _free,
    "get_memory_info": _free,
    "memory_summary": lambda gpus, *_, **__: f"{gpus.memory('bytes'):,} bytes",
    "memory_stats": _statistics,
    "initial_seed": lambda gpus: torch.initial_seed(),
    "stream": PlayedGpus.on_stream,
    "set_stream": lambda gpus, stream: gpus.switch(stream) and None,
    "current_stream": lambda gpus, *_, **__: gpus.stream,
    "default_stream": lambda gpus, *_, **__: gpus.main,
    "get_rng_state": lambda gpus, device=None: torch.get_rng_state(),
    "set_rng_state": lambda gpus, state, device=None: torch.set_rng_state(state),
    "version": lambda gpus: (0, 0, 0),  # NCCL's
    "is_current_stream_capturing": lambda gpus: False,
}
_CHOOSES = "set_device", "set_device_index", "set_device_idx"
_PLAYED |= dict.fromkeys(_CHOOSES, lambda gpus, device: gpus.choose(device) and None)
for what in ("allocated", "reserved"):
    _PLAYED[f"memory_{what}"] = lambda gpus, device=None: gpus.memory("bytes")
    _PLAYED[f"max_memory_{what}"] = lambda gpus, device=None: gpus.memory("peak")
_RESETS = "reset_peak_memory_stats", "reset_max_memory_allocated"
_PLAYED |= dict.fromkeys(_RESETS, PlayedGpus.forget_peak)
_INDEX = "current_device", "current_device_index", "current_device_idx"
_PLAYED |= dict.fromkeys(_INDEX, lambda gpus: gpus.current)
_PLAYED |= dict.fromkeys(("manual_seed", "manual_seed_all"), PlayedGpus.seeded)
_IGNORED = "empty_cache", "empty_host_cache", "ipc_collect", "init"
_IGNORED += "reset_accumulated_memory_stats", "range_push", "range_pop", "mark"
_PLAYED |= dict.fromkeys(_IGNORED, _nothing)
_CLASSES = {"Event": Event, "Stream": Stream}


def changes():
    """What `patched` replaces in torch: (holder, name, new)."""
    holders = [torch.cuda, torch.cuda.nvtx, torch.cuda.nccl]
    for holder in [*holders, torch.accelerator]:
        for name, function in (_TOLD | _PLAYED).items():
            if callable(vars(holder).get(name)):
                yield holder, name, instead(function, name in _TOLD)
    for name, function in _TOLD_OF_GROUPS.items():
        yield torch.distributed, name, instead(function, to_the_script=True)
    for name in ("stream", "current_stream"):  # fully_shard is on the host
        yield torch.cpu, name, instead(_PLAYED[name], to_the_script=False)
    yield from in_both(torch.distributed, c10d, batch_isend_irecv=_one_work)
    yield torch.Tensor, "record_stream", instead(_nothing, to_the_script=False)
    for name, played in _CLASSES.items():
        for holder in (torch.cuda, torch.cpu):
            yield holder, name, lambda _, played=played: played


def instead(function, to_the_script):
    """Makes of a function one that ranks, or their code but torch's, find replaced."""

    def make(usual):
        @functools.wraps(usual, updated=())
        def either(*args, **kwargs):
            gpus = mine()
            caller = sys._getframe(1).f_code.co_filename
            if gpus is None or (to_the_script and caller.startswith(_WITHOUT)):
                return usual(*args, **kwargs)
            return function(gpus, *args, **kwargs)

        return either

    return make
