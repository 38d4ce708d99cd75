"""The wires of the simulated cluster, in virtual time; it knows nothing of threads.

A transfer needs the sender's out-port, the receiver's in-port and every shared link on
its way, all at once: the ports for alpha + bytes / bandwidth, a shared link only while
bytes pass, for bytes / bandwidth, since latency passes on the way behind it.  Transfers
that find something busy wait, and are served in the order in which they became ready.
"""

import itertools
from collections import defaultdict
from functools import partial
from typing import NamedTuple

from .native import plan


class Transfer(NamedTuple):
    """What the wires serve: it holds ports, and the shared links for a shorter time."""

    order: int
    ports: tuple
    links: tuple
    seconds: float  # until it has arrived, and the ports are free
    passing: float  # until the links are free
    calls: list
    done: object

    @property
    def needs(self):
        return self.ports + self.links


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
            way = alpha, bandwidth, (("out", src), ("in", dst)), tuple(shared)
            self._ways[src, dst] = way
        alpha, bandwidth, ports, links = way
        passing = nbytes / bandwidth
        times = alpha + passing, passing
        self._serve(
            now, Transfer(next(self._orders), ports, links, *times, calls, done)
        )

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
        order, needs = next(self._orders), tuple(needs)
        self._serve(now, Transfer(order, needs, (), seconds, seconds, calls, done))

    def _serve(self, now, transfer):
        needs = transfer.needs
        if self._busy.isdisjoint(needs):
            self._busy.update(needs)
            self._begin(now, transfer)
        else:
            blocker = next(need for need in needs if need in self._busy)
            self._waiting[blocker].append(transfer)

    def _begin(self, now, transfer):
        stop = now + transfer.seconds
        for call in transfer.calls:
            call.start, call.finish = now, stop
        if transfer.links:
            passed = now + transfer.passing
            self.at(passed, partial(self._free, transfer.links, passed))
        self.at(stop, partial(self._finish, transfer, now, stop))

    def _finish(self, transfer, start, stop):
        self._busy.difference_update(transfer.ports)
        transfer.done(start, stop)
        self._serve_others(transfer.ports, stop)

    def _free(self, links, now):
        self._busy.difference_update(links)
        self._serve_others(links, now)

    def _serve_others(self, freed, now):
        """Those that waited for one of these, in the order in which they were ready."""
        if self._waiting:
            waiting = [t for need in freed for t in self._waiting.pop(need, ())]
            for transfer in sorted(waiting, key=lambda each: each.order):
                self._serve(now, transfer)
