"""The wires of the simulated cluster, in virtual time; it knows nothing of threads.

A transfer needs the sender's out-port, the receiver's in-port and every shared link on
its way, all at once, for alpha + bytes / bandwidth.  Transfers that find something busy
wait, and are served in the order in which they became ready.
"""

import itertools
from collections import defaultdict
from functools import partial
from operator import itemgetter


class Network:
    """Serves transfers; `at(time, callback)` plans a call in virtual time."""

    def __init__(self, cluster, at):
        self.cluster, self.at = cluster, at
        self._busy = set()
        self._waiting = defaultdict(list)  # resource -> transfers
        self._orders = itertools.count()
        self._ways = {}  # (src, dst) -> (alpha, bandwidth, what it needs)
        self._shapes = {}  # edges of a collective -> (alpha, seconds per byte, links)

    def message(self, now, src, dst, nbytes, done):
        """Send now or when the way is free, then call done(start, stop)."""
        way = self._ways.get((src, dst))
        if way is None:
            alpha, bandwidth, shared = self.cluster.path(src, dst)
            way = alpha, bandwidth, (("out", src), ("in", dst), *shared)
            self._ways[src, dst] = way
        alpha, bandwidth, needs = way
        self._serve(now, (next(self._orders), needs, alpha + nbytes / bandwidth, done))

    def collective(self, now, group, ranks, cost, steps, done):
        """Occupy all the group's ports for the time of the formula."""
        alpha, per_byte, links = self._shape(ranks, cost.edges)
        seconds = cost.latencies * alpha + per_byte * sum(steps)
        needs = [("group", group, ranks), *links]
        if cost.edges:
            needs += [("out", rank) for rank in ranks] + [
                ("in", rank) for rank in ranks
            ]
        self._serve(now, (next(self._orders), tuple(needs), seconds, done))

    def _shape(self, ranks, edges):
        """The slowest edge, when all are in use and shared links are divided."""
        if (ranks, edges) not in self._shapes:
            paths = [self.cluster.path(ranks[i], ranks[j]) for i, j in edges]
            users = defaultdict(int)
            for _, _, shared in paths:
                for link in shared:
                    users[link] += 1
            alpha = max((path[0] for path in paths), default=0.0)
            per_byte = max(
                (max([1, *(users[s] for s in sh)]) / bw for _, bw, sh in paths),
                default=0.0,
            )
            self._shapes[ranks, edges] = alpha, per_byte, tuple(users)
        return self._shapes[ranks, edges]

    def _serve(self, now, transfer):
        _, needs, seconds, _ = transfer
        if self._busy.isdisjoint(needs):
            self._busy.update(needs)
            stop = now + seconds
            self.at(stop, partial(self._finish, transfer, now, stop))
        else:
            blocker = next(need for need in needs if need in self._busy)
            self._waiting[blocker].append(transfer)

    def _finish(self, transfer, start, stop):
        _, needs, _, done = transfer
        self._busy.difference_update(needs)
        done(start, stop)
        if self._waiting:
            freed = [t for need in needs for t in self._waiting.pop(need, ())]
            for waiting in sorted(freed, key=itemgetter(0)):
                self._serve(stop, waiting)
