"""Copies of functions, arguments and results that share nothing with the original.

The same bytes serve every world, so that a rank that is a thread gets what a rank
that is a process gets.  A function travels with the globals it uses; a function of an
imported module of the user's own travels by value too, so that its globals are not
shared.  Tensors travel with their storage: views and tied weights stay tied.  A class
that a cell defines is another one on each rank, with attributes of its own; what comes
back is of the caller's class again.
"""

import contextlib
import functools
import importlib
import inspect
import io
import os
import pickle
import random
import sys
import sysconfig
import threading
import types
from types import ModuleType
from typing import NamedTuple

import cloudpickle
import numpy as np
import torch
from cloudpickle import cloudpickle as by_value

from .patching import patched

_Cached = type(functools.cache(len))
by_reference = by_value._should_pickle_by_reference

_SHARED = tuple(
    path for key, path in sysconfig.get_paths().items() if "lib" in key and path
)


# the generators whose methods `from random import ...` and numpy's twin give
_RANDOM = {id(random._inst): random, id(np.random.mtrand._rand): np.random}


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, but a class with `__slots__` has them on the other side, too.

    cloudpickle rebuilds such a class with a `__dict__`, so that the state of its
    instances does not fit the caller's own class when they come back.

    A module of a kind of its own goes by name.  `self.config` beside `dist` brings one
    along, since torch.distributed.config is such a module.
    """

    def reducer_override(self, obj):
        odd = isinstance(obj, ModuleType) and type(obj) is not ModuleType
        if odd and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, _Cached) and not by_reference(obj.__wrapped__):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        reduced = super().reducer_override(obj)
        slots = isinstance(obj, type) and "__slots__" in vars(obj)
        if slots and not issubclass(obj, tuple):  # those of a named tuple are empty
            return _with_slots(obj, reduced)
        return reduced


def _cached(function, parameters):
    """A function with a cache of its own, which is empty."""
    return functools.lru_cache(**parameters)(function)


def _with_slots(cls, reduced):
    """How to rebuild a class, its slots made with it and not written afterwards."""
    if reduced is NotImplemented or reduced[0] is not by_value._make_skeleton_class:
        return reduced
    make, (*before, kwargs, tracker, extra), (state, slots), *more = reduced
    kwargs = {**kwargs, "__slots__": cls.__slots__}
    made = (types.MemberDescriptorType, types.GetSetDescriptorType)
    state = {
        name: value
        for name, value in state.items()
        if name not in ("__slots__", "__slotnames__") and not isinstance(value, made)
    }
    return make, (*before, kwargs, tracker, extra), (state, slots), *more


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


def _submodules(code, packages):
    """The loaded submodules of `packages` that `code` can name, such as torch.nn.

    cloudpickle's own compares the name of every loaded module, for every function.
    """
    found, parents = [], [m for m in packages if isinstance(m, ModuleType)]
    parents = [m.__name__ for m in parents if getattr(m, "__package__", None)]
    while parents:
        parent = parents.pop()
        names = dict.fromkeys(f"{parent}.{name}" for name in code.co_names)
        names = [name for name in names if sys.modules.get(name) is not None]
        found += [sys.modules[name] for name in names]
        parents += names
    return found


@contextlib.contextmanager
def _by_value(functions):
    """The modules in which the user wrote `functions` are pickled by value inside."""
    modules = {inspect.getmodule(inspect.unwrap(fn)) for fn in functions}
    modules = [module for module in modules if _of_the_user(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        with patched((by_value, "_find_imported_submodules", lambda _: _submodules)):
            yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _of_the_user(module):
    """Neither a notebook, which travels by value anyway, nor an installed package."""
    name = getattr(module, "__name__", "__main__")
    file = getattr(module, "__file__", None) or ""
    mine = name.split(".")[0] == __package__.split(".")[0]
    known = name in cloudpickle.list_registry_pickle_by_value()
    travels = name == "__main__" or known or mine or not file
    return not travels and not file.startswith(_SHARED)


_NOT_COPIED = "every rank has its own copy of all that goes in and out"


def pack(obj, *functions):
    """`obj` as bytes; `functions` are those of the user in it.

    Raises TypeError with one sentence where something in it cannot be copied.
    """
    file = io.BytesIO()
    try:
        with _by_value(functions):
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


_rank = threading.local()  # .classes: those of the rank that this thread is


class Unpacker(pickle.Unpickler):
    """Reads what `pack` wrote.  A class that is known here stays as it is.

    cloudpickle would take the caller's own class for its copy, and write the state
    that the class has on the other side into it.
    """

    def __init__(self, file):
        super().__init__(file)
        self._known = getattr(_rank, "classes", by_value._DYNAMIC_CLASS_TRACKER_BY_ID)
        self._new = set()

    def find_class(self, module, name):
        if module == by_value.__name__ and name.startswith("_make_skeleton_"):
            return functools.partial(self._class, getattr(by_value, name))
        if module == by_value.__name__ and name == "_class_setstate":
            return self._fill
        return super().find_class(module, name)

    def _class(self, make, *description):
        *description, name, extra = description
        cls = self._known.get(name)
        if cls is None:
            cls = self._known[name] = make(*description, None, extra)
            by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = name
            self._new.add(cls)
        return cls

    def _fill(self, cls, state):
        return by_value._class_setstate(cls, state) if cls in self._new else cls


def unpack(data):
    """The object of `pack`, sharing nothing with the original."""
    return Unpacker(io.BytesIO(data)).load()


@contextlib.contextmanager
def classes_of_a_rank():
    """Inside, this thread is a rank: what it unpacks has classes of its own."""
    _rank.classes = {}
    try:
        yield
    finally:
        del _rank.classes


def as_callers(error):
    """An exception of a rank, of the caller's class if a cell defines its class."""
    if type(error) not in by_value._DYNAMIC_CLASS_TRACKER_BY_CLASS:
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
