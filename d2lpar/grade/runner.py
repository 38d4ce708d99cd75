"""The process that runs the cells and the functions of one submission.

The judge, `judge.py`, starts it before it knows anything that is secret, and
asks: run this cell, call this function on this case.  Whatever a cell does here, it
finds no score, no hidden test and no channel to the grader: those are in the judge,
which runs no code of the submission.
"""

import contextlib
import importlib
import inspect
import os
import pickle
import signal
import sys
import threading
import types

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import d2lpar

from ..checks import checker, judging
from ..checks.report import Report
from ..launch import forks
from .exchange import encode
from .guard import Watch
from .limits import Snapshot, limit

FOUND = object()
# Those of checks.judging, where several notebooks are graded at once.
PATIENCE, LONGEST = 30.0, 60.0


class TooLong(BaseException):
    """A cell or a call has had its time."""


def main(pipe, ends):
    """Answer the judge's questions until it is gone; `ends` are files to close."""
    _forget(ends)
    settings = pickle.loads(pipe.recv_bytes())
    runner = Runner(settings)
    while True:
        try:
            number, question, *arguments = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            answer = encode((number, getattr(runner, question)(*arguments)))
        except (Exception, TooLong) as error:
            answer = encode((number, error))
        pipe.send_bytes(answer)


def _forget(ends):
    """The judge's files, and its end of the pipe to the grader, are not open here."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nothing, file)
    for file in ends:
        with contextlib.suppress(OSError):
            os.close(file)


class Runner:
    """What the judge may ask; each method is a question."""

    def __init__(self, settings):
        limit(settings["memory"])
        judging.PATIENCE, judging.LONGEST = PATIENCE, LONGEST
        config = Config({"HistoryManager": {"enabled": False}})
        self.shell = InteractiveShell.instance(config=config)
        self.shell.showtraceback = lambda *args, **kwargs: None
        checker.check = d2lpar.check = _not_here
        self.watch = Watch(os.getcwd(), settings["secret"], os.getppid())
        self.before = Snapshot()
        forks.GUARDS.append(self.watch.for_a_rank)

    def cell(self, source, seconds):
        """Run a cell; a sentence where it failed, "" where it did not."""
        try:
            with within(seconds), _quiet():
                result = self.shell.run_cell(source, store_history=True)
        except (TooLong, SystemExit, KeyboardInterrupt) as error:
            return sentence(error)
        error = result.error_before_exec or result.error_in_exec
        return sentence(error) if error is not None else ""

    def changed(self):
        """What of the course a cell has replaced, by name, or None."""
        return self.before.changed()

    def kind(self, name):
        """ "function", the type's name of a value that is none, or None."""
        value = self.shell.user_ns.get(name, FOUND)
        if value is FOUND:
            return None
        return "function" if callable(value) else type(value).__name__

    def attempt(self, name, perform, case, options, seconds, loaded):
        """What came of the function's call on this case, without the case.

        `perform` is the exercise's, which tries a function on a case.
        `loaded` are modules that the judge has needed for its own answer: to load
        them takes time, which is not the function's.
        """
        for module in loaded:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        function = self.shell.user_ns[name]
        if busy := list(_strangers()):
            self.watch.refused.append(f"a thread of a cell still runs: {busy[0]}")
        threading.setprofile(None)
        threading.settrace(None)
        before, self.watch.checking = _shelves(), True
        try:
            with within(seconds), _quiet():
                made = perform(function, case, **options)
        finally:
            self.watch.checking = False
            self.watch.refused += [
                f"an answer leaves nothing behind, and this one left {name}"
                for name in _left(before)
            ]
        return {k: v for k, v in vars(made).items() if k not in ("case", "came")}

    def refused(self):
        """Why what was just judged is no answer, in a sentence, or ""; once."""
        said, self.watch.refused = self.watch.refused, []
        return next(iter(said), "")


def _not_here(name, function, hint=False, seed=0):
    """The instructor's cell is the one that counts."""
    return Report(name, "not graded here", done=False)


def _strangers():
    """Names of threads of cells that still run: nothing counts what they do."""
    running, main = sys._current_frames(), threading.main_thread()
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for ident in running.keys() - threads.keys():
        yield f"number {ident}"  # Python's own list does not have it
    for ident in running.keys() & threads.keys():
        thread = threads[ident]
        target = inspect.unwrap(getattr(thread, "_target", None))
        ours = str(getattr(target, "__module__", "")).startswith(("d2lpar.", "torch."))
        plain = type(thread).__module__ in (threading.__name__, "__main__")
        if plain and not ours and thread is not main:
            yield thread.name


def _shelves():
    """{module: names of values in it}: there ranks that are threads may leave some.

    Functions, classes and modules do not count: imports put them there.
    """
    usual = types.ModuleType | type | types.FunctionType | types.BuiltinFunctionType
    shelves = {"os.environ": {*os.environ}, "sys.modules": set()}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType):
            shelves["sys.modules"].add(name)
        elif not name.startswith("d2lpar"):
            shelves[name] = {
                key
                for key, value in list(vars(module).items())
                if not (isinstance(value, usual) or key.startswith("__"))
            }
    return shelves


def _left(before):
    """Names that are there now and were not, where there was a module before."""
    after = _shelves()
    for name, keys in after.items():
        new = keys - before.get(name, set())
        if name not in before:  # it was imported, and has constants of its own
            new = {key for key in new if _holds_data(vars(sys.modules[name])[key])}
        yield from (f"{name}.{key}" for key in sorted(new))


def _holds_data(value, depth=4):
    """Is there a tensor, an array or a pickle in it?"""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set) and depth:
        return any(_holds_data(each, depth - 1) for each in value)
    if isinstance(value, bytes):
        return value.startswith(b"\x80")
    return isinstance(value, torch.Tensor | np.ndarray)


def sentence(error):
    """The error in one line."""
    if isinstance(error, TooLong):
        return "it took too long"
    try:
        first, *_ = [*str(error).strip().splitlines(), ""]
    except Exception:
        first = ""
    return f"{type(error).__name__}: {first[:200]}".removesuffix(": ")


@contextlib.contextmanager
def _quiet():
    out, err = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


@contextlib.contextmanager
def within(seconds):
    """TooLong is raised inside after `seconds`, and again as long as it is caught."""
    if not hasattr(signal, "setitimer"):  # Windows: the limit of the whole holds
        yield
        return

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
