"""What the ranks of the simulator print, kept apart by rank, and how much it may be."""

import io
import os
import sys

from .pipes import OUTPUT_LIMIT
from .torch_private import current_engine


class PerRankOutput:
    """Stands in for sys.stdout: a rank's text is kept, the caller's goes through.

    `too_much(rank)` is called when the ranks have printed more than OUTPUT_LIMIT; it
    has to raise.
    """

    def __init__(self, n, too_much):
        self.kept = [io.BytesIO() for _ in range(n)]
        self.printed = [0] * n  # bytes, also those on sys.stderr
        self._total, self._too_much = 0, too_much
        self._live = os.environ.get("D2LPAR_LIVE") == "1"

    def __enter__(self):
        self._usual, self._errors = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self, _Counted(self._errors, self)
        return self

    def __exit__(self, *_):
        sys.stdout, sys.stderr = self._usual, self._errors

    def write(self, text):
        engine = current_engine()
        if engine is None:
            return self._usual.write(text)
        data = text.encode("utf-8", "backslashreplace")
        self.take(engine, data)
        if self._live:
            self._usual.write(text)
        return len(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def take(self, engine, data):
        """The rank has printed these bytes."""
        self.count(engine, len(data))
        self.kept[engine.rank].write(data)

    def count(self, engine, size):
        """The rank prints so many bytes; raise where that is too much."""
        engine.sim.activity += 1
        self._total += size
        if self._total > OUTPUT_LIMIT:
            self._too_much(engine.rank)
        self.printed[engine.rank] += size

    @property
    def buffer(self):
        """Takes bytes: the rank's own, or the caller's."""
        engine = current_engine()
        return self._usual.buffer if engine is None else _Bytes(self, engine)

    def flush(self):
        if current_engine() is None or self._live:
            self._usual.flush()

    def close(self):
        """It stays open: it is the caller's."""

    def __getattr__(self, name):
        return getattr(self._usual, name)

    def text(self, rank):
        """All that this rank has printed."""
        return self.kept[rank].getvalue().decode("utf-8", "replace")


class _Bytes(io.BufferedIOBase):
    """A rank's `sys.stdout.buffer`: bytes arrive among its text, in order."""

    def __init__(self, output, engine):
        self._output, self._engine = output, engine

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        self._output.take(self._engine, data)
        if self._output._live:
            self._output._usual.write(data.decode("utf-8", "replace"))
        return len(data)


class _Counted:
    """Stands in for sys.stderr: all goes through, what ranks write is counted."""

    def __init__(self, usual, output):
        self._usual, self._output = usual, output

    def write(self, text):
        engine = current_engine()
        if engine is not None:
            self._output.count(engine, len(text))
        return self._usual.write(text)

    def __getattr__(self, name):
        return getattr(self._usual, name)
