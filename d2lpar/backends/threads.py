"""Looking into other threads of this process, placing them, and stopping them."""

import contextlib
import ctypes
import os
import sys

from .engine import _OURS, _TORCH

_HIDDEN = (_OURS + "backends", _OURS + "ship.py")


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
        elif name.startswith(_OURS) and not name.startswith(_HIDDEN):
            ours = name, traceback.tb_lineno
        traceback = traceback.tb_next
    return where if where[0] else ours


def is_users(name):
    """Return whether a file is the user's, and not torch's, ours or Python's."""
    return not name.startswith((_TORCH, _OURS, "<frozen")) and not name.startswith(
        sys.base_prefix
    )


def interrupt_thread(thread, exception):
    """`exception` is raised in the thread when it next executes Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(exception)
    )


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
