"""Copies of functions, arguments and results that share nothing with the original.

The same bytes serve every world, so that a rank that is a thread gets what a rank
that is a process gets.  A function travels with the globals it uses; a function of an
imported module of the user's own travels by value too, so that its globals are not
shared.  Tensors travel with their storage: views and tied weights stay tied.
"""

import io
import os
import pickle
import random
import sys
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from .by_value import Pickler, Unpacker, is_copy, users_modules

# the generators whose methods `from random import ...` and numpy's twin give
_RANDOM = {id(random._inst): random, id(np.random.mtrand._rand): np.random}


class _Packer(Pickler):
    """Writes objects; tensors with their storage, functions and classes by value."""

    def __init__(self, file, protocol=pickle.HIGHEST_PROTOCOL):
        super().__init__(file, protocol=protocol)
        self._storages = {}

    def reducer_override(self, obj):
        home = _RANDOM.get(id(getattr(obj, "__self__", None)))
        if home is not None and hasattr(home, getattr(obj, "__name__", "")):
            return getattr, (home, obj.__name__)  # the rank's own generator, seeded
        if obj is os.environ:
            return getattr, (os, "environ")
        if isinstance(obj, ModuleType) and obj.__name__ not in sys.modules:
            parent, _, name = obj.__name__.rpartition(".")
            if getattr(sys.modules.get(parent), name, None) is obj:
                return getattr, (sys.modules[parent], name)  # torch._C._functions
        if type(obj) is torch.Tensor or type(obj) is torch.nn.Parameter:
            if obj.layout is torch.strided and obj.device.type in ("cpu", "cuda"):
                return self._tensor(obj)
        return super().reducer_override(obj)

    def _tensor(self, tensor):
        if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        storage = tensor.untyped_storage()
        held = self._storages.setdefault(storage._cdata, _Storage(storage))
        view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        kind = (tensor.dtype, type(tensor) is torch.nn.Parameter)
        grad = tensor.grad if tensor.is_leaf else None
        leaf = tensor.requires_grad and tensor.is_leaf
        return _rebuild, (held, *view, *kind, leaf, grad)


class _Storage:
    """The memory of tensors, pickled once however many views there are."""

    def __init__(self, storage):
        self.storage = storage

    def __reduce__(self):
        device = self.storage.device.type
        flat = torch.empty(0, dtype=torch.uint8, device=device).set_(self.storage)
        return _Memory, (flat.cpu().numpy().tobytes(),)


def _home():
    """Where memory arrives: on this rank's GPU, or on the CPU where it has none.

    So what a cell made on the CPU and what a rank makes meet on one device.
    """
    device = torch.get_default_device()
    return device if device.type == "cuda" else torch.device("cpu")


class _Memory:
    """The other end of `_Storage`."""

    def __init__(self, data):
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else None
        with torch.device("cpu"):
            flat = torch.empty(0, dtype=torch.uint8) if flat is None else flat
        self.storage = flat.to(_home()).untyped_storage()


def _rebuild(memory, offset, shape, stride, dtype, is_parameter, requires_grad, grad):
    device = memory.storage.device
    tensor = torch.empty(0, dtype=dtype, device=device)
    tensor.set_(memory.storage, offset, shape, stride)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad)
    elif requires_grad:
        tensor.requires_grad_()
    if grad is not None:
        tensor.grad = grad
    return tensor


_NOT_COPIED = "every rank has its own copy of all that goes in and out"


def pack(obj, *functions):
    """`obj` as bytes; `functions` are those of the user in it.

    Raises TypeError with one sentence where something in it cannot be copied.
    """
    file = io.BytesIO()
    try:
        with users_modules(functions):
            _Packer(file).dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise TypeError(f"{reason} ({_NOT_COPIED})") from error
    return file.getvalue()


class Packed(NamedTuple):
    """What a rank returned: the name of its type, and the bytes of `pack`."""

    kind: str
    data: bytes


def pack_result(value):
    """What a rank returned, `Packed`, with its tensors detached and on the CPU.

    Raises TypeError with one sentence where it cannot be copied.
    """
    try:
        return Packed(type(value).__qualname__, pack(tidy(value)))
    except RecursionError:
        raise TypeError("what the rank returned contains itself") from None
    except TypeError as error:
        raise TypeError(f"what the rank returned cannot be copied: {error}") from error


def unpack(data):
    """The object of `pack`, sharing nothing with the original."""
    return Unpacker(io.BytesIO(data)).load()


def as_callers(error):
    """An exception of a rank, of the caller's class if a cell defines its class."""
    if not is_copy(type(error)):
        return error
    try:
        return unpack(pack(error)).with_traceback(error.__traceback__)
    except Exception:  # one that cannot be copied stays what it is
        return error


def tidy(value):
    """A result with every tensor in lists, tuples and dicts detached and on the CPU."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.cpu() if value.device.type == "cuda" else value
    if type(value) in (list, set):
        return type(value)(map(tidy, value))
    if isinstance(value, tuple):
        items = map(tidy, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        copy = dict(value) if type(value) is dict else value.copy()
        copy.update((key, tidy(item)) for key, item in value.items())
        return copy
    return value
