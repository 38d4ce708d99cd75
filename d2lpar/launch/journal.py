"""What every rank is doing, in memory that all processes of one run share.

Each rank writes to its own part of the board before it enters a call and when it
leaves it; the launcher and the other ranks read.  There are no locks: a record is
written to the slot that is not in use, and then made the current one.

    part of a rank     words | record 0 | record 1 | signature 0 | ... | signature 63

A signature says what a rank brings to one collective, or to one end of a message, so
that the others can compare before data moves.
"""

import contextlib
import marshal
import mmap
import os
import struct
import sys
import tempfile
import time
import zlib

from ..report.calls import Meta
from ..report.engine import Status, Waiting

WORDS, RECORD, SIGNATURE, KEPT = 4096, 16384, 4096, 64
PART = WORDS + 2 * RECORD + KEPT * SIGNATURE
VERSION, BLOCKED, OPEN, ACTIVITY, STATE = range(5)
JOINED, PRINTED, POLLED, LOOKED, HANDED = range(5, 10)
STATES = ("starting", "running", "returned", "failed")
_HEAD = struct.Struct("=IIIII")  # checksum, key, lengths of the three parts


def anonymous_file(size=0):
    """A file descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("d2lpar", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class Board:
    """The parts of n ranks; `handle` is a file descriptor, on Windows a name."""

    def __init__(self, n, handle=None):
        size = n * PART
        if handle is None:
            named = sys.platform == "win32"
            unique = f"d2lpar-{os.getpid()}-{time.perf_counter_ns()}"
            handle = unique if named else anonymous_file(size)
        self.n, self.handle = n, handle
        if isinstance(handle, str):
            self._map = mmap.mmap(-1, size, tagname=handle)
        else:
            self._map = mmap.mmap(handle, size)
        self._view = memoryview(self._map)
        self.ranks = [
            Journal(rank, self._view[rank * PART : (rank + 1) * PART])
            for rank in range(n)
        ]

    def activity(self):
        """A number that grows while any rank does something that counts."""
        return sum(journal.activity() for journal in self.ranks)

    def joined(self):
        """When the last rank was in the world, on the machine's clock; 0: not yet."""
        times = [journal.times[JOINED] for journal in self.ranks]
        return max(times) if all(times) else 0.0

    def close(self):
        """The memory is no longer mapped."""
        for journal in self.ranks:
            journal.close()
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()
        if not isinstance(self.handle, str):
            os.close(self.handle)


class Journal:
    """One rank's part of the board."""

    def __init__(self, rank, view):
        self.rank, self._view = rank, view
        self.words = view[:WORDS].cast("q")
        self.times = view[:WORDS].cast("d")

    def close(self):
        """The views are given up; the journal cannot be used any more."""
        self.words.release()
        self.times.release()
        self._view.release()

    # written by the rank

    def beat(self):
        """The rank has done something that counts as progress."""
        self.words[ACTIVITY] += 1

    def activity(self):
        """How often the rank has done so."""
        return self.words[ACTIVITY]

    def print(self, size):
        """The rank prints so many bytes."""
        self.words[PRINTED] += size

    def printed(self):
        """How many bytes the rank has printed."""
        return self.words[PRINTED]

    def look(self, call):
        """The rank looks whether this call is complete, and it is not."""
        self.words[POLLED] = call
        self.times[LOOKED] = time.monotonic()

    def set_state(self, state):
        """The rank is in one of STATES."""
        self.words[STATE] = STATES.index(state)
        self.beat()

    def write(self, calls, where, called=()):
        """`calls` [(id, fields of a Waiting)] are in progress; `where`: latest line.

        `called` is how often each collective was called: see `Status`.
        """
        data = marshal.dumps((calls, where, dict(called)))
        if len(data) + 8 > RECORD:
            data = marshal.dumps(([], where, {}))
        version = self.words[VERSION] + 1
        at = WORDS + version % 2 * RECORD
        self._view[at : at + 8] = struct.pack("=II", zlib.crc32(data), len(data))
        self._view[at + 8 : at + 8 + len(data)] = data
        self.words[VERSION] = version
        self.words[OPEN] = len(calls)
        self.beat()

    def sign(self, key, meta, where):
        """The rank brings `meta` to the communication `key`; gives its bytes."""
        fields = (meta.kind, meta.op, meta.root, meta.inputs, meta.outputs)
        parts = [repr(key).encode(), marshal.dumps(fields, 2), marshal.dumps(where)]
        data = b"".join(parts)
        if len(data) + _HEAD.size <= SIGNATURE:
            short = zlib.crc32(parts[0])
            head = _HEAD.pack(zlib.crc32(data), short, *map(len, parts))
            at = _slot(short)
            self._view[at : at + len(head) + len(data)] = head + data
        return parts[1]

    # read by the others

    def signature(self, key):
        """(meta, where, bytes of meta) that this rank brings to `key`, or None."""
        name = repr(key).encode()
        short = zlib.crc32(name)
        at = _slot(short)
        check, found, a, b, c = _HEAD.unpack(self._view[at : at + _HEAD.size])
        if found != short or _HEAD.size + a + b + c > SIGNATURE:
            return None
        data = bytes(self._view[at + _HEAD.size : at + _HEAD.size + a + b + c])
        if zlib.crc32(data) != check or data[:a] != name:
            return None
        meta = data[a : a + b]
        return Meta(*marshal.loads(meta)), marshal.loads(data[a + b :]), meta

    def status(self, recent=float("inf")):
        """What the rank is doing, as far as it has written it down.

        It polls where its latest look was not longer than `recent` seconds ago.
        """
        state = STATES[self.words[STATE]]
        calls, where, called = self._record()
        blocked = self.words[BLOCKED] or self.words[HANDED]
        calls = dict(calls) if self.words[OPEN] else {}
        call = calls.pop(blocked, None)
        if state in ("starting", "running"):
            state = "blocked" if call else state
        else:
            call = None
        status = Status(self.rank, state, call, list(calls.values()), where)
        status.steps, status.printed = self.activity(), self.printed()
        status.called = called
        if state == "running" and time.monotonic() - self.times[LOOKED] < recent:
            status.polls = calls.get(self.words[POLLED])
        return status

    def _record(self):
        for _ in range(100):
            version = self.words[VERSION]
            at = WORDS + version % 2 * RECORD
            check, size = struct.unpack("=II", self._view[at : at + 8])
            data = bytes(self._view[at + 8 : at + 8 + min(size, RECORD)])
            if version == 0:
                break
            if version == self.words[VERSION] and zlib.crc32(data) == check:
                calls, where, called = marshal.loads(data)
                calls = [(id, Waiting(*fields)) for id, fields in calls]
                return calls, where, called
        return [], ("", 0), {}


def _slot(short):
    return WORDS + 2 * RECORD + short % KEPT * SIGNATURE
