"""The module `time` that a simulated script imports: its clocks are the rank's.

So `time.time()` around a step tells what the step takes on the simulated cluster.  As
on a GPU, a script that does not synchronise first sees how long its launches take.
"""

import builtins
import time
import types

from ...sim.torch_private import current_engine


def _virtual(name):
    usual, whole = getattr(time, name), name.endswith("_ns")
    unit, number = (1e9, int) if whole else (1, float)
    start = usual() if name.startswith("time") else 0

    def clock():
        engine = current_engine()
        if engine is None:
            return usual()
        return number(start + engine.host_time() * unit)

    clock.__name__ = name
    return clock


def _sleep(seconds):
    engine = current_engine()
    (engine or time).sleep(seconds)


def built_in():
    """A module `builtins` of a rank's own, whose `import time` finds virtual clocks."""
    own, usual = types.ModuleType("time", time.__doc__), builtins.__import__
    vars(own).update(vars(time), sleep=_sleep)
    for name in ("time", "perf_counter", "monotonic"):
        for each in (name, f"{name}_ns"):
            setattr(own, each, _virtual(each))

    def import_(name, globals=None, locals=None, fromlist=(), level=0):
        if name == "time" and not level:
            return own
        return usual(name, globals, locals, fromlist, level)

    module = types.ModuleType("builtins", builtins.__doc__)
    vars(module).update(vars(builtins), __import__=import_)
    return module
