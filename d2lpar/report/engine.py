"""What a rank does the same way in every world: number its calls and keep a record.

The record is a list of entries, in the order in which the rank made them:

    ("send" | "recv", id, group, peer, tag, entry, where)   entry: (shape, dtype)
    ("join", id, group, ranks, seq, meta, sends, rounds, where)     a collective
    ("wait", id)                                  the rank knows that it is complete

For a receive from any source, peer is None and ("source", id, peer) follows.
"""

import contextlib
import os
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from .calls import MESSAGES, Call, cost_of, entry_of

_TORCH = os.path.dirname(sys.modules["torch"].__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CHECKS = os.path.join(os.path.dirname(_OURS[:-1]), "solutions", "ex_")  # in a clone
_WORLDS = tuple(_OURS + room + os.sep for room in ("launch", "report", "sim"))


_RUNNERS = ("rank.py", "worker.py")  # their `run_rank` is below all of a rank's
_STDLIB = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_USER, _LIBRARY, _TORCHS, _START = range(4)
_origins = {}  # name of a file -> one of these; code objects are slow to hash

UNBATCHED = (
    "Ranks {low} and {high} send to each other without a batch: NCCL may run the two "
    "one after the other and hang; use batch_isend_irecv."
)


def _origin(name):
    if name.startswith(_WORLDS):
        return _START if name.endswith(_RUNNERS) else _TORCHS
    if name.startswith((_OURS, _CHECKS)):
        return _LIBRARY
    library = is_installed(name) or name.startswith((*_STDLIB, _TORCH, "<frozen"))
    return _TORCHS if library else _USER


def is_installed(name):
    """Return whether a file is an installed package's."""
    return "site-packages" in name or "dist-packages" in name  # Debian's, Colab's


def is_users(name):
    """Return whether a file is the user's, and not torch's, ours or a library's."""
    return _origin(name) == _USER


def is_library(value):
    """Is this function or class torch's or that of an installed package?"""
    code = getattr(value, "__code__", None)
    if code is not None:
        return _origin(code.co_filename) == _TORCHS
    module = getattr(value, "__module__", None) or ""
    if module.partition(".")[0] == "torch":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(value, type) and bool(file) and _origin(file) == _TORCHS


def where_called():
    """(file, line) of the innermost caller outside of torch and of this package.

    Code of the package that a rank runs on its own counts where there is no other.
    """
    frame, ours = sys._getframe(2), ("", 0)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        origin = _origins.get(name)
        if origin is None:
            origin = _origins[name] = _origin(name)
        if origin == _USER:
            return name, frame.f_lineno
        if origin == _LIBRARY and not ours[1]:
            ours = name, frame.f_lineno
        if origin == _START and code.co_name == "run_rank":
            break
        frame = frame.f_back
    return ours


class Waiting(NamedTuple):
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


@dataclass
class Status:
    """What one rank is doing: the raw material of every error message."""

    rank: int
    state: str = "running"  # running, blocked, returned, failed, died, stopped
    call: Waiting | None = None  # the call it is blocked in
    open: list = field(default_factory=list)  # calls started and not yet complete
    where: tuple = ("", 0)  # the line it executes, where known
    note: str = ""
    polls: Waiting | None = None  # the call at whose is_completed() it looks
    steps: int = 0  # how many calls it has started and ended
    printed: int = 0  # bytes
    called: dict = field(default_factory=dict)  # {(group, kind of collective): count}


def waiting(call):
    """The `Waiting` that describes a Call."""
    asked = call.kind, call.group, call.ranks, call.peer, call.seq, call.tag
    return Waiting(str(call), call.where, *asked, str(call.meta))


class Engine:
    """The record of one rank; each world adds `begin(call) -> Work` and `now()`."""

    cluster = None  # the one that the rank is simulated on
    # Whether a batch starts its receives before its sends.
    receives_first = False
    joined, times_joined = None, 1  # with what the rank has joined, how often
    asked = None  # the backend that a script has asked for
    gpus = None  # the PlayedGpus of a script that this rank executes
    beside = False  # does it ask for work in a side stream of its GPU?
    clock = None  # its device's, in virtual time
    label = None  # of `d2lpar.label`: a name for what is on the timeline from now on

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.entries, self.events, self.warnings = [], [], []
        self.open = {}  # id -> Call, until waited for
        self.works = {}  # id -> Work of these, where a script has GPUs
        self.belongings = []  # of a rank that is a thread; see SimulatedEngine
        self._seqs, self.called = {}, Counter()
        self._calls = self._batches = self._batch = self.groups_asked = 0

    def groups_on_host(self, wanted):
        """Inside, groups are made whose messages go through the host; NCCL only."""
        return contextlib.nullcontext()

    def relabel(self, label):
        """What follows on the timeline has this label; None: no label."""
        self.label = label

    def caught_up(self):
        """The time when all that this rank has begun to compute is computed."""
        return self.now()

    def post(self, call):
        """Record the call and begin it; returns its Work."""
        self.enter(call)
        work = self.begin(call)
        if self.gpus is not None and call.id in self.open:
            self.works[call.id] = work
        return work

    def wait_for_all(self):
        """Wait for all calls in flight, as a GPU does that has to be done with all."""
        for work in list(self.works.values()):
            work.wait()

    def enter(self, call):
        """The call is on record, and open."""
        self._calls = call.id = self._calls + 1
        call.batch, call.where, call.label = self._batch, where_called(), self.label
        if call.kind in MESSAGES:
            if self.open and not call.batch:
                self._warn_of_opposites(call)
            entry = entry_of((call.inputs or call.outputs)[0])
            self.entries.append(
                (call.kind, call.id, call.group, call.peer, call.tag, entry, call.where)
            )
        else:
            self._record_collective(call)
        self.open[call.id] = call

    def _record_collective(self, call):
        call.seq = self._seqs[call.group] = self._seqs.get(call.group, 0) + 1
        self.called[call.group, call.kind] += 1
        n, ranks = len(call.ranks), call.ranks
        root = None if call.root is None else ranks.index(call.root)
        cost = cost_of(call.meta, n, call.index, root)
        sends = tuple((ranks[i], size, count) for i, size, count in cost.sends)
        self.entries.append(
            ("join", call.id, call.group, ranks, call.seq, call.meta, sends)
            + (cost.rounds, call.where)
        )

    def waited(self, call):
        """The rank knows that `call` is complete."""
        self.works.pop(call.id, None)
        if self.open.pop(call.id, None) is not None:
            if call.source is not None:
                self.entries.append(("source", call.id, call.source))
            self.entries.append(("wait", call.id))

    def never_waited(self):
        """[(kind, where)] of calls that nobody will wait for: the rank has returned."""
        return [
            (call.kind, call.where) for call in self.open.values() if not call.handed_on
        ]

    def record(
        self, stream, name, start, stop, bytes=0, flops=0, peer=None, id=None,
        where=None, label=None, part=None,
    ):  # fmt: skip
        """Add an event to this rank's timeline: the fields of an `Event`."""
        event = (self.rank, stream, name, start, stop, bytes, flops, peer, id)
        self.events.append((*event, where, label, part))

    def _warn_of_opposites(self, call):
        if call.peer is None:
            return
        for other in self.open.values():
            if (
                other.kind in MESSAGES
                and other.kind != call.kind
                and (other.peer, other.group) == (call.peer, call.group)
                and not other.batch
            ):
                low, high = sorted((self.rank, call.peer))
                self.warn(UNBATCHED.format(low=low, high=high))
                return

    def warn(self, sentence):
        """This sentence is among the warnings of the run, once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    @contextlib.contextmanager
    def batch(self):
        """A context: messages posted inside belong together."""
        self._batches = self._batch = self._batches + 1
        try:
            yield
        finally:
            self._batch = 0

    def asked_for(self, ranks):
        """The Call of all ranks of the world that a new group of these ranks is."""
        self.groups_asked += 1
        every, made = tuple(range(self.world_size)), str(list(ranks))
        call = Call("new_group", "new_group", every, self.rank, op=made)
        call.seq, call.where = self.groups_asked, where_called()
        return call

    def group_made(self, group, store):
        """A process group of this rank exists."""

    def storage_resized(self, storage):
        """A tensor's memory was freed or grown in place."""

    def looked_at(self, tensor):
        """Its values are read by what is no operation of torch's: print, numpy."""
