"""What goes to and fro between a rank and the launcher."""

import contextlib
import dataclasses
import io
import os
import sys
import threading

from .outcome import RankReport


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


class Output(io.TextIOWrapper):
    """A rank's standard output, kept in a file; whatever it prints is progress."""

    def __init__(self, fd, beat, link=None):
        raw = io.FileIO(fd, "w", closefd=False)
        super().__init__(raw, "utf-8", "backslashreplace", "", write_through=True)
        self._beat, self._link, self._rest = beat, link, ""

    def write(self, text):
        count = super().write(text)
        self._beat()
        if self._link is not None:
            *lines, self._rest = (self._rest + text).split("\n")
            if lines:
                self._link.send(Message("lines", text="\n".join(lines) + "\n"))
        return count


class Captured(io.StringIO):
    """What is printed inside is progress and is kept."""

    def __init__(self, beat):
        super().__init__()
        self._beat = beat

    def write(self, text):
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
