"""What each rank that is a thread has for itself while it executes a script.

Modules are global to a process.  So the script's `__main__` and all modules of the
user's own, which a rank imports, are taken out of `sys.modules` when another rank goes
on, and put back when it is this one's turn again: ranks share installed packages only.
"""

import importlib.util
import os
import sys
from importlib import _bootstrap
from importlib.machinery import PathFinder, SourceFileLoader

from ...report.engine import is_users
from ...sim.torch_private import current_engine


class LocalModules:
    """A context: modules that ranks import and that are the user's are noted.

    `builtins` are what these modules find as built in.  What was in `sys.modules` by
    these names is there again at the end; `sys.path` is left to the caller.
    """

    def __init__(self, folder, builtins):
        self.folder, self.builtins = folder + os.sep, builtins
        self.usual = {}

    def __enter__(self):
        near = [n for n, m in list(sys.modules.items()) if self._is_near(m)]
        self.usual = {name: sys.modules[name] for name in ["__main__", *near]}
        self.names = set(self.usual)
        for name in near:
            del sys.modules[name]
        sys.meta_path.insert(0, self)
        sys.path.insert(0, self.folder.removesuffix(os.sep))
        importlib.invalidate_caches()
        return self

    def __exit__(self, *_):
        sys.meta_path.remove(self)
        for name in self.names:
            sys.modules.pop(name, None)
        sys.modules.update(self.usual)

    def _is_near(self, module):
        file = getattr(module, "__file__", None) or ""
        named = getattr(module, "__name__", "__main__") != "__main__"
        return named and file.startswith(self.folder) and is_users(file)

    def find_spec(self, name, path=None, target=None):
        """The spec of a module of the user's own, for a rank; else None."""
        if current_engine() is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        places = spec and (spec.submodule_search_locations or [spec.origin or ""])
        if not places or not all(is_users(os.path.join(p, "")) for p in places):
            return None
        self.names.add(name)
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.builtins = self.builtins
        return spec


class _Loader(SourceFileLoader):
    """Loads a module whose built-in names are those of the script."""

    builtins = None

    def exec_module(self, module):
        vars(module)["__builtins__"] = self.builtins
        super().exec_module(module)


class Belongings:
    """One rank's modules, arguments and stream of errors; in place while it runs."""

    def __init__(self, local, main, argv, stderr):
        self._local, self._modules = local, {"__main__": main}
        self._argv, self._stderr = argv, stderr
        self._outside = None

    def resume(self):
        """This rank runs now."""
        self._outside = sys.argv, sys.stderr
        sys.argv, sys.stderr = self._argv, self._stderr
        sys.modules.update(self._modules)

    def pause(self):
        """Another rank runs from now on, or none.

        It may import a module in the middle of whose import this one is, too.
        """
        if self._outside is None:  # it was not in place when the run was stopped
            return
        self._argv, self._stderr = sys.argv, sys.stderr
        (sys.argv, sys.stderr), self._outside = self._outside, None
        mine = self._local.names & sys.modules.keys()
        self._modules = {name: sys.modules.pop(name) for name in mine}
        for name in mine:
            _bootstrap._module_locks.pop(name, None)
        sys.modules["__main__"] = self._local.usual["__main__"]
