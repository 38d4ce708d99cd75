"""Has somebody replaced a function that a check relies on?"""

import functools
import sys
import sysconfig
from os.path import dirname
from types import FunctionType

import torch

from .solutions import FOLDER

_TRUSTED = ("torch.distributed", "torch.distributed.distributed_c10d", "torch")
# This package, and what is installed: torch may be in a folder of its own.
_PLACES = {dirname(dirname(dirname(__file__))) + "/d2lpar"}
_PLACES |= {dirname(dirname(torch.__file__)), str(FOLDER)}
_PLACES |= {sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")}


def replaced():
    """Names of functions in d2lpar and torch whose code was written elsewhere."""
    return [
        f"{where}.{name}"
        for where, space in spaces()
        for name, value in list(space.items())
        if any(map(written_elsewhere, _files(value)))
    ]


def _files(value):
    """Those of the code of a function, or of those that a property, a method have."""
    kind, parts = type(value), (value,)  # to ask a value itself may warn
    if kind is staticmethod or kind is classmethod:
        parts = (value.__func__,)
    elif issubclass(kind, property):
        parts = value.fget, value.fset, value.fdel
    return [x.__code__.co_filename for x in parts if type(x) is FunctionType]


def spaces():
    """The namespaces that are looked at: modules, and the classes of d2lpar."""
    for name, module in list(sys.modules.items()):
        ours = name.split(".")[0] == "d2lpar"
        if ours or name in _TRUSTED:
            yield name, vars(module)
        if ours:
            for key, value in list(vars(module).items()):
                if type(value) is type and value.__module__ == name:
                    yield f"{name}.{key}", vars(value)
    yield "torch.Tensor", vars(torch.Tensor)


@functools.cache
def written_elsewhere(file):
    """Is code of this file name of a notebook, or of a file that is not installed?"""
    if file.startswith("<"):
        return file.startswith("<ipython")  # a cell; the others are generated code
    return not file.startswith(tuple(place for place in _PLACES if place))
