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
import threading
import time
import warnings

import torch

from ..report import explain
from ..report.engine import where_called
from ..report.threads import STRIKES, importing, place, processor
from . import torch_private
from .environment import own_environments
from .interrupts import Interrupts
from .matching import Matching
from .offspring import Offspring
from .outcome import Outcome
from .patience import Patience
from .pipes import OUTPUT_LIMIT
from .process_state import ordered_collection, patches_undone, settings_kept
from .randomness import RandomStates
from .rank import Stopped, run_rank
from .simulated import SimulatedEngine
from .streams import PerRankOutput

LOOK = 0.1  # seconds between two looks at the ranks
LONGEST_IMPORT = 30.0  # seconds until a rank that imports is interrupted all the same
COLLECT = 4_000  # calls between two collections of cyclic garbage
_one_at_a_time = threading.Lock()  # a run in another thread of the kernel waits
torch_private.register("sim")


class Simulator:
    """Runs one packed function on n ranks; `run()` gives the Outcome.

    `executed`: so many ranks are executed.  If that is one, all others do what it does.
    """

    def __init__(
        self, n, cluster, seed=0, timeout=60.0, buffered=False, device=None,
        executed=None,
    ):  # fmt: skip
        self.n, self.cluster, self.seed = n, cluster, seed
        self.executed = executed = executed or n
        self.timeout, self.device = timeout, device
        self.activity = 0
        self.failure, self.stopping, self.warnings = None, False, []
        self._events, self._order = [], itertools.count()
        self.engines = [SimulatedEngine(self, rank) for rank in range(executed)]
        self.matching = Matching(self, buffered)
        self._ready = [(0.0, rank) for rank in range(executed)]
        self._left, self._over = executed, threading.Event()
        self.randomness = RandomStates(n, seed, device)
        self.store = torch.distributed.HashStore()
        self.output, self.offspring = PerRankOutput(n, self._too_much), Offspring()

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
        loss = torch_private.loss_parallel()
        engine.put_down()
        following.baton.release()
        engine.baton.acquire()
        if self.stopping:
            raise Stopped
        engine.take_up()
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
                with contextlib.suppress(RuntimeError):  # it was released in between
                    engine.baton.release()

    def statuses(self):
        return [engine.status() for engine in self.engines]

    def _turns(self):
        """The statuses; ranks that could go on but wait for their turn say so."""
        ready = {rank for _, rank in list(self._ready)}
        statuses = self.statuses()
        for status in statuses:
            runs = status.state == "running" and not status.call and not status.polls
            if runs and status.rank in ready:
                status.state = "ready"
        return statuses

    # the run

    def run(self, payload, progress=None):
        """Run the packed (function, arguments) on every rank; gives the Outcome."""
        threads, started = torch.get_num_threads(), time.monotonic()
        warn = self.warnings.append
        with (
            _one_at_a_time,
            warnings.catch_warnings(),
            ordered_collection(),
            torch_private.isolated_ranks(),
            patches_undone(warn),
            self.randomness.kept(),
            settings_kept(warn),
            own_environments(self.n, self.cluster.per_node),
            self.output,
            self.offspring,
        ):
            torch.set_num_threads(1)
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
            try:
                self._start(payload)
                self._watch(progress)
            except KeyboardInterrupt:
                seconds = time.monotonic() - started
                self.failure = explain.interrupted(self._turns(), seconds)
            finally:
                with Interrupts():  # a second one has to wait
                    self._end()
                torch.set_num_threads(threads)
        return self._outcome()

    def _start(self, payload):
        for engine in self.engines:
            args, name = (self, engine, [payload]), f"rank {engine.rank}"
            engine.thread = threading.Thread(None, run_rank, name, args, daemon=True)
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
        patience, started = Patience(self.timeout), time.monotonic()
        while True:
            worked = time.process_time()
            if self._over.wait(LOOK):
                return
            if time.process_time() - worked < LOOK * 2 / 3:  # others took their share
                self._gather(processor())  # this thread woke where there was room
            if not self.stopping:
                self._look(patience)
            if self.stopping:
                return  # `_end` waits for the ranks, and gives up on some if it must
            if progress is not None:
                progress(time.monotonic() - started, self.activity, self._glance)

    def _look(self, patience):
        """End the run where nothing has happened for too long."""
        steps = sum(len(e.entries) + (e.state != "running") for e in self.engines)
        naps = sum(engine.naps for engine in self.engines)
        printed, tasks = sum(self.output.printed), self._able()
        over = patience.over(steps, printed, naps, self._importing, tasks)
        if over is not None:
            self.fail(explain.stuck(self._turns(), over))

    def _able(self):
        """The numbers of the threads that need a processor now: one has the baton."""
        waiting = {rank for _, rank in list(self._ready)}
        return [
            engine.thread.native_id
            for engine in self.engines
            if engine.state == "running" and engine.blocked is None
            and engine.rank not in waiting and engine.thread
        ]  # fmt: skip

    def _importing(self):
        threads = [e.thread for e in self.engines if e.thread and e.thread.is_alive()]
        return any(map(importing, threads))

    def _glance(self):
        return [engine.glance() for engine in self.engines]

    def _too_much(self, rank):
        """End the run: the ranks have printed more than they may."""
        status = self.engines[rank].status()
        status.where = where_called()
        statuses = [status if s.rank == rank else s for s in self.statuses()]
        self.fail(explain.printed_too_much(statuses, OUTPUT_LIMIT))
        raise Stopped

    def _end(self):
        """Every thread has ended, or is named and left behind."""
        self.stop()
        alive = [e for e in self.engines if e.thread and e.thread.is_alive()]
        for engine in alive:
            engine.thread.join(0.02)
        deadline = time.monotonic() + LONGEST_IMPORT
        while self._importing() and time.monotonic() < deadline:
            time.sleep(0.02)
        for _ in range(STRIKES):
            alive = [e for e in alive if e.thread.is_alive()]
            for engine in alive:
                if engine.blocked is None:
                    engine.life.interrupt(Stopped)
            deadline = time.monotonic() + 1.0 / STRIKES
            for engine in alive:
                engine.thread.join(max(0.0, deadline - time.monotonic()))
        alive = [e for e in alive if e.thread.is_alive()]
        for engine in alive:
            engine.report.status.note = "could not be stopped and is left behind"
        self.left_behind = [engine.rank for engine in alive]
        self.offspring.end([engine.report.error for engine in self.engines])

    def _outcome(self):
        reports = []
        self.failure = self.failure or self.matching.missed_group(self.engines)
        for engine in self.engines:
            report = engine.report
            report.status = engine.status()
            report.output = self.output.text(engine.rank)
            report.entries, report.events = engine.entries, engine.events
            report.warnings = engine.warnings
            if engine.state == "returned":
                report.never_waited = engine.never_waited()
            report.peak_memory = engine.meter.peak + engine.meter.others_peak
            report.aside = engine.meter.aside
            reports.append(report)
        reports[0].warnings += self.warnings
        elapsed = max(engine.clock for engine in self.engines)
        if self.failure is not None and self.left_behind:
            ranks = ", ".join(str(rank) for rank in self.left_behind)
            note = f"the thread of rank {ranks} cannot be stopped and is left behind"
            self.failure.args = (f"{self.failure.args[0]}\n  ({note})",)
        left_over = self.matching.left_over()
        self._let_go()
        return Outcome(reports, elapsed, self.failure, left_over)

    def _let_go(self):
        """Cut the circles of references, so that memory is free at once."""
        for engine in self.engines:
            if engine.rank not in self.left_behind:
                engine.open.clear()
                engine.sim = engine.blocked = engine.thread = engine.meter = None
                engine.belongings = engine.gpus = None
        self.engines = self.matching = self.output = None
        self._events.clear()
