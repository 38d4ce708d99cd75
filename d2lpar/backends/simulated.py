"""A rank of the simulated cluster: its clock, its record and its calls in progress."""

import threading

import torch

from . import torch_private
from .calls import MESSAGES
from .engine import Engine, Status, waiting
from .meter import Meter
from .outcome import RankReport
from .threads import user_line

POLL = 1e-6  # virtual seconds that a look at `is_completed` costs


class SimulatedWork(torch_private.CallWork):
    """A call in progress in virtual time."""

    def __init__(self, engine, call):
        super().__init__(engine, call)
        self.done, self.finish = False, 0.0

    def wait(self, timeout=None):
        self.engine.wait(self)
        return True

    def is_completed(self):
        return self.engine.poll(self)

    def get_future(self):
        """A future of the outputs; inside backward it is completed at its end.

        DistributedDataParallel waits for it in C++, where no other rank could run.
        """
        future = torch.futures.Future()

        def complete():
            self.wait()
            future.set_result(self.call.outputs)

        if torch_private.inside_backward():
            torch_private.after_backward(complete)
        else:
            complete()
        return future


class SimulatedEngine(Engine):
    """One rank: its clock, its thread's baton, its record."""

    def __init__(self, sim, rank):
        super().__init__(rank, sim.n)
        self.sim, self.clock = sim, 0.0
        self.baton = threading.Lock()
        self.baton.acquire()
        self.state, self.blocked = "running", None
        self.report = RankReport(rank, Status(rank))
        free = sim.cluster.free_compute
        self.meter = Meter(None if free else self.charge)
        self.thread = None

    # what a rank asks for

    def begin(self, call):
        if not (call.batch and call.batch == self.sim.last_batch.get(self.rank)):
            self.sim.turn(self)
        self.sim.last_batch[self.rank] = call.batch
        work = SimulatedWork(self, call)
        self.sim.matching.post(self.clock, work)
        return work

    def wait(self, work):
        started = self.clock
        self.sim.check()
        if not work.done:
            self.blocked = work
            self.sim.block(self)
            self.blocked = None
        self.clock = max(self.clock, work.finish)
        if self.clock > started:
            self.record("compute", "wait", started, self.clock)
        self.waited(work.call, work.source)

    def poll(self, work):
        self.clock += POLL
        self.sim.turn(self)
        if work.done:
            self.waited(work.call, work.source)
        return work.done

    def sleep(self, seconds):
        start = self.clock
        self.clock += seconds * self.sim.cluster.slow_factor(self.rank)
        self.record("compute", "sleep", start, self.clock)
        self.sim.activity += 1

    def now(self):
        return self.clock

    def charge(self, name, flops, nbytes, dtype):
        seconds = self.sim.cluster.compute_seconds(self.rank, flops, nbytes, dtype)
        self.record("compute", name, self.clock, self.clock + seconds, nbytes, flops)
        self.clock += seconds

    def storage_resized(self, storage):
        self.meter.resized(storage)

    def status(self):
        """What this rank is doing, for messages."""
        call = waiting(self.blocked.call) if self.blocked else None
        pending = [waiting(c) for c in self.open.values() if c.kind not in MESSAGES]
        where = self.report.where
        if self.state == "running" and call is None and self.thread:
            where = user_line(self.thread)
        return Status(self.rank, self.state, call, pending, where)
