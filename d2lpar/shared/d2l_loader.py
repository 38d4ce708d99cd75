"""Loads the d2l package of Dive into Deep Learning where torchvision is missing.

d2l 1.0.3 imports packages that it does not declare, and pins others that are too old.
The course uses a few of its functions (`d2l.plot`, `d2l.Timer`, `d2l.try_gpu`), which
need none of them.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

HOW_TO_GET = (
    "d2l is not installed: pip install --no-deps d2l==1.0.3 "
    "(without --no-deps it asks for a numpy that is too old)"
)
OPTIONAL = ("torchvision", "torchvision.transforms", "pandas", "requests")


class Placeholder(ModuleType):
    """Stands for a module that is not there and says so when it is used."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        package = self.__name__.split(".")[0]
        raise ImportError(f"This part of d2l needs {package}, which is not installed.")


def load_d2l():
    """The module `d2l.torch`; ImportError with one sentence where there is no d2l.

    What d2l wants and the machine lacks is a placeholder, only while d2l is imported.
    Its figures stay PNG, because an SVG has random names inside.
    """
    if "d2l.torch" in sys.modules:
        return sys.modules["d2l.torch"]
    if importlib.util.find_spec("d2l") is None:
        raise ImportError(HOW_TO_GET)
    placed = _place_missing()
    try:
        d2l = importlib.import_module("d2l.torch")
    finally:
        for name in placed:
            sys.modules.pop(name, None)
    d2l.use_svg_display = _use_png
    return d2l


def _place_missing():
    """Names of the placeholders that now stand in `sys.modules`."""
    placed = []
    for name in OPTIONAL:
        if not _imports(name):
            sys.modules[name] = Placeholder(name)
            placed.append(name)
            package, _, part = name.partition(".")
            if part:
                setattr(sys.modules[package], part, sys.modules[name])
    return placed


def _imports(name):
    """Whether `name` can be imported; what a failed try left behind is removed."""
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    except Exception:  # a torchvision built for another torch raises RuntimeError
        for left in set(sys.modules) - before:
            if left.split(".")[0] == name.split(".")[0]:
                del sys.modules[left]
        return False
    return True


def _use_png():
    from matplotlib_inline import backend_inline

    backend_inline.set_matplotlib_formats("png")
