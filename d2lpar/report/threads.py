"""Looking into other threads of this process, placing them, and stopping them."""

import contextlib
import ctypes
import inspect
import os
import sys
import threading

from .engine import _OURS, _WORLDS, is_users


def user_line(thread):
    """(file, line) that the thread executes, in the user's code."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def innermost_user(traceback):
    """(file, line) of the last frame of the user's code in a traceback."""
    where, ours = ("", 0), ("", 0)
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_users(name):
            where = name, traceback.tb_lineno
        elif name.startswith(_OURS) and not name.startswith(_WORLDS):
            ours = name, traceback.tb_lineno
        traceback = traceback.tb_next
    return where if where[0] else ours


def beginning(fn):
    """(file, line) where a function begins, as far as it is one."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def importing(thread):
    """Return whether the thread is importing a module.

    An interrupted import may leave half a module for the rest of the process.
    """
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def users_part(traceback):
    """The traceback from the first frame of the user's code on, or all of it."""
    part = traceback
    while part is not None and not is_users(part.tb_frame.f_code.co_filename):
        part = part.tb_next
    return part or traceback


def interrupt_thread(thread, exception):
    """`exception` is raised in the thread when it next executes Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(exception)
    )


STRIKES = 3  # so often a thread is interrupted that goes on


class Interruptible:
    """A part of a thread's life in which another thread may interrupt it.

    An exception from outside arrives between any two instructions, so also in the
    `finally` of the part itself.  Each is borne by a level of its own: when `run` ends,
    however it ends, none is on its way and none can come any more.
    """

    def __init__(self):
        self._gate, self._thread, self._left = threading.RLock(), None, STRIKES

    def run(self, body, level=STRIKES):
        """What `body()` gives; only inside of it can `interrupt` reach this thread."""
        try:
            if level:
                return self.run(body, level - 1)
            self._thread = threading.current_thread()
            return body()
        finally:
            self._close()

    def _close(self):
        self._gate.acquire()  # for ever; again costs nothing, it is this thread's
        if self._left < STRIKES:
            _withdraw()

    def interrupt(self, exception):
        """Raise `exception` in the thread if it is inside of `run`."""
        if self._thread is None or not self._left:
            return
        if self._gate.acquire(blocking=False):
            self._left -= 1
            interrupt_thread(self._thread, exception)
            self._gate.release()


class _Nothing(BaseException):
    """Takes the place of an exception that is on its way."""


def _withdraw():
    """No exception is on its way to this thread any more.

    To withdraw it by None would leave Python 3.11 looking for it for ever: then no
    function begins any more under a profiler or a debugger.
    """
    with contextlib.suppress(_Nothing):
        interrupt_thread(threading.current_thread(), _Nothing)
        while True:  # at the end of a round it is raised
            pass


# Places

_getcpu = getattr(ctypes.pythonapi, "sched_getcpu", None)  # Linux


def processor():
    """The number of the processor that executes this thread; None: not known."""
    return _getcpu() if _getcpu and hasattr(os, "sched_setaffinity") else None


def place(thread, cpu):
    """The thread runs on this processor only, where the system allows it."""
    if thread.is_alive():  # else its number may be another thread's by now
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread.native_id, {cpu})
