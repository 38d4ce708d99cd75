"""What a rank does the same way in every world: number its calls and keep a record.

The record is a list of entries, in the order in which the rank made them:

    ("send" | "recv", id, group, peer, tag, entry, where)   entry: (shape, dtype)
    ("join", id, group, ranks, seq, meta, sends, rounds, where)     a collective
    ("wait", id)                                  the rank knows that it is complete

For a receive from any source, peer is None and ("source", id, peer) follows.
"""

import contextlib
import itertools
import os
import sys
import sysconfig
from dataclasses import dataclass, field

from ..timeline import Event
from .calls import MESSAGES, cost_of, entry_of

_TORCH = os.path.dirname(sys.modules["torch"].__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


_STDLIB = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_USER, _LIBRARY, _TORCHS, _START = range(4)
_origins = {}  # code object -> one of these


def _origin(code):
    name = code.co_filename
    if name.startswith(_OURS + "backends"):
        return _START if code.co_name == "run_rank" else _TORCHS
    if name.startswith(_OURS):
        return _LIBRARY
    library = "site-packages" in name or name.startswith((*_STDLIB, _TORCH, "<frozen"))
    return _TORCHS if library else _USER


def where_called():
    """(file, line) of the innermost caller outside of torch and of this package.

    Code of the package that a rank runs on its own counts where there is no other.
    """
    frame, ours = sys._getframe(2), ("", 0)
    while frame is not None:
        code = frame.f_code
        origin = _origins.get(code)
        if origin is None:
            origin = _origins[code] = _origin(code)
        if origin == _USER:
            return code.co_filename, frame.f_lineno
        if origin == _LIBRARY and not ours[1]:
            ours = code.co_filename, frame.f_lineno
        if origin == _START:
            break
        frame = frame.f_back
    return ours


@dataclass(slots=True)
class Waiting:
    """A call that a rank is in or has started, in words and for the wait-for graph."""

    text: str  # "recv(src=1)"
    where: tuple
    kind: str
    group: str
    ranks: tuple
    peer: int | None = None
    seq: int = 0
    tag: int = 0
    meta: str = ""


@dataclass(slots=True)
class Status:
    """What one rank is doing: the raw material of every error message."""

    rank: int
    state: str = "running"  # running, blocked, returned, failed, died, stopped
    call: Waiting | None = None  # the call it is blocked in
    open: list = field(default_factory=list)  # calls started and not yet complete
    where: tuple = ("", 0)  # the line it executes, where known
    note: str = ""


def waiting(call):
    """The `Waiting` that describes a Call."""
    return Waiting(
        str(call),
        call.where,
        call.kind,
        call.group,
        call.ranks,
        call.peer,
        call.seq,
        call.tag,
        str(call.meta),
    )


class Engine:
    """The record of one rank; each world adds `begin(call) -> Work` and `now()`."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.entries, self.events, self.warnings = [], [], []
        self.open = {}  # id -> Call, until waited for
        self._ids = itertools.count(1)
        self._seqs = {}
        self._batches = itertools.count(1)
        self._batch = 0

    def post(self, call):
        """Record the call and begin it; returns its Work."""
        call.id, call.batch = next(self._ids), self._batch
        call.where = where_called()
        if call.kind in MESSAGES:
            self._warn_of_opposites(call)
            tensors = call.inputs or call.outputs
            entry = entry_of(tensors[0])
            self.entries.append(
                (call.kind, call.id, call.group, call.peer, call.tag, entry, call.where)
            )
        else:
            self._record_collective(call)
        self.open[call.id] = call
        return self.begin(call)

    def _record_collective(self, call):
        call.seq = self._seqs[call.group] = self._seqs.get(call.group, 0) + 1
        n, ranks = len(call.ranks), call.ranks
        root = None if call.root is None else ranks.index(call.root)
        cost = cost_of(call.meta, n, ranks.index(call.rank), root)
        sends = tuple((ranks[i], size, count) for i, size, count in cost.sends)
        self.entries.append(
            ("join", call.id, call.group, ranks, call.seq, call.meta, sends)
            + (cost.rounds, call.where)
        )

    def waited(self, call, source=None):
        """The rank knows that `call` is complete."""
        if self.open.pop(call.id, None) is not None:
            if source is not None:
                self.entries.append(("source", call.id, source))
            self.entries.append(("wait", call.id))

    def record(self, stream, name, start, stop, bytes=0, flops=0, peer=None, id=None):
        """Add an event to this rank's timeline."""
        event = Event(self.rank, stream, name, start, stop, bytes, flops, peer, id)
        self.events.append(event)

    def _warn_of_opposites(self, call):
        if call.batch or call.peer is None:
            return
        for other in self.open.values():
            if (
                other.kind in MESSAGES
                and other.kind != call.kind
                and (other.peer, other.group) == (call.peer, call.group)
                and not other.batch
            ):
                low, high = sorted((self.rank, call.peer))
                sentence = (
                    f"Ranks {low} and {high} send to each other without a batch: NCCL "
                    "may run the two one after the other and hang; use "
                    "batch_isend_irecv."
                )
                if sentence not in self.warnings:
                    self.warnings.append(sentence)
                return

    @contextlib.contextmanager
    def batch(self):
        """Messages posted inside belong together."""
        self._batch = next(self._batches)
        try:
            yield
        finally:
            self._batch = 0

    def group_made(self, group, store):
        """A process group of this rank exists."""

    def storage_resized(self, storage):
        """A tensor's memory was freed or grown in place."""
