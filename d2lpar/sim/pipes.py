"""What goes to and fro between a rank and the launcher."""

import contextlib
import dataclasses
import io
import os
import sys
import threading
import time

from .outcome import RankReport

OUTPUT_LIMIT = 32_000_000  # bytes that all ranks of a run together may print
LINE = 10_000  # characters after which what is not yet a line is shown, too


@dataclasses.dataclass
class Message:
    """From a rank: some lines, a partial report, or the last report."""

    kind: str  # lines, partial, returned, failed
    report: RankReport | None = None
    text: str = ""
    error: bytes | None = None  # the exception, packed
    transport: bool = False  # it came from the connections
    mismatch: tuple | None = None  # key of the communication that does not fit
    moment: float = 0.0  # when the function ended, on the machine's clock

    @property
    def cause(self):
        """failed, transport or mismatch."""
        if self.mismatch is not None:
            return "mismatch"
        return "transport" if self.transport else "failed"


class Link:
    """The rank's end of the pipe, and a thread that listens at it."""

    def __init__(self, connection):
        self._connection, self._lock = connection, threading.Lock()
        self.ended = threading.Event()

    def send(self, message):
        """The launcher has it, or is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(message)

    def listen(self, tell):
        """From now on questions are answered with `tell()`."""
        threading.Thread(target=self._listen, args=(tell,), daemon=True).start()

    def _listen(self, tell):
        leave = os._exit
        while True:
            try:
                word = self._connection.recv()
            except (OSError, EOFError):
                leave(1)  # the launcher is gone
            if word == "end":
                self.ended.set()
            else:
                self.send(Message("partial", tell()))


class _Counted(io.FileIO):
    """A file that holds no more than OUTPUT_LIMIT; the journal knows how much it is.

    Who prints on has to wait for the launcher, which has seen it and ends the run.
    """

    journal = None

    def write(self, data):
        self.journal.print(memoryview(data).nbytes)
        while self.journal.printed() > OUTPUT_LIMIT:
            time.sleep(0.1)
        return super().write(data)


class Output(io.TextIOWrapper):
    """A rank's standard output, kept in a file; what it prints is in the journal."""

    def __init__(self, fd, journal, link=None):
        raw = _Counted(fd, "w", closefd=False)
        raw.journal = journal
        super().__init__(raw, "utf-8", "backslashreplace", "", write_through=True)
        self._link, self._rest = link, ""

    def write(self, text):
        count = super().write(text)
        if self._link is not None:
            *lines, self._rest = (self._rest + text).split("\n")
            shown = "".join(line + "\n" for line in lines)
            if len(self._rest) > LINE:
                shown, self._rest = shown + self._rest, ""
            if shown:
                self._link.send(Message("lines", text=shown))
        return count


class Captured(io.StringIO):
    """What is printed inside is progress and is kept, up to OUTPUT_LIMIT."""

    def __init__(self, beat):
        super().__init__()
        self._beat = beat

    def write(self, text):
        if self.tell() + len(text) > OUTPUT_LIMIT:
            raise RuntimeError(
                f"a rank may print {OUTPUT_LIMIT:,} characters, not more"
            )
        self._beat()
        return super().write(text)

    text = io.StringIO.getvalue

    def __enter__(self):
        self._usual = sys.stdout
        sys.stdout = self
        return self

    def __exit__(self, *exception):
        sys.stdout = self._usual


class NoInput(io.TextIOBase):
    """Standard input of a rank: there is none."""

    def readable(self):
        return True

    def readline(self, size=-1):
        raise RuntimeError("a rank cannot read input: give it an argument instead")

    read = readline
