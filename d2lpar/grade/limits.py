"""What a submission may not replace of the course, and how much it may take.

A snapshot of what the checks are made of says what has been replaced since.
"""

import builtins
import contextlib
import functools
import itertools
import math
import operator
import types

import numpy as np
import torch
import torch.distributed as dist

from ..checks.guard import replaced, spaces, written_elsewhere

# What a submission may not replace

TOOLS = (builtins, functools, itertools, math, operator, np, np.random, torch, dist)
FIXED = ("d2lpar.checks",)  # all of it, not only code
KINDS = types.FunctionType | type | property | staticmethod | classmethod


class Snapshot:
    """What the checks are made of, as it is now."""

    def __init__(self):
        looked_at = [*spaces(), *((m.__name__, vars(m)) for m in TOOLS)]
        self._modules = [
            (name, space, _parts(_looked_at(name, space))) for name, space in looked_at
        ]

    def changed(self):
        """The first thing that is another one now, by name; None where all is well."""
        for name, space, parts in self._modules:
            key = _other(space, parts, patched=name.startswith("torch"))
            if key is not None:
                return f"{name}.{key}"
        return next(iter(replaced()), None)


def _looked_at(name, space):
    if name.startswith(FIXED):
        return {k: v for k, v in space.items() if not k.startswith("__")}
    if name.startswith("d2lpar"):
        return {k: v for k, v in space.items() if isinstance(v, KINDS)}
    return {k: v for k, v in space.items() if callable(v)}


def _parts(space):
    """{name: (value, what is in it)}."""
    return {key: (value, _inside(value)) for key, value in list(space.items())}


def _inside(value):
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list) else None


def _other(space, parts, patched=False):
    """The first name with another value.

    Where torch is `patched`, by itself or by the simulator, functions of installed
    packages may have changed places.
    """
    for key, (value, inside) in parts.items():
        now = space.get(key)
        if patched and type(now) is types.FunctionType:
            if not written_elsewhere(now.__code__.co_filename):
                continue
        if now is not value:
            return key
        if inside is not None:
            these = _inside(now)
            if len(these) != len(inside) or any(map(operator.is_not, these, inside)):
                return key
    return None


# How much it may take

LONGEST_FILE = 1 << 30  # bytes


def limit(memory):
    """More memory than this is a MemoryError, longer files an OSError, on Linux."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_FILE, LONGEST_FILE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
