"""Runs and the threads that start them, ended from outside when their time is over."""

import contextlib
import threading
import time
import weakref

from ..report.errors import RankError
from ..report.threads import interrupt_thread

_seconds = _end = float("inf")
# Threads that begin no run any more, and those that are inside of one.
_ended, _running, _gate = weakref.WeakSet(), weakref.WeakSet(), threading.Lock()


@contextlib.contextmanager
def time_limit(seconds):
    """A run that goes on after `seconds` ends with a RankError, however busy it is."""
    global _seconds, _end
    outer = _seconds, _end
    _seconds, _end = seconds, time.monotonic() + seconds
    try:
        yield
    finally:
        _seconds, _end = outer


def check_time(activity):
    """Raise RankError where the time is over; the run has made `activity` calls."""
    if time.monotonic() > _end:
        raise RankError(f"not at an end after {_seconds:g} s and {activity:,} calls")


class TimeUp(BaseException):
    """Raised in a thread that `end_thread` ends; `except Exception` lets it pass."""


@contextlib.contextmanager
def running():
    """Inside is a run, which `end_thread` does not interrupt."""
    with _gate:
        if threading.current_thread() in _ended:
            raise TimeUp
        _running.add(threading.current_thread())
    try:
        yield
    finally:
        with _gate:
            _running.discard(threading.current_thread())


def end_thread(thread, seconds):
    """The thread, which may start runs, has ended; after `seconds` it is left behind.

    It ends where it begins its next run, else between any two instructions.  Inside of
    a run it is not interrupted: that would leave the process with half of it undone.
    """
    with _gate:
        _ended.add(thread)
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(0.02)
        with _gate:
            if thread not in _running:
                interrupt_thread(thread, TimeUp)
