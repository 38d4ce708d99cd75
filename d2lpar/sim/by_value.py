"""Functions and classes of the user as bytes: what cloudpickle does, and does not do.

Code keeps the name of its file, which errors, timelines and warnings show.  A class
that a cell defines is another one on each rank, with attributes of its own; what comes
back is of the caller's class again.  What is private to cloudpickle is used here alone.
"""

import contextlib
import functools
import importlib
import inspect
import pickle
import sys
import sysconfig
import threading
import types
from importlib.metadata import version
from types import ModuleType

import cloudpickle
from cloudpickle import cloudpickle as private

from .patching import patched

TRIED = "3.1.3"  # the newest that is known to have all of these
NEEDED = {
    "_should_pickle_by_reference": "functions with a cache cannot be copied",
    "_make_skeleton_class": "classes with __slots__ cannot be rebuilt",
    "_make_skeleton_enum": "an enum of a cell comes back as a different class",
    "_class_setstate": "a class of a cell comes back as a different class",
    "_DYNAMIC_CLASS_TRACKER_BY_ID": "a rank shares the classes of other ranks",
    "_DYNAMIC_CLASS_TRACKER_BY_CLASS": "a rank's error is not of the cell's class",
    "_find_imported_submodules": "packing a function takes milliseconds",
}


def lacking():
    """Return a sentence on the private names that this cloudpickle lacks, or ""."""
    gone = {name: loss for name, loss in NEEDED.items() if not hasattr(private, name)}
    if not gone:
        return ""
    losses = "; ".join(f"without {name}, {loss}" for name, loss in gone.items())
    return (
        f"cloudpickle {version('cloudpickle')} has changed inside: {losses}. Update "
        f'd2lpar, or install an older one: pip install "cloudpickle=={TRIED}"'
    )


if lacking():
    raise ImportError(lacking())

by_reference = private._should_pickle_by_reference
_Cached = type(functools.cache(len))
_SHARED = tuple(
    path for key, path in sysconfig.get_paths().items() if "lib" in key and path
)


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, but code keeps the name of its file, and a class its `__slots__`.

    From 3.1.3 on, cloudpickle writes "<dynamic-code>" for the name of every file.  It
    rebuilds a class with slots with a `__dict__`, so that the state of its instances
    does not fit the caller's own class when they come back.

    A module of a kind of its own goes by name.  `self.config` beside `dist` brings one
    along, since torch.distributed.config is such a module.
    """

    def reducer_override(self, obj):
        if isinstance(obj, types.CodeType):
            make, parts, *_ = self.dispatch_table[types.CodeType](obj)
            return _code, (make, parts, obj.co_filename)
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


def _code(make, parts, filename):
    return make(*parts).replace(co_filename=filename)


def _cached(function, parameters):
    """A function with a cache of its own, which is empty."""
    return functools.lru_cache(**parameters)(function)


def _with_slots(cls, reduced):
    """How to rebuild a class, its slots made with it and not written afterwards."""
    if reduced is NotImplemented or reduced[0] is not private._make_skeleton_class:
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
def users_modules(functions):
    """The modules in which the user wrote `functions` are pickled by value inside."""
    modules = {inspect.getmodule(inspect.unwrap(fn)) for fn in functions}
    modules = [module for module in modules if _of_the_user(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        with patched((private, "_find_imported_submodules", lambda _: _submodules)):
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


_rank = threading.local()  # .classes: those of the rank that this thread is


class Unpacker(pickle.Unpickler):
    """Reads what `Pickler` wrote.  A class that is known here stays as it is.

    cloudpickle would take the caller's own class for its copy, and write the state
    that the class has on the other side into it.
    """

    def __init__(self, file):
        super().__init__(file)
        self._known = getattr(_rank, "classes", private._DYNAMIC_CLASS_TRACKER_BY_ID)
        self._new = set()

    def find_class(self, module, name):
        if module == private.__name__ and name.startswith("_make_skeleton_"):
            return functools.partial(self._class, getattr(private, name))
        if module == private.__name__ and name == "_class_setstate":
            return self._fill
        return super().find_class(module, name)

    def _class(self, make, *description):
        *description, name, extra = description
        cls = self._known.get(name)
        if cls is None:
            cls = self._known[name] = make(*description, None, extra)
            private._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = name
            self._new.add(cls)
        return cls

    def _fill(self, cls, state):
        return private._class_setstate(cls, state) if cls in self._new else cls


@contextlib.contextmanager
def classes_of_a_rank():
    """Inside, this thread is a rank: what it unpacks has classes of its own."""
    _rank.classes = {}
    try:
        yield
    finally:
        del _rank.classes


def is_copy(cls):
    """Return whether `cls` travelled by value: it was packed or unpacked here."""
    return cls in private._DYNAMIC_CLASS_TRACKER_BY_CLASS
