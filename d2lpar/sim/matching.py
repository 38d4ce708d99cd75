"""Who sends to whom: pairs messages with receives and gathers collectives, in `sim`.

A receive takes the oldest message that fits (group, receiver, tag, and sender unless
any will do); a message takes the oldest receive.  This is MPI's order.
"""

import itertools
from collections import defaultdict
from functools import partial

from ..report import explain
from ..report.calls import cost_of, disagreement, part_of, reduced
from ..report.engine import Status, Waiting, waiting
from .network import Network
from .torch_private import copy_raw, raw_tensors

NOBODY_THERE = (
    "where one rank stands for all, {} has no other end, and ranks do not do the same: "
    "run this without --alike"
)
EAGER = 65536  # bytes: with `buffered`, a smaller message leaves without its receive


class Matching:
    """Posts of all ranks, in the order of virtual time."""

    def __init__(self, sim, buffered):
        self.sim, self.buffered = sim, buffered
        self.network = Network(sim.cluster, sim.at)
        self._groups = {}  # (name, ranks) of a group -> its number
        self._sends, self._receives = defaultdict(list), defaultdict(list)
        self._joined, self._made = {}, {}
        self._ids = itertools.count(1)

    def number_of(self, name, ranks):
        """A number for a group, the same for all its ranks."""
        return self._groups.setdefault((name, ranks), len(self._groups))

    def make_group(self, call):
        """A rank makes a group: as its n-th one all ranks make the same."""
        first = self._made.setdefault(call.seq, call)
        if disagreement({0: first.meta, 1: call.meta}):
            self._disagree(first, call, explain.GROUPS_DIFFER)

    def missed_group(self, engines):
        """The error for a rank that has left out a group which others made, or None."""
        for engine in engines:
            first = self._made.get(engine.groups_asked + 1)
            if first is not None and engine.state == "returned":
                nothing = Waiting("", engine.function, "", "", (), meta="nothing")
                made = Status(first.rank, "returned", waiting(first))
                missing = Status(engine.rank, "returned", nothing)
                return explain.mismatch(made, missing, explain.GROUPS_DIFFER)
        return None

    # messages

    def send(self, now, group, call):
        """A rank has begun this send at virtual time `now`."""
        self._needs_others(call)
        message, call.asked = _Message(next(self._ids), call), now
        if self.buffered and message.nbytes <= EAGER:
            with raw_tensors():
                message.data = call.inputs[0].clone()
            self.sim.complete(call, now)
            self._travel(now, message)
        key = (group, call.peer, call.tag)
        waiting = self._receives[key]
        for i, receive in enumerate(waiting):
            if receive.peer is None or receive.peer == call.rank:
                del waiting[i]
                return self._meet(now, message, receive)
        self._sends[key].append(message)

    def receive(self, now, group, call):
        """A rank has begun this receive at virtual time `now`."""
        self._needs_others(call)
        key, call.asked = (group, call.rank, call.tag), now
        waiting = self._sends[key]
        for i, message in enumerate(waiting):
            if call.peer is None or call.peer == message.send.rank:
                del waiting[i]
                return self._meet(now, message, call)
        self._receives[key].append(call)

    def _needs_others(self, call):
        if self.sim.executed < self.sim.n:
            raise RuntimeError(NOBODY_THERE.format(call.kind))

    def _meet(self, now, message, receive):
        sent = message.send
        a, b = sent.inputs[0], receive.outputs[0]
        if a.dtype != b.dtype or a.numel() != b.numel():
            self._disagree(sent, receive, explain.ENDS_DIFFER)
        message.receive, receive.source = receive, sent.rank
        if message.data is None:
            self._together(now, [sent, receive], self._travel, message)
        elif message.arrived is not None:
            self._deliver(message, max(now, message.arrived))

    def _together(self, now, calls, begin, *args):
        """Begin as soon as all ranks have asked for it; a stream may be in the past."""
        ready = max(call.asked for call in calls)
        if ready > now:
            self.sim.at(ready, partial(begin, ready, *args))
        else:
            begin(ready, *args)

    def _travel(self, now, message):
        call = message.send

        def arrived(start, stop):
            message.start, message.arrived = start, stop
            if message.receive is not None:
                self._deliver(message, stop)

        ends = [] if message.data is not None else [call, message.receive]
        self.network.message(now, call.rank, call.peer, message.nbytes, ends, arrived)

    def _deliver(self, message, finish):
        send, receive, data = message.send, message.receive, message.data
        copy_raw(send.inputs[0] if data is None else data, receive.outputs[0])
        a, b, engines = send.rank, receive.rank, self.sim.engines
        what, part = (message.start, message.arrived, message.nbytes, 0), message.part
        for call, peer in ((send, b), (receive, a)):
            about = peer, message.id, call.where, call.label, part
            engines[call.rank].record(call.kind, call.kind, *what, *about)
        self.sim.complete(receive, finish)
        if data is None:
            self.sim.complete(send, finish)

    def left_over(self):
        """Are there sends or receives that nothing has met?"""
        return any(self._sends.values()) or any(self._receives.values())

    # collectives

    def join(self, now, group, call):
        """A rank has begun this collective at virtual time `now`."""
        calls = self._joined.setdefault((group, call.seq), {})
        self._check(calls, call)
        calls[call.index], call.asked = call, now
        if len(calls) < sum(rank < self.sim.executed for rank in call.ranks):
            return
        del self._joined[group, call.seq]
        if call.kind == "scatter" and call.root >= self.sim.executed:
            self._needs_others(call)
        # where one rank stands for all, its call stands for theirs
        calls = [calls.get(i, call) for i in range(len(call.ranks))]
        cost, alike, begins = _joint_cost(calls), self._alike(call.ranks), []

        def done(begun, stop):
            begins.append(begun)
            if len(begins) < len(alike):
                return
            start = begins[0]
            with raw_tensors():
                perform(calls)
            for each in dict.fromkeys(calls):
                size = sum(tensor.nbytes for tensor in each.outputs)
                engine = self.sim.engines[each.rank]
                about = {"where": each.where, "label": each.label}
                engine.record("comm", call.kind, start, stop, size, **about)
                self.sim.complete(each, stop)

        for ranks in alike:
            mine = calls if ranks == call.ranks else []
            about = call.kind, call.group, ranks, cost, mine, done
            self._together(now, calls, self.network.collective, *about)

    def _alike(self, ranks):
        """These ranks and, where one stands for all, the other groups of its mesh."""
        found = [ranks]
        left = set(range(self.sim.n if self.sim.executed == 1 else 0)) - {*ranks}
        while left:
            shift = min(left) - ranks[0]
            shifted = tuple(rank + shift for rank in ranks)
            if not left.issuperset(shifted):
                break
            left -= {*shifted}
            found.append(shifted)
        return found

    def _check(self, calls, call):
        """Raise MismatchError where this call does not fit those already there."""
        mine = call.index
        rooted = call.kind in ("gather", "scatter")
        if call.kind == "all_to_all" or (rooted and call.root == call.rank):
            compared = list(calls)
        else:
            root = call.ranks.index(call.root) if rooted else None
            first = next(iter(calls), None)
            compared = [i for i in dict.fromkeys([first, root]) if i in calls]
        for other in compared:
            metas = {other: calls[other].meta, mine: call.meta}
            if disagreement(metas):
                self._disagree(calls[other], call)

    def _disagree(self, first, second, why=""):
        statuses = [
            Status(call.rank, "running", waiting(call)) for call in (first, second)
        ]
        self.sim.fail(explain.mismatch(*statuses, why, self.sim.statuses()))
        self.sim.check()


class _Message:
    __slots__ = ("id", "send", "nbytes", "receive", "data", "start", "arrived", "part")

    def __init__(self, id, send):
        self.id, self.send, self.nbytes = id, send, send.inputs[0].nbytes
        self.receive = self.data = self.start = self.arrived = None
        self.part = part_of(send.inputs[0])


def _joint_cost(calls):
    """The cost that times the call: of one rank, or the largest of each step."""
    n, first = len(calls), calls[0]
    root = None if first.root is None else first.ranks.index(first.root)
    which = range(n) if first.kind == "all_to_all" else [root or 0]
    costs = [cost_of(calls[i].meta, n, i, root) for i in which]
    if len(costs) == 1:
        return costs[0]
    steps = tuple(max(sizes) for sizes in zip(*(c.steps for c in costs), strict=True))
    return costs[0]._replace(sends=(), steps=steps)


def perform(calls):
    """Write every rank's outputs of a collective; `calls` in group order."""
    kind, first, there = calls[0].kind, calls[0], dict.fromkeys(calls)
    if all(x.is_meta for call in there for x in (*call.inputs, *call.outputs)):
        return  # they have no values, and n ranks would copy n blocks each
    root = None if first.root is None else first.ranks.index(first.root)
    if kind in ("all_reduce", "reduce"):
        for i in range(len(first.inputs)):
            total = reduced([call.inputs[i] for call in calls], first.op)
            for call in there:
                if root is None or call.index == root:
                    copy_raw(total, call.outputs[i])
    elif kind == "reduce_scatter":
        for call in there:
            total = reduced([other.inputs[call.index] for other in calls], first.op)
            copy_raw(total, call.outputs[0])
    else:
        pairs = _copies(kind, calls, there, root)
        for target, source in [(target, x.clone()) for target, x in pairs]:
            copy_raw(source, target)


def _copies(kind, calls, there, root):
    """(target, source) of the collectives that only move data, for those `there`."""
    if kind == "broadcast":
        for call in there:
            if call.rank != calls[root].rank:
                yield from zip(call.outputs, calls[root].inputs, strict=True)
    elif kind == "all_gather":
        for call in there:
            for r, target in enumerate(call.outputs):
                yield target, calls[r].inputs[0]
    elif kind == "gather":
        for r, target in enumerate(calls[root].outputs):
            yield target, calls[r].inputs[0]
    elif kind == "scatter":
        for call in there:
            yield call.outputs[0], calls[root].inputs[call.index]
    elif kind == "all_to_all":
        for call in there:
            for s, target in enumerate(call.outputs):
                yield target, calls[s].inputs[call.index]
