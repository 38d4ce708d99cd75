"""The wires of the simulated cluster, in virtual time; it knows nothing of threads.

A transfer needs the sender's out-port, the receiver's in-port and every shared link on
its way, all at once, for alpha + bytes / bandwidth.  Transfers that find something busy
wait, and are served in the order in which they became ready.

On a measured machine messages take what was measured, and processors take part in it.
"""

import heapq
import itertools
import math
from collections import defaultdict
from functools import partial
from operator import itemgetter

from .native import plan


class Network:
    """Serves transfers; `at(time, callback)` plans a call in virtual time."""

    def __init__(self, cluster, at):
        self.cluster, self.at = cluster, at
        self._busy = set()
        self._waiting = defaultdict(list)  # resource -> transfers
        self._orders = itertools.count()
        self._ways = {}  # (src, dst) -> (alpha, bandwidth, what it needs)
        self._plans = {}  # a collective -> (seconds, links)

    def message(self, now, src, dst, nbytes, calls, done):
        """Send now or when the way is free, then call done(start, stop)."""
        way = self._ways.get((src, dst))
        if way is None:
            alpha, bandwidth, shared = self.cluster.path(src, dst)
            way = alpha, bandwidth, (("out", src), ("in", dst), *shared)
            self._ways[src, dst] = way
        alpha, bandwidth, needs = way
        seconds = alpha + nbytes / bandwidth
        self._serve(now, (next(self._orders), needs, seconds, calls, done))

    def collective(self, now, cost, calls, done):
        """Occupy all the group's ports for as long as NCCL would take."""
        kind, group, ranks = calls[0].kind, calls[0].group, calls[0].ranks
        key = kind, ranks, cost
        if key not in self._plans:
            self._plans[key] = plan(self.cluster, kind, ranks, cost)
        seconds, links = self._plans[key]
        needs = [("group", group, ranks), *links]
        if cost.edges:
            needs += [(way, rank) for way in ("out", "in") for rank in ranks]
        self._serve(now, (next(self._orders), tuple(needs), seconds, calls, done))

    def _serve(self, now, transfer):
        needs = transfer[1]
        if self._busy.isdisjoint(needs):
            self._busy.update(needs)
            self._begin(now, transfer)
        else:
            blocker = next(need for need in needs if need in self._busy)
            self._waiting[blocker].append(transfer)

    def _begin(self, now, transfer):
        _, _, seconds, calls, _ = transfer
        stop = now + seconds
        for call in calls:
            call.start, call.finish = now, stop
        self.at(stop, partial(self._finish, transfer, now, stop))

    def _finish(self, transfer, start, stop):
        _, needs, *_, done = transfer
        self._busy.difference_update(needs)
        done(start, stop)
        if self._waiting:
            freed = [t for need in needs for t in self._waiting.pop(need, ())]
            for waiting in sorted(freed, key=itemgetter(0)):
                self._serve(stop, waiting)


class Cores:
    """Processors that ranks and their messages share: who comes first is served first.

    Operations are short, so this is close to the turns that an operating system gives.
    """

    def __init__(self, count):
        self._free = [0.0] * count

    def take(self, now, seconds):
        """Work on the processor that is free first; return when that is done."""
        stop = max(now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, stop)
        return stop


class SharedNetwork(Network):
    """Messages between processes of one measured machine, a `MeasuredCluster`.

    k messages that are in flight together take what k took when they were measured.
    When one begins or ends, the rest of all others goes on at the new pace.
    """

    def __init__(self, cluster, at, cores):
        super().__init__(cluster, at)
        self._cores, self._flights = cores, {}  # order -> [part left, start, transfer]
        self._then, self._version = 0.0, 0

    def message(self, now, src, dst, nbytes, calls, done):
        """Send as soon as both ports are free, then call done(start, stop)."""
        needs = ("out", src), ("in", dst)
        work = [self.cluster.message_work(nbytes) / 2] * 2  # of the two ends
        self._serve(now, (next(self._orders), needs, (None, nbytes, work), calls, done))

    def collective(self, now, cost, calls, done):
        """Occupy all ports for as long as Gloo takes."""
        kind, ranks = calls[0].kind, calls[0].ranks
        ends = [(way, rank) for way in ("out", "in") for rank in ranks if cost.edges]
        needs = ("group", calls[0].group, ranks), *ends
        seconds, work = self.cluster.collective_seconds(kind, len(ranks), cost)
        about = seconds, 0, [work] * len(ranks)
        self._serve(now, (next(self._orders), needs, about, calls, done))

    def _begin(self, now, transfer):
        order, needs, (seconds, nbytes, work), calls, done = transfer
        for each in work if self._cores is not None else ():
            self._cores.take(now, each)
        if seconds is not None:
            return super()._begin(now, (order, needs, seconds, calls, done))
        for call in calls:
            call.start, call.finish = now, math.inf
        self._advance(now)
        self._flights[order] = [1.0, now, transfer]
        self._plan(now)

    def _seconds(self, transfer):
        return self.cluster.message_seconds(transfer[2][1], len(self._flights))

    def _advance(self, now):
        """What is in flight has come so far."""
        for flight in self._flights.values():
            flight[0] -= (now - self._then) / self._seconds(flight[2])
        self._then = now

    def _plan(self, now):
        """The next message ends when it would, if nothing else begins before."""
        self._version += 1
        rest = [f[0] * self._seconds(f[2]) for f in self._flights.values()]
        if rest:
            then = now + max(min(rest), 0.0)
            self.at(then, partial(self._land, self._version, then))

    def _land(self, version, now):
        if version != self._version:
            return  # something has begun or ended since
        self._advance(now)
        landed = [o for o, flight in self._flights.items() if flight[0] < 1e-9]
        ended = [self._flights.pop(order) for order in landed]
        self._plan(now)
        for _, start, transfer in ended:
            for call in transfer[3]:
                call.finish = now
            self._finish(transfer, start, now)
