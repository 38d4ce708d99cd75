"""What a submission may not do while it is graded, and what it may not change.

Python tells a hook of files, programs and frames that code asks for.  Where a cell of
the submission asks, some are refused, with a PermissionError.  And a snapshot of what
the checks are made of says what has been replaced.  Neither is a sandbox: C code and
traceback objects get past them.
"""

import builtins
import functools
import itertools
import math
import operator
import os
import sys
import threading
import types

import numpy as np
import torch
import torch.distributed as dist

from . import checks
from .rubrics.guard import foreign, replaced, spaces

PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.spawn", "os.posix_spawn"}
PROGRAMS |= {"os.fork", "os.forkpty", "pty.spawn"}
CHANGES = {"os.remove", "os.rename", "os.truncate", "os.link", "os.symlink"}
LOOKS = {"sys._getframe", "sys._current_frames"}
LOOKS |= {"gc.get_objects", "gc.get_referrers", "gc.get_referents"}
SOCKETS = {"socket.connect", "socket.bind"}
ENDS = {"os.kill", "os.killpg"}
WATCHED = PROGRAMS | CHANGES | LOOKS | SOCKETS | ENDS | {"open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Refuses what cells of the submission ask for; `checking` is stricter.

    work      the folder that cells may write into
    secret    folders that they may not read from
    """

    def __init__(self, work, secret):
        self.work, self.checking = os.path.realpath(work), False
        self.secret = tuple(os.path.realpath(folder) + os.sep for folder in secret)
        self.asking = threading.local()  # its own questions are audited, too
        sys.addaudithook(self)

    def __call__(self, event, args):
        if event not in WATCHED or getattr(self.asking, "now", False):
            return
        self.asking.now = True
        try:
            self._judge(event, args)
        finally:
            self.asking.now = False

    def _judge(self, event, args):
        if event == "open":
            self._file(*args)
        elif event in CHANGES and _of_submission():
            self._file(args[0], None, os.O_WRONLY)
        elif event in PROGRAMS and _of_submission():
            raise PermissionError("a submission starts no programs")
        elif event in ENDS and args[0] in (os.getppid(), 0, -1):
            raise PermissionError("a submission does not end its grader")
        elif self.checking:
            self._while_checking(event)

    def _file(self, path, _, flags):
        if not isinstance(path, str | bytes | os.PathLike) or not _of_submission():
            return
        path = os.path.realpath(os.fsdecode(path))
        if path.startswith(self.secret):
            raise PermissionError("a submission does not read solutions")
        if flags & WRITING and not path.startswith(("/dev/", "/proc/")):
            if self.checking:
                raise PermissionError("an answer writes no files")
            if not path.startswith(self.work + os.sep):
                raise PermissionError("a submission writes into its own folder only")

    def _while_checking(self, event):
        if event in SOCKETS and _of_submission():
            raise PermissionError("an answer opens no connections")
        if event in LOOKS and _is_cell(sys._getframe(3)):
            raise PermissionError("an answer does not look at its callers")


def _of_submission():
    """Is a cell of the submission among the callers?"""
    frame = sys._getframe(2)
    while frame is not None:
        if _is_cell(frame):
            return True
        frame = frame.f_back
    return False


def _is_cell(frame):
    return frame.f_code.co_filename.startswith("<ipython")


# What a submission may not replace

TOOLS = (builtins, functools, itertools, math, operator, np, np.random, torch, dist)
FIXED = ("d2lpar.rubrics", "d2lpar.checks", "d2lpar.report")  # all of it, not only code
KINDS = types.FunctionType | type | property | staticmethod | classmethod


class Snapshot:
    """What the checks are made of, as it is now."""

    def __init__(self, exercises):
        chapters = {name.partition(".")[0] for name in exercises}
        every = [e for chapter in chapters for e in checks.exercises_of(chapter)]
        rows = [row for e in every for row in (*e.requirements, *e.mistakes)]
        self._objects = [(each, _parts(vars(each))) for each in (*every, *rows)]
        self._modules = [
            (name, space, _parts(_looked_at(name, space))) for name, space in spaces()
        ] + [(m.__name__, vars(m), _parts(_callables(vars(m)))) for m in TOOLS]

    def changed(self):
        """The first thing that is another one now, by name; None where all is well."""
        for each, parts in self._objects:
            if _other(vars(each), parts) is not None:
                return f"the check of {getattr(each, 'name', None) or each.label}"
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


def _callables(space):
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
        if patched and type(now) is types.FunctionType and not foreign(now):
            continue
        if now is not value:
            return key
        if inside is not None:
            these = _inside(now)
            if len(these) != len(inside) or any(map(operator.is_not, these, inside)):
                return key
    return None
