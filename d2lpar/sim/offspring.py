"""Processes that ranks start while ranks are threads: none of them outlives the run.

Every process that a rank starts, or a thread that a rank has started, is noted.  What
the kernel itself starts meanwhile is not.  What such a thread computes is its rank's.
"""

import _thread
import contextlib
import functools
import gc
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

from ..report.texts import chain
from .torch_private import current_engine

# Where Python starts a thread; which of them there are depends on its version.
STARTS = [(_thread, "start_new_thread"), (_thread, "start_joinable_thread")]
STARTS += [(threading, f"_{name}") for _, name in STARTS]
PARTING = 0.5  # seconds in which pools and loaders may end their processes themselves


class Offspring:
    """A context: `end(errors)` ends what ranks have started inside."""

    def __init__(self):
        self._processes, self._threads = [], set()
        self._here = threading.local()  # `meter`: that of the rank that started us

    def __enter__(self):
        self._usual = [
            (subprocess.Popen, "__init__", self._processes.append),
            (multiprocessing.process.BaseProcess, "start", self._processes.append),
            (threading.Thread, "start", self._threads.add),
        ]
        self._usual = [
            (cls, name, vars(cls)[name], self._noting(vars(cls)[name], note))
            for cls, name, note in self._usual
        ]
        self._usual += [
            (module, name, vars(module)[name], self._metering(vars(module)[name]))
            for module, name in STARTS
            if name in vars(module)
        ]
        for cls, name, _, noting in self._usual:
            setattr(cls, name, noting)
        return self

    def __exit__(self, *_):
        for cls, name, usual, noting in self._usual:
            if vars(cls)[name] is noting:
                setattr(cls, name, usual)

    def _noting(self, usual, note):
        """`usual`, a method that starts something, and the rank's start is noted."""

        @functools.wraps(usual)
        def start(this, *args, **kwargs):
            if current_engine() or threading.current_thread() in self._threads:
                note(this)
            return usual(this, *args, **kwargs)

        return start

    def _metering(self, usual):
        """`usual` starts a thread, and what it does counts for the rank that did so."""

        @functools.wraps(usual)
        def start(function, *args, **kwargs):
            engine = current_engine()
            meter = engine.meter if engine else getattr(self._here, "meter", None)
            if meter is None:
                return usual(function, *args, **kwargs)

            def metered(*given, **named):
                self._here.meter = meter
                with meter.beside():
                    return function(*given, **named)

            return usual(metered, *args, **kwargs)

        return start

    def _alive(self):
        return [process for process in self._processes if _runs(process)]

    def end(self, errors=()):
        """No process of a rank runs; `errors` of ranks may hold their owners."""
        if self._processes:
            for process in self._alive():
                if isinstance(process, subprocess.Popen):
                    _kill(process)
            self._free(_clear_frames, errors)
            if self._alive():
                self._free(_drop_frames, errors)
            if self._alive():
                _end_pools(self._processes)
            for process in self._alive():
                _kill(process)
        self._processes.clear()
        self._threads.clear()

    def _free(self, let_go, errors):
        """Loaders and pools that are freed have ended the processes that are theirs."""
        for error in errors:
            let_go(error)
        gc.collect()
        deadline = time.monotonic() + PARTING
        while self._busy() and time.monotonic() < deadline:
            time.sleep(0.01)
        gc.collect()

    def _busy(self):
        return self._alive() or any(thread.is_alive() for thread in self._threads)


def _runs(process):
    if isinstance(process, subprocess.Popen):
        return hasattr(process, "pid") and process.poll() is None
    return getattr(process, "_popen", None) is not None and process.exitcode is None


def _end_pools(processes):
    """Pools that somebody still holds would start workers anew, so they end first."""
    pools = sys.modules.get("multiprocessing.pool")
    for each in gc.get_objects() if pools else ():
        if issubclass(type(each), pools.Pool) and set(each._pool) & set(processes):
            each.terminate()
            each.join()
            files = each._inqueue, each._outqueue, each._change_notifier, *each._pool
            for holder in files:
                holder.close()


def _clear_frames(error):
    """The frames in which an error was raised hold no values any more."""
    for each in chain(error):
        traceback.clear_frames(each.__traceback__)


def _drop_frames(error):
    """The error holds no frames any more, whose functions hold their globals."""
    for each in chain(error):
        each.__traceback__ = None


def _kill(process):
    """The process has ended, and those below it."""
    for pid in [process.pid, *_below(process.pid)]:
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    with contextlib.suppress(subprocess.TimeoutExpired):
        if isinstance(process, subprocess.Popen):
            process.wait(5.0)
        else:
            process.join(5.0)


def _below(pid):
    """Ids of the processes that this one has started, and those, as far as known."""
    found = []
    with contextlib.suppress(OSError):  # Linux only
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [*_below(child), child]
    return found
