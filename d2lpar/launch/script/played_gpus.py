"""One GPU per rank, as far as a script can tell; the rank computes on the host.

The script sees as many GPUs as its node has ranks.  A device "cuda" of a call means
the host; what `torch.cuda` answers is in `played_cuda`.
"""

import contextlib
import sys
from collections import Counter
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from ...report.engine import _TORCH, where_called
from ...sim.hardware import PROCESSORS
from .replicas import Replicas
from .streams import CPU, Stream

SEED = 67280421310721  # of a generator that nobody has seeded
MEMORY = 80e9  # bytes of a GPU that the cluster does not describe
_GENERATIONS = {"P100": (6, 0), "V100": (7, 0), "T4": (7, 5), "L4": (8, 9)}
_GENERATIONS |= {"4090": (8, 9), "H100": (9, 0), "H200": (9, 0), "B200": (10, 0)}


class PlayedGpus:
    """The GPUs of a rank's node: `current` is the rank's, `used` what it has named."""

    def __init__(self, engine, modules):
        self.engine, cluster, self.modules = engine, engine.cluster, modules
        self.place, self.shapes, self.mode = CPU, None, OnHost
        per_node = cluster.per_node if cluster else None
        self.count = min(per_node or engine.world_size, engine.world_size)
        self.current, self.used = 0, set()
        self._peak = 0  # bytes, until the script has last forgotten them
        self.replicas = Replicas()
        self.marks = []  # where its optimizers have stepped, see d2lpar.cli.steps
        self.looked_up = Counter()  # of each table of embeddings, to learn from
        self.processes = []  # that the script would start as ranks
        self.at_exit = []  # what the script wants to be called at its end
        self.gpu = cluster.gpu if cluster else None
        self.main = self.stream = Stream()
        self.latest = 0.0  # when all other streams have done what they were asked for
        self.drawn = [SEED, 0]  # its generator: seed, numbers
        self.draws_agree = False  # of all ranks, for DTensors

    def without_values(self, shapes, mode):
        """From now on the GPU holds what `shapes` knows, inside of such a mode."""
        self.place, self.shapes, self.mode = torch.device("meta"), shapes, mode
        self.engine.meter.gpu = shapes

    def host(self, device):
        """What a call gets in place of `device`, if that is a GPU; else the same."""
        return device if self.named(device) is None else self.place

    def named(self, device):
        """The number of the GPU that `device` names and that is now used, or None."""
        if isinstance(device, int) and not isinstance(device, bool):
            device = f"cuda:{device}"
        if not isinstance(device, str | torch.device):
            return None
        kind, _, index = str(device).partition(":")
        if kind != "cuda":
            return None
        index = int(index or self.current)
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
    def on_stream(self, stream):
        """Inside, the rank asks its GPU in this stream."""
        before = self.switch(stream or self.stream)
        try:
            yield stream
        finally:
            self.switch(before)

    def switch(self, stream):
        """From now on the GPU is asked in this stream; gives the one before.

        Each stream has a clock of its own.  What it is asked for begins when the host
        has asked and the stream is free, whatever others still do.
        """
        before, engine, self.stream = self.stream, self.engine, stream
        if engine.clock is not None and stream is not before:
            before.clock, engine.clock = engine.clock, stream.clock
            engine.beside = stream is not self.main
            if engine.beside:
                engine.clock = max(stream.clock, engine.host)
            if before is not self.main:
                self.latest = max(self.latest, before.clock)
        return before

    def postpones(self, work):
        """Does the stream wait for this call, and the rank go on?"""
        if self.stream is self.main or not self.plays_nccl():
            return False
        self.stream.calls = {*self.in_flight(self.stream), work.call.id}
        return True

    def in_flight(self, stream):
        """The ids of calls that a stream, or an event, waits for and the rank not."""
        return stream.calls & self.engine.open.keys()

    def follow(self, stream, other):
        """The stream goes on after the other one, or after an event."""
        moment = self.moment(other)
        with self.on_stream(stream):
            for number in sorted(self.in_flight(other)):
                if stream is self.main:
                    self.engine.wait(self.engine.open[number])
                else:
                    stream.calls.add(number)
            if self.engine.clock is not None:
                self.engine.reach(moment, where_called())

    def catch_up(self, other=None):
        """The host waits for a stream or an event, or for all that the GPU does."""
        with self.on_stream(self.main):
            if other is not None:
                self.follow(self.main, other)
            elif self.engine.clock is not None:
                self.engine.reach(self.latest, where_called())
            self.engine.caught_up()

    def in_order(self, call):
        """Does the rank's stream use what the call does after it?"""
        return call.id in self.stream.calls

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
            multi_processor_count=figure(PROCESSORS, 108),
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

    def seeded(self, seed):
        """The GPU's generator begins anew."""
        self.drawn = [int(seed) % 2**63, 0]

    def plays_nccl(self):
        """Has the script named NCCL, or nothing, which is the same here?"""
        return "nccl" in (self.engine.asked or "nccl")

    def settle(self):
        """The rank's peak is that of the whole run, which ends when all streams do."""
        if self.engine.clock is not None:
            self.engine.clock = max(self.engine.clock, self.latest)
        if self._peak:
            self.engine.meter.peak = max(self.engine.meter.peak, self._peak)

    def moment(self, of):
        """Seconds until a stream has done all that it was asked, or an event was."""
        clock = self.engine.clock
        if clock is None:
            return self.engine.now()
        return clock if of is self.stream else of.clock or 0.0


class OnHost(TorchFunctionMode):
    """Inside, tensors for a GPU are on the host, and `cpu()` copies as from a GPU."""

    special = {}  # functions -> what they do instead

    def __init__(self, gpus):
        super().__init__()
        self.gpus = gpus

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.gpus.host(kwargs["device"])}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        special = self.special.get(func)
        if special is not None:
            return special(self.gpus, func, *args, **kwargs)
        return func(*args, **kwargs)


def _to(gpus, func, tensor, *args, **kwargs):
    moved = tuple(gpus.host(arg) for arg in args[:1]) + args[1:]
    if gpus.shapes is not None and moved and moved[0] is not args[0]:
        gpus.shapes.moves(tensor)
    out = func(tensor, *moved, **kwargs)
    back = out is tensor and args and moved[0] is args[0] and str(args[0]) == "cpu"
    caller = sys._getframe(2).f_code.co_filename
    return out.clone() if back and not caller.startswith(_TORCH) else out


def _cuda(gpus, func, tensor, device=None, *args, **kwargs):
    device = torch.device("cuda", gpus.current) if device is None else device
    return _to(gpus, torch.Tensor.to, tensor, device)


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


def _embedding(gpus, func, indices, table, *args, **kwargs):
    ranks = getattr(table, "device_mesh", None)  # that share these tokens
    tokens = indices.numel() / (ranks.size() if ranks else 1)
    gpus.looked_up[id(table)] += tokens * torch.is_grad_enabled()
    return func(indices, table, *args, **kwargs)


def _device(gpus, func, *args, **kwargs):
    if args and type(args[0]) is int:
        args = ("cuda", *args)  # torch finds no GPU whose number it could be
    return func(*args, **kwargs)


OnHost.special |= {
    torch.device: _device,
    torch.nn.functional.embedding: _embedding,
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.pin_memory: lambda gpus, func, tensor, *_, **__: tensor,
}
