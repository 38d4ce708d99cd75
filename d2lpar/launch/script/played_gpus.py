"""One GPU per rank, as far as a script can tell; the rank computes on the host.

The script sees as many GPUs as its node has ranks.  A device "cuda" of a call means
the host, and `torch.cuda` answers from the simulated cluster: memory from what the rank
holds, events and clocks from its virtual time.  Torch, which would call CUDA, sees no
GPU.  What is not played raises torch's own error.
"""

import contextlib
import functools
import sys
from types import SimpleNamespace

import torch
import torch.distributed.distributed_c10d as c10d
from torch.overrides import TorchFunctionMode

from ...report.engine import _OURS, _TORCH
from ...sim.patching import in_both
from ...sim.torch_private import AllOf, current_engine

CPU = torch.device("cpu")
_WITHOUT = _OURS, _TORCH  # the folders whose code sees no GPU
MEMORY = 80e9  # bytes of a GPU that the cluster does not describe
_GENERATIONS = {"P100": (6, 0), "V100": (7, 0), "T4": (7, 5), "L4": (8, 9)}
_GENERATIONS |= {"4090": (8, 9), "H100": (9, 0), "H200": (9, 0), "B200": (10, 0)}
_PROCESSORS = {"P100": 56, "V100": 80, "T4": 40, "L4": 58, "4090": 128, "A100": 108}
_PROCESSORS |= {"H100": 132, "H200": 132, "B200": 148}  # NVIDIA's data sheets


class PlayedGpus:
    """The GPUs of a rank's node: `current` is the rank's, `used` what it has named."""

    def __init__(self, engine):
        self.engine, cluster = engine, engine.cluster
        per_node = cluster.per_node if cluster else None
        self.count = min(per_node or engine.world_size, engine.world_size)
        self.current, self.used = 0, set()
        self._peak = 0  # bytes, until the script has last forgotten them
        self.marks = []  # where its optimizers have stepped, see d2lpar.cli.steps
        self.processes = []  # that the script would start as ranks
        self.at_exit = []  # what the script wants to be called at its end
        self.gpu = cluster.gpu if cluster else None

    def host(self, device):
        """What a call gets in place of `device`: the CPU for a GPU, else the same."""
        return device if self.named(device) is None else CPU

    def named(self, device):
        """The number of the GPU that `device` names and that is now used, or None."""
        if isinstance(device, bool | None):
            return None
        if isinstance(device, int):
            index = device
        elif isinstance(device, str | torch.device):
            kind, _, index = str(device).partition(":")
            if kind != "cuda":
                return None
            index = int(index or self.current)
        else:
            return None
        if not 0 <= index < self.count:
            raise RuntimeError(
                f"there is no GPU cuda:{index} here: a node has {self.count}, and "
                "LOCAL_RANK is the number of this rank's"
            )
        self.used.add(index)
        return index

    def choose(self, device):
        """The GPU is the rank's own from now on; gives the one it had before."""
        before, index = self.current, self.named(device)
        self.current = before if index is None else index
        return before

    @contextlib.contextmanager
    def chosen(self, device):
        """Inside, the GPU is the rank's own."""
        before = self.choose(device)
        try:
            yield
        finally:
            self.current = before

    def about(self, device=None):
        """What `torch.cuda.get_device_properties` says."""
        figure = self.gpu.figure if self.gpu else lambda table, usual: usual
        major, minor = figure(_GENERATIONS, (8, 0))
        return SimpleNamespace(
            name=f"NVIDIA {self.gpu.name}" if self.gpu else "simulated GPU",
            total_memory=int(self.gpu.memory if self.gpu else MEMORY),
            major=major,
            minor=minor,
            multi_processor_count=figure(_PROCESSORS, 108),
        )

    def memory(self, which):
        """Bytes that the rank's tensors hold now, or at most; 0 where not counted."""
        return getattr(getattr(self.engine, "meter", None), which, 0)

    def forget_peak(self, device=None):
        """The script's peak counts from here; that of the run stays what it was."""
        meter = getattr(self.engine, "meter", None)
        if meter is not None:
            self._peak = max(self._peak, meter.peak)
            meter.peak = meter.bytes

    def plays_nccl(self):
        """Has the script named NCCL, or nothing, which is the same here?"""
        return "nccl" in (self.engine.asked or "nccl")

    def settle(self):
        """The rank's peak is that of the whole run."""
        if self._peak:
            self.engine.meter.peak = max(self.engine.meter.peak, self._peak)

    def moment(self):
        """The time when the device has done all that it was asked for, in seconds."""
        clock = getattr(self.engine, "clock", None)
        return self.engine.now() if clock is None else clock


def stepped(optimizer, args, kwargs):
    """An optimizer of this rank has made a step; torch calls it."""
    if gpus := mine():
        mark = id(optimizer), gpus.moment(), len(gpus.engine.entries)
        gpus.marks.append(mark)


def mine():
    """The PlayedGpus of the rank that calls, or None outside of a script."""
    engine = current_engine()
    return engine and engine.gpus


class OnHost(TorchFunctionMode):
    """Inside, tensors for a GPU are on the host, and `cpu()` copies as from a GPU."""

    def __init__(self, gpus):
        super().__init__()
        self.gpus = gpus

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.gpus.host(kwargs["device"])}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self.gpus, func, *args, **kwargs)
        return func(*args, **kwargs)


def _to(gpus, func, tensor, *args, **kwargs):
    moved = tuple(gpus.host(arg) for arg in args[:1]) + args[1:]
    out = func(tensor, *moved, **kwargs)
    back = args and moved[0] is args[0] and str(args[0]) == "cpu"
    return out.clone() if back and out is tensor else out


def _cuda(gpus, func, tensor, device=None, *args, **kwargs):
    gpus.named(torch.device("cuda", gpus.current) if device is None else device)
    return tensor


def _cpu(gpus, func, tensor, *args, **kwargs):
    out = func(tensor, *args, **kwargs)
    return out.clone() if out is tensor else out


def _attention(gpus, func, query, key, value, *args, **kwargs):
    """Each rank's heads on their own: on the host torch knows no attention of DTensors.

    So it is on GPUs, where batch and heads may be split, and nothing else.
    """
    layout = getattr(query, "placements", None)
    if layout is None or any(p.is_shard() and p.dim > 1 for p in layout):
        return func(query, key, value, *args, **kwargs)
    local = (x.redistribute(placements=layout).to_local() for x in (query, key, value))
    out = func(*local, *args, **kwargs)
    return type(query).from_local(out, query.device_mesh, layout)


def _device(gpus, func, *args, **kwargs):
    if args and type(args[0]) is int:
        args = ("cuda", *args)  # torch finds no GPU whose number it could be
    return func(*args, **kwargs)


_SPECIAL = {torch.device: _device}
_SPECIAL |= {torch.nn.functional.scaled_dot_product_attention: _attention}
_SPECIAL |= {torch.Tensor.to: _to, torch.Tensor.cuda: _cuda, torch.Tensor.cpu: _cpu}
_SPECIAL |= {torch.Tensor.pin_memory: lambda gpus, func, tensor, *_, **__: tensor}


class Event:
    """`torch.cuda.Event`, on the rank's clock."""

    def __init__(self, *args, **kwargs):
        self._moment = None

    def record(self, stream=None):
        self._moment = mine().moment()

    def elapsed_time(self, other):
        """Milliseconds from this event to the other."""
        return (other._moment - self._moment) * 1e3

    def query(self):
        return True

    def wait(self, stream=None):
        """Nothing: a rank has one stream of its own."""

    def synchronize(self):
        mine().engine.caught_up()


class Stream:
    """`torch.cuda.Stream`: all of a rank's streams are the same one."""

    cuda_stream = 0

    def __init__(self, *args, **kwargs):
        self.device = CPU

    def wait_stream(self, stream):
        """Nothing: both are one."""

    wait_event = wait_stream

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def query(self):
        return True

    def synchronize(self):
        mine().engine.caught_up()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def _nothing(gpus, *args, **kwargs):
    return None


def _synchronize(gpus, device=None):
    """The GPU has done all that it was asked for, and NCCL's calls are part of it."""
    if gpus.plays_nccl():
        gpus.engine.wait_for_all()
    gpus.engine.caught_up()


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
    "stream": lambda gpus, stream: contextlib.nullcontext(stream),
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
_STREAMS = "current_stream", "default_stream"
_PLAYED |= dict.fromkeys(_STREAMS, lambda gpus, *_, **__: Stream())
_INDEX = "current_device", "current_device_index", "current_device_idx"
_PLAYED |= dict.fromkeys(_INDEX, lambda gpus: gpus.current)
_IGNORED = "empty_cache", "empty_host_cache", "ipc_collect", "init", "manual_seed"
_IGNORED += "manual_seed_all", "set_stream", "reset_accumulated_memory_stats"
_IGNORED += "range_push", "range_pop", "mark"
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
    yield from in_both(torch.distributed, c10d, batch_isend_irecv=_one_work)
    yield torch.Tensor, "record_stream", instead(_nothing, to_the_script=False)
    for name, played in _CLASSES.items():
        yield torch.cuda, name, lambda _, played=played: played


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
