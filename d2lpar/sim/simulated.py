"""A rank of the simulated cluster: its clock, its record and its calls in progress."""

import sys
import threading
import time

import torch

from ..report import explain
from ..report.calls import MESSAGES
from ..report.engine import Engine, Status, waiting, where_called
from ..report.threads import Interruptible, user_line
from . import races, torch_private
from .meter import EMPTY, ITEM, Meter
from .outcome import RankReport

POLL = 1e-6  # virtual seconds that a look at `is_completed` costs
GLANCE = 1e-7  # virtual seconds that a look at a script's clock costs


class SimulatedWork(torch_private.CallWork):
    """A call in progress in virtual time."""

    def wait(self, timeout=None):
        gpus = self.engine.gpus
        if gpus is None or not gpus.postpones(self):
            self.engine.wait(self.call)
        return True

    def is_completed(self):
        return self.engine.poll(self.call)

    def get_future(self):
        """A future of the outputs, which is done when somebody has needed it."""
        return torch_private.Later(self)


class SimulatedEngine(Engine):
    """One rank: its clock, its thread's baton, its record."""

    def __init__(self, sim, rank):
        super().__init__(rank, sim.n)
        self.sim, self.cluster = sim, sim.cluster
        self.clock = 0.0  # of the device, or the stream that works: when all is done
        self.host = 0.0  # of the thread that asks: it runs ahead, launch by launch
        self._paid, self._computed = 0.0, []  # until when overlap is paid; since then
        self.aside = []  # (start, finish) of calls that a side stream has waited for
        self.baton = threading.Lock()
        self.baton.acquire()
        self.state, self.blocked = "running", None
        self.report = RankReport(rank, Status(rank))
        free = sim.cluster.free_compute
        shapes = sim.device is not None and torch.device(sim.device).type == "meta"
        charge = None if free else self.charge
        self.meter = Meter(charge, self.open, self.raced, shapes)
        self.belongings = [self.meter]  # what is in place while this rank runs
        self.thread, self.life = None, Interruptible()
        self.function = ("", 0)  # where the function begins that this rank executes
        self.naps = 0  # how often it has slept
        self._polled, self._looked = None, 0.0  # at which call, when
        self._last_batch = 0
        self.filling = {}  # id of a storage -> the Work of a functional collective
        self._groups = {}  # name of a group -> its number in this run

    # taking turns

    def put_down(self):
        """Another rank runs from now on: this one's belongings make room."""
        self.stdout = sys.stdout
        for each in self.belongings:
            each.pause()

    def take_up(self):
        """This rank goes on, with what it had."""
        for each in self.belongings:
            each.resume()
        sys.stdout = self.stdout

    # what a rank asks for

    def agree(self, ranks):
        """All ranks make this group now, or the run ends."""
        self.sim.matching.make_group(self.asked_for(ranks))

    def group_made(self, group, store):
        number = self.sim.matching.number_of(group.key, group.ranks)
        self._groups[group.key] = number

    def begin(self, call):
        self.start(call)
        return SimulatedWork(self, call)

    def carry_out(self, call):
        """The call is complete; nobody else sees it, so it needs no Work."""
        self.enter(call)
        self.start(call)
        self.wait(call)

    def looked_at(self, tensor, how="read"):
        while race := races.met(self.open.values(), [(0, "", False)], (tensor,)):
            self.raced(*race[:2], how)

    def raced(self, call, tensor, how):
        """End the run: this rank has used what a call in flight does.

        In a stream of its GPU that waits for the call, it has used it afterwards.
        """
        if self.gpus is not None and self.gpus.in_order(call):
            return self.wait(call)
        statuses = self.sim.statuses()
        mine = statuses[self.rank]
        mine.where = where_called() if how != "returned" else ("", 0)
        what = f"{how} {races.name_of(tensor, mine.where)}"
        self.sim.fail(explain.race(statuses, self.rank, call, what))
        self.sim.check()

    def start(self, call):
        """All others know of the call; those of a batch begin at once."""
        while len(self.open) > 1 and (race := races.together(self.open.values(), call)):
            self.raced(*race, f"gave {call.kind}")
        if not call.batch or call.batch != self._last_batch:
            self.sim.turn(self)
            if self._contend():
                self.sim.turn(self)
        self._last_batch = call.batch
        matching, group = self.sim.matching, self._groups[call.group]
        if call.kind == "send":
            matching.send(self.clock, group, call)
        elif call.kind == "recv":
            matching.receive(self.clock, group, call)
        else:
            matching.join(self.clock, group, call)

    def wait(self, call):
        """The call is complete, and the rank knows it."""
        if self.sim.stopping:
            self.sim.check()
        if not call.done:
            self.blocked = call
            self.sim.hand_on(self)
            self.blocked = None
        if self.beside and call.start is not None:
            self.aside.append((call.start, call.finish))
        self.reach(call.finish, call.where)
        self.waited(call)

    def reach(self, moment, where):
        """The device, or the stream that it works in, goes on at this moment."""
        self._contend()
        if moment > self.clock:
            if not self.beside:
                self.record("compute", "wait", self.clock, moment, where=where)
            self.clock = moment

    def poll(self, call):
        """Is the call complete?  To look takes a moment, in which others go on."""
        self.host = self.clock = self.clock + POLL
        self.sim.turn(self)
        if call.done:
            self._contend()
            self.waited(call)
        else:
            self._polled, self._looked = call, time.monotonic()
        return call.done

    def _contend(self):
        """What was computed while bytes of this rank moved has taken longer.

        The kernels that communicate take processors and memory bandwidth.  The time
        is added where the rank calls the next time; gives whether it is any.
        """
        if self.beside or self._paid == self.clock or not self.cluster.contention:
            return False  # nothing was computed, or nobody is the slower for it
        before, self._paid = self._paid, self.clock
        flying = [
            (c.start, c.finish) for c in self.open.values() if c.start is not None
        ]
        flying += self.aside
        moving = [(max(start, before), end) for start, end in flying if end > before]
        both = sum(_covered(*span, moving) for span in self._computed)
        self._computed, self.aside = [], []
        if both:
            begin, where = self.clock, where_called()
            self._paid = self.clock = begin + both * self.cluster.contention
            self.record("compute", "slowed", begin, self.clock, where=where)
        return both > 0

    def sleep(self, seconds):
        start, about = self.clock, {"where": where_called(), "label": self.label}
        self.clock += seconds * self.cluster.slow_factor(self.rank)
        self.host = self.clock
        self.record("compute", "sleep", start, self.clock, **about)
        self.sim.activity += 1
        self.naps += 1

    def now(self):
        self.host = self.clock  # who asks has waited for the device
        return self.clock

    def host_time(self):
        """Seconds on the clock of the thread that asks, ahead of its device's.

        To look takes a moment.  Where computing is free, there is only one clock.
        """
        if self.cluster.free_compute:
            self.host = self.clock
        self.host += GLANCE
        self.clock = max(self.clock, self.host)
        return self.host

    def charge(self, name, flops, nbytes, dtype):
        """The device does an operation, as soon as it is free and has been asked.

        The event holds the time in which the device waits for the launch, too.
        """
        cluster, begin = self.cluster, self.clock
        if name == EMPTY or (name == ITEM and torch_private.number_of_steps()):
            return  # the allocator of a GPU keeps its memory, the host these numbers
        seconds = cluster.compute_seconds(self.rank, flops, nbytes, dtype)
        self.host += cluster.launch_seconds(self.rank)
        self.clock = max(self.clock, self.host) + seconds
        if name == ITEM:
            self.host = self.clock
        about = {"where": where_called(), "label": self.label}
        name = name.rstrip("_")
        if self.cluster.contention and not self.beside:
            self._computed.append((begin, self.clock))
        self.record("compute", name, begin, self.clock, nbytes, flops, **about)

    def storage_resized(self, storage):
        self.meter.resized(storage)

    def glance(self):
        """What this rank is doing, without the line: fast."""
        call = self.blocked
        call = waiting(call) if call else None
        status = Status(self.rank, self.state, call, steps=len(self.entries))
        status.printed = self.sim.output.printed[self.rank]
        return status

    def status(self):
        """What this rank is doing, for messages."""
        status = self.glance()
        status.open = [
            waiting(c) for c in list(self.open.values()) if c.kind not in MESSAGES
        ]
        status.where, status.called = self.report.where, dict(self.called)
        if self.state == "running" and status.call is None and self.thread:
            status.where = user_line(self.thread)
            recent = time.monotonic() - self._looked < max(1.0, self.sim.timeout / 2)
            if recent and self._polled is not None and self._polled.id in self.open:
                status.polls = waiting(self._polled)
        return status


def _covered(begin, end, spans):
    """How much of the time from begin to end is inside any of the spans."""
    total, reached = 0.0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            total, reached = total + stop - start, stop
    return total
