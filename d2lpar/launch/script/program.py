"""Executes a script on a rank, as if torchrun had started it there.

In the simulator ranks are threads: what they have to share is prepared once, by
`surroundings` around the run; a rank that is a process prepares its own.
"""

import builtins
import contextlib
import multiprocessing
import os
import random
import sys
import traceback
import types
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...report.engine import _OURS
from ...report.threads import users_part
from ...sim.patching import patched
from ...sim.torch_private import current_engine
from . import shapes
from .adapted import changes
from .belongings import Belongings, LocalModules
from .clocks import built_in
from .played_gpus import PlayedGpus
from .streams import mine

_local = None  # the LocalModules of the script that this process executes


class Script(NamedTuple):
    """A file and its arguments; `shown`: the ranks that print.

    Its own modules are in `folder`; `package`: the one that it is a module of, or None.
    `own` and `shared`: installed packages that each rank that is a thread has for
    itself, and that all use together, where that would be otherwise.  `shapes`: GPUs
    hold no values, but where one is asked for, it is `assumed`, if that is not None.
    """

    path: str
    arguments: tuple
    shown: frozenset
    folder: str
    package: str | None = None
    own: tuple = ()
    shared: tuple = ()
    shapes: bool = False
    assumed: float | None = None


class Used(NamedTuple):
    """The GPUs that a rank has named, whether it joined a group, marks of its steps.

    `samples`: of its replicas, see `replicas`.
    """

    gpus: list
    joined: bool
    marks: list
    samples: dict


def read(path):
    """The code of a script; raises OSError or SyntaxError."""
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _stepped(optimizer, args, kwargs):
    """Mark that an optimizer of this rank has made a step; torch calls it."""
    if gpus := mine():
        tokens = max(gpus.looked_up.values(), default=0)
        moment, length = gpus.moment(gpus.main), len(gpus.engine.entries)
        gpus.marks.append((id(optimizer), moment, length, tokens))
        if gpus.shapes is None:
            gpus.replicas.stepped()


@contextlib.contextmanager
def surroundings(script, virtual):
    """Inside, this process executes the script; `virtual`: on the ranks' clocks."""
    global _local
    kept = list(sys.argv), sys.stderr, list(sys.path)
    method = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)  # the script may choose
    modules = LocalModules(script.folder, virtual, script.own, script.shared)
    hook = register_optimizer_step_post_hook(_stepped)
    try:
        more = shapes.changes() if script.shapes else ()
        with patched(*changes(), *more), modules as _local:
            yield modules
    finally:
        hook.remove()
        _local = None
        sys.argv, sys.stderr, sys.path[:] = kept
        multiprocessing.set_start_method(method, force=True)


def play(script):
    """Execute the script on this rank; gives what of its rank it has used.

    The rank is in no process group until the script joins one, as under torchrun.  It
    ends as Python would: `sys.exit()` and `sys.exit(0)` are no failures.  An
    exception carries the script's own traceback as text, `script_traceback`.
    """
    engine = current_engine()
    dist.destroy_process_group()
    before = engine.times_joined
    with contextlib.ExitStack() as stack:
        if _local is None:
            stack.enter_context(surroundings(script, virtual=False))
        engine.gpus = gpus = PlayedGpus(engine, _local)
        if script.shapes:
            gpus.without_values(shapes.Shapes(script.assumed), shapes.OnShapes)
        _local.marks[engine.rank] = gpus.marks
        stack.enter_context(_own(engine, script))
        stack.enter_context(gpus.mode(gpus))
        stack.callback(gpus.settle)
        _seed(engine.rank)
        try:
            _execute(script.path, gpus.at_exit)
        except Exception as error:
            with contextlib.suppress(AttributeError):
                error.script_traceback = _as_text(error)
            raise
    joined = engine.times_joined > before
    return Used(sorted(gpus.used), joined, gpus.marks, gpus.replicas.samples)


def _execute(path, at_exit):
    try:
        exec(read(path), vars(sys.modules["__main__"]))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    while at_exit:
        at_exit.pop()()


def _as_text(error):
    """The traceback from the script's first line on, without what is the course's."""
    trace = users_part(error.__traceback__)
    told = part = traceback.TracebackException(type(error), error, trace)
    while part is not None:
        part.stack[:] = [f for f in part.stack if not f.filename.startswith(_OURS)]
        part = part.__cause__ or part.__context__
    return "".join(told.format())


def _torchruns(told):
    """What torchrun tells besides, and by which frameworks know that it was there."""
    rank, size, each = told["RANK"], told["WORLD_SIZE"], int(told["LOCAL_WORLD_SIZE"])
    return {
        "GROUP_RANK": str(int(rank) // each),
        "GROUP_WORLD_SIZE": str(int(size) // each),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def _seed(seed):
    """Ranks draw different numbers until the script seeds them, as processes do."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextlib.contextmanager
def _own(engine, script):
    """Inside, this rank has its own `__main__`, arguments and prefixed output."""
    os.environ.update(_torchruns(os.environ))
    main = types.ModuleType("__main__")
    modules = {"__main__": main}
    if _local.packages:
        modules["builtins"] = built_in()
    vars(main).update(__file__=script.path, __package__=script.package)
    vars(main).update(__builtins__=vars(modules.get("builtins", builtins)))
    argv = [script.path, *script.arguments]
    out, errors = (_Prefixed(s, script.shown) for s in (sys.stdout, sys.stderr))
    things, usual = Belongings(_local, modules, argv, errors), sys.stdout
    things.resume()
    sys.stdout = out
    engine.belongings.append(things)
    try:
        yield
    finally:
        out.finish(), errors.finish()
        if sys.stdout is out:
            sys.stdout = usual
        engine.belongings.remove(things)
        things.pause()
        _local.leave()


class _Prefixed:
    """A stream whose lines begin with the rank that writes; of ranks that are shown.

    Ranks that are threads may share it, as the handlers of `logging` do.
    """

    def __init__(self, usual, shown):
        self._usual, self._shown, self._rests = usual, shown, {}

    def write(self, text):
        engine = current_engine()
        if engine is None:  # a thread of the script's own
            return self._usual.write(text)
        if (rank := engine.rank) in self._shown:
            *lines, rest = (self._rests.get(rank, "") + text).split("\n")
            self._rests[rank] = _last_look(rest)
            for line in lines:
                self._usual.write(f"[rank {rank}] {_last_look(line).rstrip()}\n")
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def finish(self):
        """What is not yet a line is written as one."""
        if self._rests.get(current_engine().rank):
            self.write("\n")

    def __getattr__(self, name):
        return getattr(self._usual, name)


def _last_look(line):
    """Of a line that was overwritten, such as a bar that moves, what was seen last."""
    return line[line.rstrip("\r").rfind("\r") + 1 :]
