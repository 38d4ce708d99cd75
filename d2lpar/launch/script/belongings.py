"""What each rank that is a thread has for itself while it executes a script.

Under torchrun a rank is a process, whose modules and settings are its own.  So here the
modules that it imports are taken out of `sys.modules` when another rank goes on, and
put back when it is this one's turn again: the script's `__main__` and the user's
modules, and installed packages but for those in `SHARED` and those that hold compiled
code, most of which a process cannot load twice.
"""

import contextlib
import copy
import functools
import importlib.util
import multiprocessing
import os
import sys
import warnings
from importlib import _bootstrap
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    PathFinder,
    SourceFileLoader,
)

import torch

from ...report.engine import is_installed, is_users
from ...sim.environment import working_directory
from ...sim.patching import patched
from ...sim.torch_private import current_engine

# Torch and what it is built on, whose objects the script's meet; what packs objects.
SHARED = ("torch", "torchgen", "functorch", "triton", "numpy", "sympy", "mpmath")
SHARED += ("networkx", "fsspec", "filelock", "jinja2", "typing_extensions")
SHARED += ("setuptools", "pkg_resources", "cloudpickle", "d2lpar")
OWN = "builtins", "logging", "timeit", "megatron"  # for all that: Python's, compiled

_SETTINGS = (
    (working_directory, lambda folder: folder and os.chdir(folder)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_default_dtype, torch.set_default_dtype),
    (
        functools.partial(multiprocessing.get_start_method, allow_none=True),
        functools.partial(multiprocessing.set_start_method, force=True),
    ),
    (lambda: warnings.filters, functools.partial(setattr, warnings, "filters")),
)


def settings():
    """The settings of this process that are each rank's own, as they are now."""
    return [get() for get, _ in _SETTINGS]


def settle(values, now):
    """Those settings, which are `now`, become `values`."""
    for (_, put), value, old in zip(_SETTINGS, values, now, strict=True):
        if value is not old and (value != old or isinstance(value, list)):
            put(value)


@functools.cache
def _compiled(places):
    """Do these folders of a package hold compiled modules?"""
    names = (n for place in places for _, _, files in os.walk(place) for n in files)
    return any(name.endswith(tuple(EXTENSION_SUFFIXES)) for name in names)


class LocalModules:
    """A context: modules that are each rank's own are noted when ranks import them.

    Those are the user's and, if `packages`, installed ones that are not `shared`.  What
    was in `sys.modules` by their names is there again at the end; `sys.path` is left to
    the caller.
    """

    def __init__(self, folder, packages, own=(), shared=()):
        self.folder, self.packages = folder + os.sep, packages
        self.usual, self.names, self.order = {}, set(), ()
        self.settings = settings()
        self.first = self.left = None  # settings: the first rank's, the last one's
        self._own = dict.fromkeys(SHARED, False)  # name: is it each rank's own?
        self._own |= dict.fromkeys([*OWN, *own], packages)
        self._own |= dict.fromkeys(shared, False)
        self.compiled = []  # packages that ranks share because they hold compiled code
        self.marks = {}  # rank: the marks of its steps
        self._later, self._also = contextlib.ExitStack(), set()
        self._once = {}  # compiled modules in packages of ranks: all use the same one

    def __enter__(self):
        loaded = list(sys.modules.items())
        self.usual = {name: m for name, m in loaded if self._is_own(name, m)}
        tops = {"__main__", *OWN}
        self.stay = {n: m for n, m in self.usual.items() if n.partition(".")[0] in tops}
        self.names = set(self.stay)
        for name in self.usual.keys() - self.names:
            del sys.modules[name]
        sys.meta_path.insert(0, self)
        sys.path.insert(0, self.folder.removesuffix(os.sep))
        importlib.invalidate_caches()
        return self

    def __exit__(self, *_):
        self._later.close()
        sys.meta_path.remove(self)
        self.put(self.usual.keys(), self.usual.values())
        settle(self.settings, settings())

    def also(self, changes):
        """What `changes()` gives is patched from now on, too."""
        if changes not in self._also:
            self._also.add(changes)
            self._later.enter_context(patched(*changes()))

    def _is_own(self, name, module):
        top, file = name.partition(".")[0], getattr(module, "__file__", None) or ""
        if name == "__main__" or self._own.get(top):
            return True
        if is_users(file):
            return file.startswith(self.folder)
        return is_installed(file) and self._is_own_package(top)

    def _is_own_package(self, top):
        """Is this top-level module or package each rank's own, if it is installed?"""
        if top not in self._own:
            loaded = getattr(sys.modules.get(top), "__spec__", None)
            spec = loaded or PathFinder.find_spec(top)
            places = tuple((spec and spec.submodule_search_locations) or ())
            files = places or ((spec and spec.origin) or "",)
            plain = bool(places) or files[0].endswith(".py")
            self._own[top] = self.packages and plain and all(map(is_installed, files))
            if self._own[top] and _compiled(places):
                self._own[top] = False
                self.compiled.append(top)
        return self._own[top]

    def found(self):
        """(names, modules, names of those that are not there) of the rank that runs."""
        if len(self.order) < len(self.names):
            self.order = tuple(self.names)
        try:
            return self.order, tuple(map(sys.modules.__getitem__, self.order)), ()
        except KeyError:
            modules = tuple(map(sys.modules.get, self.order))
            gone = [n for n, m in zip(self.order, modules, strict=True) if m is None]
            return self.order, modules, gone

    def put(self, names, modules, gone=()):
        """Those are in `sys.modules`, and no others of a rank's own.

        A rank may import a module in the middle of whose import another one is.
        """
        if names is not self.order:
            gone = [*gone, *self.names.difference(names)]
        sys.modules.update(zip(names, modules, strict=True))
        for name in gone:
            sys.modules.pop(name, None)
        for name in _bootstrap._module_locks.keys() & self.names:
            _bootstrap._module_locks.pop(name, None)

    def leave(self):
        """No rank runs: those modules that every rank replaces are the usual ones."""
        self.put(self.stay.keys(), self.stay.values())

    def find_spec(self, name, path=None, target=None):
        """The spec of a module of a rank's own, for a rank; else None."""
        if current_engine() is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        places = spec and (spec.submodule_search_locations or [spec.origin or ""])
        if not places:
            return None
        top, users = name.partition(".")[0], [os.path.join(p, "") for p in places]
        if not (all(map(is_users, users)) or self._is_own_package(top)):
            return None
        self.names.add(name)
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        elif type(spec.loader) is ExtensionFileLoader:
            spec.loader = _Once(spec.loader.name, spec.loader.path)
            spec.loader.loaded = self._once
        return spec


class _Loader(SourceFileLoader):
    """Loads a module whose built-in names are those of the rank."""

    def exec_module(self, module):
        vars(module)["__builtins__"] = vars(sys.modules["builtins"])
        super().exec_module(module)


class _Once(ExtensionFileLoader):
    """Loads a compiled module once: it becomes part of each rank's package."""

    def create_module(self, spec):
        found = self.loaded.get(spec.name)
        return super().create_module(spec) if found is None else found

    def exec_module(self, module):
        if self.name not in self.loaded:
            super().exec_module(module)
            self.loaded[self.name] = module


class Belongings:
    """One rank's modules, settings, arguments and errors; in place while it runs."""

    def __init__(self, local, modules, argv, stderr):
        self._local, self._modules = local, (modules.keys(), modules.values())
        self._argv, self._stderr = argv, stderr
        local.first = local.first or settings()
        self._settings = [copy.copy(value) for value in local.first]
        self._outside = None

    def resume(self):
        """This rank runs now."""
        self._outside = sys.argv, sys.stderr
        sys.argv, sys.stderr = self._argv, self._stderr
        self._local.put(*self._modules)
        settle(self._settings, self._local.left or settings())

    def pause(self):
        """Another rank runs from now on, or none."""
        if self._outside is None:  # it was not in place when the run was stopped
            return
        self._argv, self._stderr = sys.argv, sys.stderr
        (sys.argv, sys.stderr), self._outside = self._outside, None
        self._settings = self._local.left = settings()
        self._modules = self._local.found()
