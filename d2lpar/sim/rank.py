"""The life of a simulated rank: a thread that has the baton, or waits for it."""

import sys

from ..report import explain
from ..report.texts import shorten
from ..report.threads import beginning, innermost_user, users_part
from . import by_value, ship, torch_private


class Stopped(BaseException):
    """Ends the ranks of a run that is over."""


def run_rank(sim, engine, payload):
    """The life of one rank's thread; `payload` is a list, which it empties."""
    engine.baton.acquire()
    try:
        sim.check()
        sys.stdout = sim.output
        sim.randomness.enter(engine.rank)
        torch_private.set_loss_parallel(False)
        with (
            torch_private.rank_thread(engine),
            sim.randomness.device_of(sim.device),
            by_value.classes_of_a_rank(),
        ):
            torch_private.join_world("sim", engine.rank, sim.n, sim.store)
            # what is raised from outside arrives in the function, nowhere else
            engine.report.result = engine.life.run(lambda: _call(engine, payload))
            engine.state = "returned"
    except Stopped:
        engine.state = "stopped"
    except BaseException as error:
        engine.state = "failed"
        trace = error.__traceback__
        engine.report.where = innermost_user(trace)
        if not engine.report.where[0]:
            engine.report.where = engine.function
        error = ship.as_callers(error.with_traceback(users_part(trace)))
        shorten(error)
        engine.report.error = error
        if not sim.stopping:
            sim.fail(explain.rank_failed(sim.statuses(), engine.rank, error))
    finally:
        sim.leave(engine)


def _call(engine, payload):
    """The packed result of the function."""
    fn, args, kwargs = ship.unpack(payload.pop())
    engine.function = beginning(fn)
    with engine.meter:
        value = fn(*args, **kwargs)
    for tensor in torch_private.tensors_in([value]) if engine.open else ():
        engine.looked_at(tensor, "returned")
    return ship.pack_result(value)
