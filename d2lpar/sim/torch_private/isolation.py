"""Threads as ranks: each has its own process groups, and torch is as it was after."""

import contextlib
import sys
import types

import torch
import torch.distributed.distributed_c10d as c10d
import torch.utils._python_dispatch as modes

from .here import here
from .patches import close_profiler, saves_at_once, watch_calls
from .short_ways import short_ways


@contextlib.contextmanager
def rank_thread(engine):
    """This thread is a rank: calls inside go to `engine`, backward stays in it."""
    here.engine, here.world = engine, _empty_world()
    with torch.autograd.set_multithreading_enabled(False):
        try:
            yield
        finally:
            close_profiler()
            torch._C._distributed_c10d._unregister_all_process_groups()
            here.engine = here.world = None


def _empty_world():
    """A table of process groups without any, with every field that this torch has."""
    usual = {name: getattr(c10d._world, name) for name in _TABLES}
    return types.SimpleNamespace(
        default_pg=None,
        group_count=0,
        pg_config_info=[],
        **{name: type(table)() for name, table in usual.items()},
    )


_COMPUTED = ("default_pg", "group_count", "pg_config_info")
_TABLES = [
    name
    for name, kind in vars(type(c10d._world)).items()
    if isinstance(kind, property) and name not in _COMPUTED
]


class _WorldOfThread:
    """torch's table of process groups: a rank's own in its thread, else the usual."""

    def __init__(self, usual):
        vars(self)["_usual"] = usual

    @property
    def default_pg(self):  # asked for many times in every call
        return (here.world or self._usual).default_pg

    def __setattr__(self, name, value):
        setattr(here.world or self._usual, name, value)

    def __getattr__(self, name):
        return getattr(here.world or self._usual, name)


@contextlib.contextmanager
def isolated_ranks():
    """Inside, threads may be ranks; afterwards torch is as it was."""
    guard = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if guard is not None:
        guard()  # torch 2.11's CUDA build crashes in rank threads without it
    usual, hook = c10d._world, sys.excepthook
    flags = {k: v for k, v in vars(modes).items() if k.startswith("_is_in_")}
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    c10d._world = _WorldOfThread(usual)
    loss = loss_parallel()
    with watch_calls(), short_ways(), saves_at_once():
        try:
            yield
        finally:
            c10d._world, sys.excepthook = usual, hook
            set_loss_parallel(loss)
            vars(modes).update(flags)  # threads leave them in any order
            isolate(False)


_LOSS = "torch.distributed.tensor.parallel.loss"  # ranks may import it at any time


def loss_parallel():
    """Is this rank inside torch's `loss_parallel()`?  The switch is the process's."""
    loss = sys.modules.get(_LOSS)
    if loss is None or not hasattr(loss, "customized_loss_ops"):
        return False
    handlers = loss.DTensor._op_dispatcher._custom_op_handlers
    return all(op in handlers for op in loss.customized_loss_ops)


def set_loss_parallel(on):
    """The rank whose turn it is from now on is inside `loss_parallel()`, or not."""
    if on != loss_parallel():
        loss = sys.modules[_LOSS]
        handlers = loss.DTensor._op_dispatcher._custom_op_handlers
        if on:
            handlers.update(loss.customized_loss_ops)
        else:
            for op in loss.customized_loss_ops:
                handlers.pop(op, None)
