"""The wires of the simulated cluster, in virtual time; it knows nothing of threads.

A transfer needs the sender's out-port, the receiver's in-port and every shared link on
its way, all at once: the ports for alpha + bytes / bandwidth, a shared link only while
bytes pass, for bytes / bandwidth, since latency passes on the way behind it.  Transfers
that find something busy wait, and are served in the order in which they became ready.
One that a stream of a GPU has asked for in the past begins when its way was last free.
"""

import itertools
from collections import defaultdict
from functools import partial
from operator import itemgetter

from .native import plan


class Network:
    """Serves transfers; `at(time, callback)` plans a call in virtual time."""

    def __init__(self, cluster, at):
        self.cluster, self.at = cluster, at
        self._busy, self._freed = set(), {}  # resources; when it was last free
        self._waiting = defaultdict(list)  # resource -> transfers
        self._orders = itertools.count()
        self._ways = {}  # (src, dst) -> (alpha, bandwidth, what it needs)
        self._plans = {}  # a collective -> (seconds, links)

    def message(self, now, src, dst, nbytes, calls, done):
        """Send now or when the way is free, then call done(start, stop)."""
        way = self._ways.get((src, dst))
        if way is None:
            alpha, bandwidth, shared = self.cluster.path(src, dst)
            ports = ("out", src), ("in", dst)
            way = self._ways[src, dst] = alpha, bandwidth, ports, tuple(shared)
        alpha, bandwidth, ports, links = way
        passing = nbytes / bandwidth
        times = alpha + passing, passing
        self._serve(now, (next(self._orders), ports, links, *times, calls, done))

    def collective(self, now, kind, group, ranks, cost, calls, done):
        """Occupy all the group's ports for as long as NCCL would take."""
        key = kind, ranks, cost
        if key not in self._plans:
            self._plans[key] = plan(self.cluster, kind, ranks, cost)
        seconds, links = self._plans[key]
        needs = [("group", group, ranks), *links]
        if cost.edges:
            needs += [(way, rank) for way in ("out", "in") for rank in ranks]
        order, times = next(self._orders), (seconds, seconds)
        self._serve(now, (order, tuple(needs), (), *times, calls, done))

    def _serve(self, now, transfer):
        needs = transfer[1] + transfer[2]
        if self._busy.isdisjoint(needs):
            self._busy.update(needs)
            freed = max(self._freed.get(need, 0.0) for need in needs)
            self._begin(max(now, freed), *transfer[1:])
        else:
            blocker = next(need for need in needs if need in self._busy)
            self._waiting[blocker].append(transfer)

    def _begin(self, now, ports, links, seconds, passing, calls, done):
        stop, passed = now + seconds, now + passing
        for call in calls:
            call.start, call.finish = now, stop
        if links:
            self.at(passed, partial(self._free, passed, links))
        self.at(stop, partial(self._free, stop, ports, partial(done, now, stop)))

    def _free(self, now, needs, done=None):
        self._busy.difference_update(needs)
        self._freed.update(dict.fromkeys(needs, now))
        if done is not None:
            done()
        if self._waiting:
            freed = [t for need in needs for t in self._waiting.pop(need, ())]
            for waiting in sorted(freed, key=itemgetter(0)):
                self._serve(now, waiting)
