"""A simulated cluster: ranks are threads of this process, time is virtual.

One thread runs at a time, the one whose virtual clock is smallest (ties: lowest rank).
It hands the baton on where it communicates, and only there.  So communication happens
in the order of virtual time, and two runs are the same to the last event.

All ranks share one processor: to wake a thread on another one takes longer, twice per
message.  Where other programs want that processor, the ranks move to another.
"""

import contextlib
import gc
import heapq
import itertools
import os
import sys
import threading
import time
import warnings

import torch

from .. import ship
from . import explain, torch_private
from .environment import own_environments
from .matching import Matching
from .outcome import Outcome
from .randomness import RandomStates
from .simulated import SimulatedEngine
from .streams import PerRankOutput
from .texts import shorten
from .threads import innermost_user, interrupt_thread, place, processor

LOOK = 0.1  # seconds between two looks at the ranks
COLLECT = 4_000  # calls between two collections of cyclic garbage
_one_at_a_time = threading.Lock()  # a run in another thread of the kernel waits
torch_private.register("sim")


class Stopped(BaseException):
    """Ends the ranks of a run that is over."""


class Simulator:
    """Runs one packed function on n ranks; `run()` gives the Outcome."""

    def __init__(self, n, cluster, seed=0, timeout=60.0, buffered=False, device=None):
        self.n, self.cluster, self.seed = n, cluster, seed
        self.timeout, self.device = timeout, device
        self.activity = 0
        self.failure, self.stopping = None, False
        self._events, self._order = [], itertools.count()
        self.engines = [SimulatedEngine(self, rank) for rank in range(n)]
        self.matching = Matching(self, buffered)
        self._ready = [(0.0, rank) for rank in range(n)]
        self._left, self._over = n, threading.Event()
        self.randomness = RandomStates(n, seed, device)
        self.store = torch.distributed.HashStore()

    # virtual time

    def at(self, time, callback):
        """Plan `callback` for a moment of virtual time."""
        heapq.heappush(self._events, (time, next(self._order), callback))

    def complete(self, call, finish):
        """`call` is done at `finish`; whoever waits for it may go on."""
        call.done, call.finish = True, finish
        engine = self.engines[call.rank]
        if engine.blocked is call:
            heapq.heappush(self._ready, (max(engine.clock, finish), call.rank))

    def _next(self):
        """The rank whose turn it is, after all that happens before; None: nobody."""
        events, ready = self._events, self._ready
        while events and (not ready or events[0][0] <= ready[0][0]):
            heapq.heappop(events)[2]()
        return self.engines[heapq.heappop(ready)[1]] if ready else None

    # the baton

    def check(self):
        """Raise where this run is over."""
        self.activity += 1
        if self.activity % COLLECT == 0:
            self._collect()
        if self.stopping:
            raise Stopped

    def _collect(self):
        """Free young cyclic garbage; all of it where the number of calls doubled."""
        calls = self.activity // COLLECT
        gc.collect(2 if calls & (calls - 1) == 0 else 1)

    def turn(self, engine):
        """Return when no other rank is at an earlier time."""
        self.check()
        mine, events, ready = (engine.clock, engine.rank), self._events, self._ready
        if (events and events[0][0] <= mine[0]) or (ready and ready[0] < mine):
            heapq.heappush(ready, mine)
            self.hand_on(engine)

    def hand_on(self, engine):
        """Return when it is this rank's turn again."""
        following = self._next()
        if following is engine:
            return
        if following is None:
            self.fail(explain.deadlock(self.statuses()))
            raise Stopped
        engine.stdout, loss = sys.stdout, torch_private.loss_parallel()
        engine.meter.pause()
        following.baton.release()
        engine.baton.acquire()
        if self.stopping:
            raise Stopped
        engine.meter.resume()
        sys.stdout = engine.stdout
        torch_private.set_loss_parallel(loss)
        self.randomness.enter(engine.rank)

    def leave(self, engine):
        """This rank has ended: let the next one run."""
        self._left -= 1  # before another rank runs and counts
        left = self._left
        if not self.stopping:
            following = self._next()
            if following is not None:
                following.baton.release()
            elif left:
                self.fail(explain.deadlock(self.statuses()))
        if not left:
            self._over.set()

    def fail(self, error):
        """End the run with this error; every rank is woken and stops."""
        if self.failure is None:
            self.failure = error
        self.stop()

    def stop(self):
        """Every rank ends at its next call; those that wait are woken."""
        self.stopping = True
        for engine in self.engines:
            if engine.baton.locked():
                try:
                    engine.baton.release()
                except RuntimeError:  # it was released in between
                    pass

    def statuses(self):
        return [engine.status() for engine in self.engines]

    # the run

    def run(self, payload, progress=None):
        """Run the packed (function, arguments) on every rank; gives the Outcome."""
        threads = torch.get_num_threads()
        with (
            _one_at_a_time,
            warnings.catch_warnings(),
            _ordered_collection(),
            torch_private.isolated_ranks(),
            self.randomness.kept(),
            _settings_kept(),
            own_environments(self.n),
            PerRankOutput(self) as output,
        ):
            torch.set_num_threads(1)
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
            try:
                self._start(payload)
                self._watch(progress)
            finally:
                self._end()
                torch.set_num_threads(threads)
        return self._outcome(output)

    def _start(self, payload):
        for engine in self.engines:
            engine.thread = threading.Thread(
                target=run_rank,
                args=(self, engine, payload),
                name=f"rank {engine.rank}",
                daemon=True,
            )
            engine.thread.start()
        self._gather(processor())
        self._next().baton.release()

    def _gather(self, cpu):
        """The ranks' threads run on this processor."""
        if cpu is not None:
            for engine in self.engines:
                place(engine.thread, cpu)

    def _watch(self, progress):
        """Wait for the end; stop the run when nothing happens for too long."""
        seen, since, started = -1, time.monotonic(), time.monotonic()
        while True:
            worked = time.process_time()
            if self._over.wait(LOOK):
                return
            if time.process_time() - worked < LOOK * 2 / 3:  # others took their share
                self._gather(processor())  # this thread woke where there was room
            now = time.monotonic()
            if self.activity != seen:
                seen, since = self.activity, now
            elif now - since > self.timeout and not self.stopping:
                self.fail(explain.stuck(self.statuses(), self.timeout))
            if self.stopping:
                return  # `_end` waits for the ranks, and gives up on some if it must
            if progress is not None:
                progress(now - started, self.activity)

    def _end(self):
        """Every thread has ended, or is named and left behind."""
        self.stop()
        alive = [e for e in self.engines if e.thread and e.thread.is_alive()]
        deadline = time.monotonic() + 1.0
        while alive and time.monotonic() < deadline:
            for engine in alive:
                engine.thread.join(0.02)
                if engine.thread.is_alive() and engine.blocked is None:
                    interrupt_thread(engine.thread, Stopped)
            alive = [e for e in alive if e.thread.is_alive()]
        for engine in alive:
            engine.report.status.note = "could not be stopped and is left behind"
        self.left_behind = [engine.rank for engine in alive]

    def _outcome(self, output):
        reports = []
        for engine in self.engines:
            report = engine.report
            report.status = engine.status()
            report.output = output.text(engine.rank)
            report.entries, report.events = engine.entries, engine.events
            report.warnings = engine.warnings
            report.peak_memory = engine.meter.peak + engine.meter.others_peak
            reports.append(report)
        elapsed = max(engine.clock for engine in self.engines)
        if self.failure is not None and self.left_behind:
            ranks = ", ".join(str(rank) for rank in self.left_behind)
            note = (
                f"\n  (the thread of rank {ranks} cannot be stopped and is left behind)"
            )
            self.failure.args = (self.failure.args[0] + note,)
        left_over = self.matching.left_over()
        self._let_go()
        return Outcome(reports, elapsed, self.failure, left_over)

    def _let_go(self):
        """Cut the circles of references, so that memory is free at once."""
        for engine in self.engines:
            if engine.rank not in self.left_behind:
                engine.open.clear()
                engine.sim = engine.blocked = engine.thread = engine.meter = None
        self.engines = self.matching = None
        self._events.clear()


@contextlib.contextmanager
def _ordered_collection():
    """Inside, cyclic garbage is collected at counted moments, not by chance.

    So the memory of two runs is the same; and what existed before is not searched.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _settings_kept():
    """Settings of the process that ranks may change are afterwards as they were."""
    dtype, folder = torch.get_default_dtype(), os.getcwd()
    exact = torch.are_deterministic_algorithms_enabled()
    depth = sys.getrecursionlimit()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.are_deterministic_algorithms_enabled() != exact:
            torch.use_deterministic_algorithms(exact)  # it imports the compiler
        sys.setrecursionlimit(depth)
        if os.getcwd() != folder:
            os.chdir(folder)


def run_rank(sim, engine, payload):
    """The life of one rank's thread."""
    engine.baton.acquire()
    try:
        sim.check()
        sim.randomness.enter(engine.rank)
        torch_private.set_loss_parallel(False)
        with (
            torch_private.rank_thread(engine),
            sim.randomness.device_of(sim.device),
            ship.classes_of_a_rank(),
        ):
            torch_private.join_world("sim", engine.rank, sim.n, sim.store)
            fn, args, kwargs = ship.unpack(payload)
            with engine.meter:
                value = fn(*args, **kwargs)
            engine.report.result = ship.pack_result(value)
            engine.state = "returned"
    except Stopped:
        engine.state = "stopped"
    except BaseException as error:
        engine.state = "failed"
        engine.report.error = error = ship.as_callers(error)
        shorten(error)
        engine.report.where = innermost_user(error.__traceback__)
        if not sim.stopping:
            sim.fail(explain.rank_failed(sim.statuses(), engine.rank, error))
    finally:
        fn = args = kwargs = value = None
        sim.leave(engine)
