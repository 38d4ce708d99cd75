"""Watches a rank's tensor operations: what they cost in time and in memory."""

import contextlib
import tracemalloc
import weakref

import torch
from torch.utils.flop_counter import flop_registry

from . import races
from .torch_private import (
    FakeTensor,
    TorchDispatchMode,
    carried_out,
    dense_parts,
    devices_as_they_are,
    is_dense,
    load_compiler,
    never_compiled,
    storage_id,
    tensors_in,
)

_LAYOUT_ONLY = ("empty", "new_empty", "detach", "alias")
ITEM = "_local_scalar_dense"  # what `x.item()` and `float(x)` execute: they wait
EMPTY = "empty"  # the name under which new memory without values is charged
# What they write they do not read.
_ONLY_WRITES = {"copy_", "zero_", "fill_", "normal_", "uniform_", "random_"}
_ATEN = torch.ops.aten
_USUAL = torch.Tensor.__torch_dispatch__  # of parameters, too
_FLASH = "_scaled_dot_product_flash_attention"
_OF_GPUS = {  # attention's kernels on the CPU: those on a GPU, whose FLOPs torch counts
    getattr(_ATEN, f"{_FLASH}_for_cpu{end}", None): getattr(_ATEN, _FLASH + end, None)
    for end in ("", "_backward")
}
_GROUPED = getattr(_ATEN, "_grouped_mm", None)  # torch counts no FLOPs of it
MOST_SHAPES = 10_000  # so many are remembered
_shapes = {}  # (operation, shapes of its arguments) -> shape of its result
_kinds = {}  # id of an operation -> (*what `_kind` says of it, the operation)


class Meter(TorchDispatchMode):
    """Charges `clock(name, flops, bytes, dtype)` and keeps the peak of live memory.

    Memory is that of storages which operations of this rank created; the arguments it
    was given are not counted, nor what an operation uses inside and frees again.
    Memory outside of tensors, such as arrays and lists, is counted where tracemalloc
    traces: between `resume` and `pause` all that is allocated is this rank's.
    """

    def __init__(self, charge=None, flying=None, raced=None, shapes=False):
        super().__init__()
        self.shapes = shapes  # of a run whose tensors have shapes alone
        self.charge = charge  # None: computing is free
        self.flying, self.raced = flying, raced  # calls by id; what tells of a race
        self.live = {}  # id of a storage -> [weak reference, bytes]
        self.bytes = self.peak = 0
        self.others = self.others_peak = 0  # bytes outside of tensors
        self.traces = tracemalloc.is_tracing()
        self.aside = 0  # operations in threads that the rank has started
        self.gpu = None  # the Shapes of a script whose GPUs hold no values

    before_shapes = True  # no operation on shapes alone was seen in this process
    supports_higher_order_operators = True  # each is one operation

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else the first operation imports the compiler, for seconds

    @never_compiled
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.gpu is None:
            return self._executed(func, types, args, kwargs)
        with devices_as_they_are():
            return self._executed(func, types, args, kwargs)

    @never_compiled
    def _executed(self, func, types, args, kwargs):
        if self.before_shapes and args and _without_values(args[0]):
            load_compiler()
            Meter.before_shapes = False
        if types:
            if FakeTensor in types:
                return func(*args, **(kwargs or {}))  # shapes only, nothing is computed
            if any(t.__torch_dispatch__ is not _USUAL for t in types):
                return NotImplemented  # a DTensor unwraps itself, then comes back here
        kind = _kinds.get(id(func))
        if kind is None:
            kind = _kinds[id(func)] = (*_kind(func), func)
        creates, _, uses, name, _ = kind
        if self.flying and uses:
            flying, given = self.flying.values(), (args, kwargs or {})
            while race := races.met(flying, uses, *given):
                self.raced(*race)  # raises, or has waited for the call
        if self.gpu and (known := self.gpu.known(name, args, kwargs or {})):
            if self.charge is not None:
                self.charge(ITEM, 0, 0, torch.float32)
            return known[0]
        if creates in ("fresh", "maybe") and args and _without_values(args[0]):
            how = _shaped if creates == "fresh" else carried_out
            out = how(func, args, kwargs or {})
        else:
            out = func(*args, **kwargs) if kwargs else func(*args)
        if self.gpu:
            costs = self.gpu.was_used(name, out, args, kwargs or {})
        else:
            planned = type(out) is FakeTensor  # by torch, from nothing
            costs = not planned and (self.shapes or not _without_values(out))
        if costs:
            self._account(func, kind, args, kwargs or {}, out)
        return out

    def _account(self, func, kind, args, kwargs, out):
        creates, costs, _, name, _ = kind
        if creates == "fresh" and is_dense(out):
            storage = out.untyped_storage()
            if storage._cdata not in self.live:
                self.add(storage, storage._cdata)
        elif creates:
            self._count(out, () if creates == "fresh" else args)
        if self.charge is not None:
            if costs:
                self._charge(func, name, args, kwargs, out)
            elif creates == "fresh" and is_dense(out):
                self.charge(EMPTY, 0, out.nbytes, out.dtype)

    def __enter__(self):
        self.resume()
        return super().__enter__()

    def __exit__(self, *error):
        self.pause()
        return super().__exit__(*error)

    @contextlib.contextmanager
    def beside(self):
        """Another thread of this rank is watched, too, while the rank runs or waits."""
        with _Aside(self):
            yield

    def resume(self):
        """This rank runs now."""
        if self.traces:
            tracemalloc.reset_peak()
            self.before = tracemalloc.get_traced_memory()[0]

    def pause(self):
        """Another rank runs from now on, or none."""
        if self.traces:
            now, peak = tracemalloc.get_traced_memory()
            self.others_peak = max(self.others_peak, self.others + peak - self.before)
            self.others += now - self.before

    def _count(self, out, args):
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            for part in dense_parts(tensor):
                storage = part.untyped_storage()
                key = storage._cdata
                if key not in self.live and key not in map(
                    storage_id, tensors_in(args)
                ):
                    self.add(storage, key)

    def add(self, storage, key):
        """Count this storage until it is freed."""

        def freed(_):
            entry = self.live.pop(key, None)
            if entry is not None:
                self.bytes -= entry[1]

        size = storage.nbytes()
        self.live[key] = [weakref.ref(storage, freed), size]
        self._grow(size)

    def resized(self, storage):
        """A storage that is counted has changed its size in place."""
        entry = self.live.get(storage._cdata)
        if entry is None:
            return
        change, entry[1] = storage.nbytes() - entry[1], storage.nbytes()
        self._grow(change)

    def _grow(self, size):
        self.bytes += size
        if self.bytes > self.peak:
            self.peak = self.bytes

    def _charge(self, func, name, args, kwargs, out):
        # what is only written, `out=...`, is among the arguments and the results
        given = [value for name, value in kwargs.items() if name != "out"]
        tensors = [*tensors_in((*args[name in _ONLY_WRITES :], *given, out))]
        if not tensors:
            return
        moved = sum(t.nbytes for t in tensors)
        plain = getattr(_ATEN, name[:-1], None) if name[-1] == "_" else None
        counted = plain or getattr(func, "_overloadpacket", func)
        counter = flop_registry.get(_OF_GPUS.get(counted, counted))
        if counter is not None:
            flops = int(counter(*args, **kwargs, out_val=out))
        elif counted is _GROUPED:  # the groups share the rows, or what is summed over
            a, b = args[:2]
            groups = len(a) if a.dim() > b.dim() else 1
            flops = 2 * a.numel() * b.shape[-1] // groups
        else:
            flops = sum(t.numel() for t in tensors_in((out,)))
        self.charge(name, flops, moved, tensors[0].dtype)


class _Aside(TorchDispatchMode):
    """What a thread beside the rank's own computes is the meter's, too."""

    _should_skip_dynamo = Meter._should_skip_dynamo
    supports_higher_order_operators = True

    def __init__(self, meter):
        super().__init__()
        self.meter = meter

    @never_compiled
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.meter.aside += 1
        return self.meter.__torch_dispatch__(func, types, args, kwargs)


def _without_values(value):
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and first.is_meta


def _shaped(func, args, kwargs):
    """What an operation on shapes alone returns: the first time torch finds out.

    Torch does so in Python, which takes ten times as long as to make the results.
    """
    try:
        key = func, _key(args), _key(kwargs.items())
        made = _shapes.get(key)
    except TypeError:  # something that cannot be compared
        return func(*args, **kwargs)
    if made is None:
        out = func(*args, **kwargs)
        several = isinstance(out, tuple)
        parts = out if several else (out,)
        if len(_shapes) < MOST_SHAPES and _are_new(parts, (*args, *kwargs.values())):
            shapes = [part if part is None else _shape(part) for part in parts]
            _shapes[key] = several, shapes
        return out
    several, shapes = made
    out = tuple(shape and torch.empty_strided(**shape) for shape in shapes)
    return out if several else out[0]


def _shape(tensor):
    about = {"size": tensor.shape, "stride": tensor.stride()}
    return about | {"dtype": tensor.dtype, "device": tensor.device}


def _key(values):
    """What the shape of a result can depend on."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise TypeError
            found += [value.shape, value.stride(), value.dtype, value.device.type]
        elif isinstance(value, (list, tuple)):
            found.append(_key(value))
        else:
            found += [type(value), value]
    return tuple(found)


def _are_new(parts, args):
    """Whether `empty_strided` would make the same: tensors with memory of their own."""
    tensors = [part for part in parts if part is not None]
    if not all(map(_is_plain, tensors)):
        return False
    others = [storage_id(t) for t in (*tensors, *tensors_in(args))]
    return all(others.count(storage_id(t)) == 1 for t in tensors)


def _is_plain(out):
    if type(out) is not torch.Tensor or not out.is_meta or not is_dense(out):
        return False
    if out.storage_offset() or out.is_conj() or out.is_neg():
        return False
    last = sum((n - 1) * step for n, step in zip(out.shape, out.stride(), strict=True))
    needed = (last + 1) * out.itemsize if out.numel() else 0
    return out.untyped_storage().nbytes() == needed


def _kind(func):
    """(creates, costs, uses, name): what an operation does, from its schema.

    creates     "fresh": its results are new memory; "maybe": unless they are an
                argument's; None: they are views, or its arguments
    """
    if not hasattr(func, "_schema"):  # made of others, such as flex_attention
        return ("fresh", True, [], func.__name__)
    space, name = func._schema.name.split("::")
    uses = races.touches(func), name
    if space in races.NO_DATA or name == "_unsafe_view":
        return ("maybe", False, *uses)
    if name == "lift_fresh":  # the last step of torch.tensor(...)
        return ("fresh", False, *uses)
    aliases = [ret.alias_info for ret in func._schema.returns]
    fresh = any(info is None for info in aliases)
    view = any(info is not None and not info.is_write for info in aliases)
    costs = not view and not name.startswith(_LAYOUT_ONLY)
    return ("fresh" if fresh else None, costs, *uses)
