"""Which rank this thread is, or this process."""

import threading


class _Here(threading.local):
    engine = None  # of the rank that this thread is
    world = None  # its table of process groups


here = _Here()
_of_process = None  # the engine, where the whole process is a rank


def current_engine():
    """The engine of the rank that runs in this thread, or None outside of a run."""
    return here.engine or _of_process


def rank_process(engine):
    """This process is a rank: calls in any of its threads go to `engine`."""
    global _of_process
    _of_process = engine
