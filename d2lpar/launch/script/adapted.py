"""What a script asks for and a rank does in another way, or not at all.

Each says so in a sentence among the warnings of the run, where the script would notice.
"""

import atexit
import functools
import inspect
import linecache
import signal
import sys
import threading
from multiprocessing.process import BaseProcess
from unittest.mock import Mock

import torch
import torch.distributed as dist
import torch.distributed.rpc
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ...report.engine import _OURS, is_users
from ...sim.torch_private import done_on_gpus, done_on_meshes
from . import played_cuda
from .streams import mine

JOINS = "init_process_group"  # what a process calls that is to be a rank

COMPILE = "torch.compile is left out: operations follow each other, and none is fused."
WORKERS = (
    "A DataLoader with num_workers > 0 loads in its rank, without processes of its own."
)
SIGNALS = "signal.signal has no effect: ranks that are threads receive no signals."
RPC = (
    "torch.distributed.rpc opens connections of its own, and ranks have none of them: "
    "run this script with torchrun."
)
SPAWN = "{} starts nothing: every rank is there and calls its own part."


def in_ranks(change):
    """`change(gpus, usual, ...)` in ranks of a script, elsewhere the usual function."""

    def make(usual):
        @functools.wraps(usual)
        def either(*args, **kwargs):
            gpus = mine()
            if gpus is None:
                return usual(*args, **kwargs)
            return change(gpus, usual, *args, **kwargs)

        return either

    return make


def _argument(name):
    """A change of one argument, a device, that becomes the host."""

    def change(gpus, usual, *args, **kwargs):
        bound = inspect.signature(usual).bind(*args, **kwargs)
        if name in bound.arguments:
            mapped = gpus.host(kind := bound.arguments[name])
            bound.arguments[name] = str(mapped) if isinstance(kind, str) else mapped
        return usual(*bound.args, **bound.kwargs)

    return change


def _autocast(gpus, usual, self, device_type="cuda", dtype=None, *args, **kwargs):
    if device_type == "cuda" and dtype is None:
        dtype = torch.float16  # that of a GPU
    played = gpus.named(device_type) is not None
    usual(self, "cpu" if played else device_type, dtype, *args, **kwargs)
    if played and gpus.shapes is not None:
        self.device = device_type


def _module_to(gpus, usual, self, *args, **kwargs):
    place = gpus.host
    if gpus.shapes is not None:  # its tensors are asked one by one
        place = lambda each: f"cuda:{each}" if type(each) is int else each
    named = {name: place(value) for name, value in kwargs.items()}
    return usual(self, *map(place, args), **named)


def _mesh(gpus, usual, self, device_type, *args, **kwargs):
    gpus.modules.also(done_on_meshes)  # whose import takes longer than all else
    if device_type == "cuda" and not gpus.used:  # torch takes the rank's own, too
        gpus.choose(gpus.engine.rank % gpus.count)
    if device_type == "cuda" and gpus.shapes is None:
        device_type = "cpu"
    usual(self, device_type, *args, **kwargs)


def _ddp(gpus, usual, self, module, device_ids=None, output_device=None, *more, **kw):
    for device in device_ids or ():
        gpus.named(device)
    usual(self, module, None, None, *more, **kw)
    gpus.replicas.add(self)
    if gpus.shapes is not None:  # its times are told for the CPU and CUDA alone
        self.logger = Mock()


_OF_PROCESSES = "num_workers", "prefetch_factor", "persistent_workers", "timeout"
_OF_PROCESSES += "multiprocessing_context", "pin_memory", "pin_memory_device"


def _loader(gpus, usual, self, *args, **kwargs):
    bound = inspect.signature(usual).bind(self, *args, **kwargs)
    if bound.arguments.get("num_workers"):
        gpus.engine.warn(WORKERS)
    for name in _OF_PROCESSES:
        bound.arguments.pop(name, None)
    usual(*bound.args, **bound.kwargs)


def _compile(gpus, usual, model=None, **options):
    gpus.engine.warn(COMPILE)
    return model if model is not None else lambda function: function


def _compile_module(gpus, usual, self, *args, **kwargs):
    gpus.engine.warn(COMPILE)


def _signal(gpus, usual, number, handler):
    if threading.current_thread() is threading.main_thread():
        return usual(number, handler)
    gpus.engine.warn(SIGNALS)
    return signal.getsignal(number)


def _backward(gpus, usual, *args, **kwargs):
    """Inside of a backward pass a GPU is on the host, too: torch leaves modes out."""
    with gpus.mode(gpus):
        return usual(*args, **kwargs)


def _hooks(gpus, usual, self, pack_hook, unpack_hook):
    """Nor are there modes where an operation saves a tensor, as in a checkpoint."""
    usual(self, functools.partial(_backward, gpus, pack_hook), unpack_hook)


def _seed(gpus, usual, seed):
    gpus.seeded(seed)
    return usual(seed)


def _spawn(gpus, usual, fn, args=(), nprocs=1, *more, **kwargs):
    _one_each(gpus, "mp.spawn", nprocs)
    fn(gpus.engine.rank, *args)


def _one_each(gpus, name, count):
    """Note that each rank takes the place of one of so many processes of its own."""
    n = gpus.engine.world_size
    if count != n:
        raise RuntimeError(
            f"{name} starts {count} processes inside simulate, which runs {n} ranks: "
            f"give simulate -n {count}"
        )
    gpus.engine.warn(SPAWN.format(name))


def _start(gpus, usual, self):
    """A process that is to join the group, as in PyTorch's tutorial, waits for join."""
    code = getattr(self._target, "__code__", None)
    text = "".join(linecache.getlines(code.co_filename)) if code else ""
    caller = sys._getframe(2)
    while caller.f_code.co_filename.startswith(_OURS):  # it notes what ranks start
        caller = caller.f_back
    users = is_users(caller.f_code.co_filename)
    if users and not dist.is_initialized() and JOINS in text:
        gpus.processes.append(self)
    else:
        usual(self)


def _join(gpus, usual, self, timeout=None):
    """With the first of them, the rank takes the place of that of its own number."""
    if self not in gpus.processes:
        return usual(self, timeout)
    if self is gpus.processes[0]:
        _one_each(gpus, "Process", len(gpus.processes))
        gpus.processes[gpus.engine.rank].run()


class _Generators(type):
    """The class that a script finds as `torch.Generator`: those of GPUs are the host's.

    It is a class still, so that torch can ask what a generator is.
    """

    def __call__(cls, device="cpu"):
        gpus = mine()
        played = gpus is not None and gpus.named(device) is not None
        return _Generator("cpu" if played else device)

    def __instancecheck__(cls, value):
        return isinstance(value, _Generator)


_Generator = torch.Generator


class PlayedGenerator(metaclass=_Generators):
    """`torch.Generator("cuda")` draws on the host."""


def _rpc(gpus, usual, *args, **kwargs):
    raise RuntimeError(RPC)


def _at_exit(gpus, function, *args, **kwargs):
    gpus.at_exit.append(functools.partial(function, *args, **kwargs))
    return function


def changes():
    """What `patched` replaces: (holder, name, new)."""
    module = torch.nn.Module
    table = [
        (torch, "compile", _compile),
        (module, "compile", _compile_module),
        *((holder, "manual_seed", _seed) for holder in (torch, torch.random)),
        (module, "to", _module_to),
        (torch, "load", _argument("map_location")),
        (torch, "set_default_device", _argument("device")),
        (torch.amp.autocast_mode.autocast, "__init__", _autocast),
        (torch.amp.GradScaler, "__init__", _argument("device")),
        (DeviceMesh, "__init__", _mesh),
        (DistributedDataParallel, "__init__", _ddp),
        (DataLoader, "__init__", _loader),
        (signal, "signal", _signal),
        (torch.autograd, "_engine_run_backward", _backward),
        (torch.autograd.graph.saved_tensors_hooks, "__init__", _hooks),
        (torch.distributed.rpc, "init_rpc", _rpc),
        (torch.multiprocessing, "spawn", _spawn),
        (BaseProcess, "start", _start),
        (BaseProcess, "join", _join),
    ]
    yield from played_cuda.changes()
    yield from done_on_gpus()
    yield torch, "Generator", lambda _: PlayedGenerator
    yield atexit, "register", played_cuda.instead(_at_exit, to_the_script=True)
    for holder, name, change in table:
        if hasattr(holder, name):  # there are builds of torch without RPC
            yield holder, name, in_ranks(change)
