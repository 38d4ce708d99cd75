"""Who sends to whom: pairs messages with receives and gathers collectives, in `sim`.

A receive takes the oldest message that fits (group, receiver, tag, and sender unless
any will do); a message takes the oldest receive.  This is MPI's order.
"""

import itertools
from collections import defaultdict

import torch

from . import explain
from .calls import MESSAGES, cost_of, disagreement
from .engine import Status, waiting
from .network import Network
from .torch_private import copy_raw, raw_tensors

EAGER = 65536  # bytes: with `buffered`, a smaller message leaves without its receive


class Matching:
    """Posts of all ranks, in the order of virtual time."""

    def __init__(self, sim, buffered):
        self.sim, self.buffered = sim, buffered
        self.network = Network(sim.cluster, sim.at)
        self._sends, self._receives = defaultdict(list), defaultdict(list)
        self._joined = {}
        self._ids = itertools.count(1)

    def post(self, now, work):
        """A rank has begun this call at virtual time `now`."""
        kind = work.call.kind
        if kind not in MESSAGES:
            self._join(now, work)
        elif kind == "send":
            self._post_send(now, _Message(next(self._ids), work))
        else:
            self._post_receive(now, work)

    # messages

    def _post_send(self, now, message):
        call = message.send.call
        key = (call.group, call.ranks, call.peer, call.tag)
        if self.buffered and call.nbytes <= EAGER:
            with raw_tensors():
                message.data = call.inputs[0].clone()
            self.sim.complete(message.send, now)
            self._travel(now, message)
        for receive in self._receives[key]:
            if receive.call.peer in (None, call.rank):
                self._receives[key].remove(receive)
                return self._meet(now, message, receive)
        self._sends[key].append(message)

    def _post_receive(self, now, receive):
        call = receive.call
        key = (call.group, call.ranks, call.rank, call.tag)
        for message in self._sends[key]:
            if call.peer in (None, message.send.call.rank):
                self._sends[key].remove(message)
                return self._meet(now, message, receive)
        self._receives[key].append(receive)

    def _meet(self, now, message, receive):
        sent, taken = message.send.call, receive.call
        a, b = sent.inputs[0], taken.outputs[0]
        if a.dtype != b.dtype or a.numel() != b.numel():
            why = (
                "The two ends of a message must have one dtype and number of elements."
            )
            self._disagree(sent, taken, why)
        message.receive, receive.source = receive, sent.rank
        if message.data is None:
            self._travel(now, message)
        elif message.arrived is not None:
            self._deliver(message, max(now, message.arrived))

    def _travel(self, now, message):
        call = message.send.call

        def arrived(start, stop):
            message.start, message.arrived = start, stop
            if message.receive is not None:
                self._deliver(message, stop)

        self.network.message(now, call.rank, call.peer, call.nbytes, arrived)

    def _deliver(self, message, finish):
        send, receive = message.send, message.receive
        data = message.data if message.data is not None else send.call.inputs[0]
        copy_raw(data, receive.call.outputs[0])
        size, start, stop = send.call.nbytes, message.start, message.arrived
        for end, other, name in ((send, receive, "send"), (receive, send, "recv")):
            peer = other.call.rank
            end.engine.record(
                name, name, start, stop, bytes=size, peer=peer, id=message.id
            )
        self.sim.complete(receive, finish)
        if message.data is None:
            self.sim.complete(send, finish)

    # collectives

    def _join(self, now, work):
        call = work.call
        key = (call.group, call.ranks, call.seq)
        works = self._joined.setdefault(key, {})
        self._check(works, work)
        works[call.ranks.index(call.rank)] = work
        if len(works) < len(call.ranks):
            return
        del self._joined[key]
        works = [works[i] for i in range(len(works))]
        cost = _joint_cost([work.call for work in works])

        def done(start, stop):
            with raw_tensors():
                perform([work.call for work in works])
            for work in works:
                size = sum(t.numel() * t.element_size() for t in work.call.outputs)
                work.engine.record("comm", call.kind, start, stop, bytes=size)
                self.sim.complete(work, stop)

        self.network.collective(now, call.group, call.ranks, cost, cost.steps, done)

    def _check(self, works, work):
        """Raise MismatchError where this call does not fit those already there."""
        call, mine = work.call, work.call.ranks.index(work.call.rank)
        rooted = call.kind in ("gather", "scatter")
        if call.kind == "all_to_all" or (rooted and call.root == call.rank):
            compared = list(works)
        else:
            root = call.ranks.index(call.root) if rooted else None
            compared = [
                i for i in dict.fromkeys([*list(works)[:1], root]) if i in works
            ]
        for other in compared:
            metas = {other: works[other].call.meta, mine: call.meta}
            if disagreement(metas):
                self._disagree(works[other].call, call)

    def _disagree(self, first, second, why=""):
        statuses = [
            Status(call.rank, "running", waiting(call)) for call in (first, second)
        ]
        self.sim.fail(explain.mismatch(*statuses, why, self.sim.statuses()))
        self.sim.check()


class _Message:
    __slots__ = ("id", "send", "receive", "data", "start", "arrived")

    def __init__(self, id, send):
        self.id, self.send = id, send
        self.receive = self.data = self.start = self.arrived = None


def _joint_cost(calls):
    """The cost that times the call: of one rank, or the largest of each step."""
    n, first = len(calls), calls[0]
    root = None if first.root is None else first.ranks.index(first.root)
    which = range(n) if first.kind == "all_to_all" else [root or 0]
    costs = [cost_of(calls[i].meta, n, i, root) for i in which]
    if len(costs) == 1:
        return costs[0]
    steps = tuple(max(sizes) for sizes in zip(*(c.steps for c in costs), strict=True))
    return type(costs[0])(
        (), costs[0].rounds, costs[0].edges, steps, costs[0].latencies
    )


def perform(calls):
    """Write every rank's outputs of a collective; `calls` in group order."""
    kind, first = calls[0].kind, calls[0]
    root = None if first.root is None else first.ranks.index(first.root)
    if kind in ("all_reduce", "reduce"):
        for i in range(len(first.inputs)):
            total = reduced([call.inputs[i] for call in calls], first.op)
            for r, call in enumerate(calls):
                if root is None or r == root:
                    copy_raw(total, call.outputs[i])
    elif kind == "reduce_scatter":
        for r, call in enumerate(calls):
            total = reduced([other.inputs[r] for other in calls], first.op)
            copy_raw(total, call.outputs[0])
    else:
        copies = [
            (target, source.clone()) for target, source in _copies(kind, calls, root)
        ]
        for target, source in copies:
            copy_raw(source, target)


def _copies(kind, calls, root):
    """(target, source) of the collectives that only move data."""
    if kind == "broadcast":
        for call in calls:
            if call.rank != calls[root].rank:
                yield from zip(call.outputs, calls[root].inputs, strict=True)
    elif kind == "all_gather":
        for call in calls:
            for r, target in enumerate(call.outputs):
                yield target, calls[r].inputs[0]
    elif kind == "gather":
        for r, target in enumerate(calls[root].outputs):
            yield target, calls[r].inputs[0]
    elif kind == "scatter":
        for r, call in enumerate(calls):
            yield call.outputs[0], calls[root].inputs[r]
    elif kind == "all_to_all":
        for r, call in enumerate(calls):
            for s, target in enumerate(call.outputs):
                yield target, calls[s].inputs[r]


_REDUCE = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduced(tensors, op):
    """The reduction of the ranks' tensors, in rank order."""
    if op not in _REDUCE:
        raise ValueError(f"the simulator does not know the reduction {op}")
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = _REDUCE[op](total, tensor)
    if op == "avg":
        mode = None if total.is_floating_point() or total.is_complex() else "trunc"
        total = torch.div(total, len(tensors), rounding_mode=mode)
    return total
