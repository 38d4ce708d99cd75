"""The record of a rank that is a process: torch's own Gloo or NCCL does the work.

Times are seconds of the machine's clock since all ranks had joined.
"""

import contextlib
import threading
import time

from ..report.calls import MESSAGES, disagreement, numel
from ..report.engine import Engine, Waiting, waiting, where_called
from ..report.errors import MismatchError
from ..sim import torch_private
from . import gloo
from .journal import BLOCKED, HANDED, OPEN, Board
from .works import CollectiveWork, MessageWork, StreamWork

SHORT = 20e-6  # seconds; shorter stretches of computing are not shown
LATEST = 16  # so many calls in progress are in the journal
_ALIKE = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "barrier")


class RecordedEngine(Engine):
    """One rank: writes down every call and hands it to the real backend.

    `device` makes the real groups; `board` is the journals of the ranks of this
    machine, None where each rank can only see its own.
    """

    def __init__(self, start, device, board=None):
        super().__init__(start.rank, start.world_size)
        self.backend, self.device = start.backend, device
        self.board = board or Board(start.world_size)
        self.journal = self.board.ranks[start.rank]
        self.function = ("", 0)  # where the function begins that this rank executes
        self.zero = self.since = time.perf_counter()
        self.transport_error = self.transport_call = self.mismatch = None
        self._thread = threading.get_ident()
        self.groups, self._counts, self._any_source = {}, {}, set()
        self._coalescing, self._batched, self._marks = None, [], []
        self._one_machine = board is not None
        # A receiver tells the sender that it is ready.  On a slow link, behind a long
        # message to the same rank, this would wait, and an exchange take twice as long.
        slow = start.node is not None or not self._one_machine
        self.receives_first = self.backend == "gloo" and slow
        self._host, self._to_host = None, False  # Gloo's device in a run on NCCL
        self._hosted = set()  # groups whose messages go through the host

    # groups

    @contextlib.contextmanager
    def groups_on_host(self, wanted):
        """Groups made inside use Gloo, if `wanted`, also in a run on NCCL."""
        self._to_host = wanted and self.backend == "nccl"
        try:
            yield
        finally:
            self._to_host = False

    def _device_of(self, group):
        if not self._to_host:
            return self.device
        self._hosted.add(group.key)
        self._host = self._host or gloo.Device(loopback=self._one_machine)
        return self._host

    def group_made(self, group, store):
        where, name = where_called(), "new_group"
        call = Waiting(name, where, name, group.key, group.ranks, meta=name)
        self.journal.write([(-1, tuple(call))], where)
        self.journal.words[BLOCKED] = -1
        with self.native_errors(call):
            index, size = group.index, len(group.ranks)
            device = self._device_of(group)
            self.groups[group.key] = device.group(store, index, size)
        self.journal.words[BLOCKED] = 0
        self._write(where)

    def real(self, group):
        """The torch backend that carries out the calls of the group."""
        return self.groups[group.key]

    # the clock

    def now(self):
        """Seconds since all ranks had joined."""
        return time.perf_counter() - self.zero

    def caught_up(self):
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self.now()

    def start_clock(self, zero):
        """It is `zero` on the machine's clock when this rank's time begins."""
        self.zero, self.since = zero, time.perf_counter()

    def sleep(self, seconds):
        """The rank is busy for so many real seconds."""
        self.pause()
        start = self.now()
        time.sleep(seconds)
        about = {"where": where_called(), "label": self.label}
        self.record("compute", "sleep", start, self.now(), **about)
        self.resume()

    def relabel(self, label):
        self.pause()
        super().relabel(label)
        self.resume()

    def pause(self):
        """The rank stops computing; what it did since `resume` is an event."""
        now = time.perf_counter()
        if now - self.since > SHORT and threading.get_ident() == self._thread:
            span = self.since - self.zero, now - self.zero
            self.record("compute", "compute", *span, label=self.label)

    def resume(self):
        """The rank goes on computing."""
        if threading.get_ident() == self._thread:
            self.since = time.perf_counter()

    # calls

    def begin(self, call):
        self.pause()
        self._write(call.where)
        self._compare(call)
        try:
            with torch_private.raw_tensors(), self.native_errors(call):
                return self._begin(call)
        finally:
            self.resume()

    def _begin(self, call):
        real = self.groups[call.group]
        if self.backend == "nccl" and call.group not in self._hosted:
            return self._begin_on_stream(call, real)
        begun = gloo.begin(real, call)
        kind = CollectiveWork if begun.with_future else MessageWork
        return kind(self, call, begun)

    @contextlib.contextmanager
    def native_errors(self, call):
        """An error of the backend is remembered: another rank may be its cause."""
        try:
            yield
        except RuntimeError as error:
            self.transport_error, self.transport_call = error, call
            raise

    def beat(self):
        """Something that counts as progress has happened."""
        self.journal.beat()

    @contextlib.contextmanager
    def waits(self, call):
        """The rank is blocked in `call` inside."""
        self.pause()
        start = self.now()
        self._block(call)
        try:
            yield
        finally:
            self.journal.words[BLOCKED] = 0
            if threading.get_ident() == self._thread:
                self.record("compute", "wait", start, self.now(), where=call.where)
            self.resume()

    def waited(self, call):
        was_open = call.id in self.open
        super().waited(call)
        if was_open:
            self.beat()
            if self.open:
                self._write(call.where)
            else:
                self.journal.words[OPEN] = 0

    # the journal

    def _write(self, where, *more):
        latest = [*list(self.open.values())[-LATEST:], *more]
        calls = [(each.id, tuple(waiting(each))) for each in latest]
        self.journal.write(calls, where, self.called)

    def _block(self, call):
        if call.id not in list(self.open)[-LATEST:]:
            self._write(call.where, call)
        self.journal.words[BLOCKED] = call.id
        if not call.waited_for:  # to wait again after a timeout is no progress
            call.waited_for = True
            self.beat()

    def looked(self, call, done):
        """The rank has looked whether the call is complete."""
        if done:
            self.waited(call)
        else:
            self.journal.look(call.id)

    def hand_on(self, call):
        """Somebody waits for the call by a future: torch's own code, in a backward."""
        call.handed_on = True
        self.journal.words[HANDED] = call.id

    def handed_back(self, call):
        """It is complete, and nobody waits any more."""
        if self.journal.words[HANDED] == call.id:
            self.journal.words[HANDED] = 0

    # what the others bring to the same communication

    def agree(self, ranks):
        """Raise MismatchError where another rank makes another group now."""
        self._compare(self.asked_for(ranks))

    def _compare(self, call):
        """Raise MismatchError where this call does not fit what others have begun."""
        if call.kind in MESSAGES:
            self._compare_message(call)
            return
        key = ("c", call.group, call.ranks, call.seq)
        mine = self.journal.sign(key, call.meta, call.where)
        for index, rank in enumerate(call.ranks):
            found = rank != self.rank and self.board.ranks[rank].signature(key)
            if not found or (found[2] == mine and call.kind in _ALIKE):
                continue
            metas = {call.ranks.index(self.rank): call.meta, index: found[0]}
            if disagreement(metas):
                self._disagree(key, call.meta, rank, found[0])

    def _compare_message(self, call):
        channel = (call.group, call.ranks, call.tag)
        if call.kind == "recv" and call.peer is None:
            self._any_source.add(channel)
        if call.kind == "recv" and channel in self._any_source:
            return  # which message it takes is not known yet
        ends = (self.rank, call.peer)
        source, target = ends if call.kind == "send" else ends[::-1]
        stream = (call.kind, *channel, source, target)
        count = self._counts[stream] = self._counts.get(stream, 0) + 1
        key = ("m", *channel, source, target, count)
        self.journal.sign(key, call.meta, call.where)
        found = self.board.ranks[call.peer].signature(key)
        if found and _content(found[0]) != _content(call.meta):
            self._disagree(key, call.meta, call.peer, found[0])

    def _disagree(self, key, mine, rank, theirs):
        self.mismatch = key
        text = f"rank {self.rank} calls {mine} where rank {rank} calls {theirs}"
        raise MismatchError(text, rank=self.rank)

    # NCCL

    def _begin_on_stream(self, call, real):
        from . import nccl

        if call.batch and self._coalescing is None:
            real._start_coalescing()
            self._coalescing = real
        work = StreamWork(self, call, *nccl.begin(real, call))
        if call.batch:
            self._batched.append(work)
        return work

    @contextlib.contextmanager
    def batch(self):
        """Messages posted inside belong together; on NCCL they are one operation."""
        with super().batch():
            try:
                yield
            finally:
                real, self._coalescing = self._coalescing, None
                works, self._batched = self._batched, []
                if real is not None:
                    native = real._end_coalescing()
                    for work in works:
                        work.native = native

    def mark(self, work):
        """The stream has come to the end of `work`: when, is known at the end.

        Until then nothing here may hold the tensors of `work`.
        """
        self._marks.append((work.recorder(), _cuda_moment()))

    def settle(self):
        """Everything on the GPU is complete and on the timeline."""
        if self.backend != "nccl":
            return
        import torch

        torch.cuda.synchronize()
        last, now = _cuda_moment(), self.now()
        torch.cuda.synchronize()
        for record, moment in self._marks:
            record(now - moment.elapsed_time(last) / 1e3)
        self._marks = []


def _cuda_moment():
    """An event recorded on the current stream."""
    import torch

    moment = torch.cuda.Event(enable_timing=True)
    moment.record()
    return moment


def _content(meta):
    """(number of elements, dtype) of one end of a message."""
    (shape, dtype), *_ = meta.inputs or meta.outputs
    return numel(shape), dtype
