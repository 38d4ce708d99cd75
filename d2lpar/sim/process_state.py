"""What ranks that are threads may change of this process, put back afterwards."""

import contextlib
import gc
import operator
import os
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..report.engine import is_library
from .environment import working_directory


@contextlib.contextmanager
def ordered_collection():
    """Inside, cyclic garbage is collected at counted moments, not by chance.

    So the memory of two runs is the same; and what existed before is not searched.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def settings_kept(warn):
    """Settings of the process that ranks may change are afterwards as they were."""
    dtype, folder = torch.get_default_dtype(), working_directory()
    exact = torch.are_deterministic_algorithms_enabled()
    depth = sys.getrecursionlimit()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.are_deterministic_algorithms_enabled() != exact:
            torch.use_deterministic_algorithms(exact)  # it imports the compiler
        sys.setrecursionlimit(depth)
        _return_to(folder, warn)


def _return_to(folder, warn):
    if folder in ("", working_directory()):
        return
    try:
        os.chdir(folder)
    except OSError:
        warn(
            f"A rank deleted the working directory, {folder}: relative paths lead "
            "nowhere until you change to another one with os.chdir."
        )


def _holders():
    """Modules and classes whose functions every rank uses, and their names."""
    return {
        "torch.distributed": dist,
        "torch.distributed.distributed_c10d": c10d,
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch.UntypedStorage": torch.UntypedStorage,
        "torch.distributed.P2POp": dist.P2POp,
        "torch.distributed.Work": dist.Work,
        "torch.nn.Module": torch.nn.Module,
        "torch.nn.functional": torch.nn.functional,
        "torch.optim.Optimizer": torch.optim.Optimizer,
    }


@contextlib.contextmanager
def patches_undone(warn):
    """Functions of torch that ranks replace are afterwards torch's own again.

    What libraries replace when they are imported stays.
    """
    before = {name: dict(vars(holder)) for name, holder in _holders().items()}
    try:
        yield
    finally:
        undone = [
            f"{name}.{attribute}"
            for name, holder in _holders().items()
            for attribute in _undo(holder, before[name])
        ]
        if undone:
            warn(
                f"A rank replaced {', '.join(undone)}. Ranks that are threads share "
                "modules, so every rank used the replacement; the run has undone it."
            )


# What is put back; asking isinstance would trouble torch's old names.
_KINDS = type, staticmethod, classmethod, types.FunctionType, types.BuiltinFunctionType
_KINDS += types.MethodDescriptorType, types.WrapperDescriptorType


def _undo(holder, before):
    """Names of the functions and classes of `holder` that were replaced, now undone."""
    now = vars(holder)
    same = map(operator.is_, now.values(), before.values())
    if len(now) == len(before) and all(same):  # nearly always, so it has to be fast
        return []
    replaced = [
        name
        for name, value in before.items()
        if now.get(name) is not value and issubclass(type(value), _KINDS)
    ]
    above = getattr(holder, "__mro__", (holder,))[1:]
    hidden = [
        name
        for name in now.keys() - before.keys()
        if any(name in vars(base) for base in above)  # inherited until then
    ]
    undone = [
        name for name in replaced + sorted(hidden) if not is_library(now.get(name))
    ]
    for name in undone:
        if name in before:
            setattr(holder, name, before[name])
        else:
            delattr(holder, name)
    return undone
