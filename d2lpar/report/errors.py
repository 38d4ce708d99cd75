"""The errors that a run raises: each names the rank, the call and the line."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs import Run

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class _InNotebooks:
    """Shows the caller's lines in a notebook, without those of this package."""

    def _render_traceback_(self):  # IPython calls it
        shell = sys.modules["IPython"].get_ipython()
        return shell.InteractiveTB.structured_traceback(
            type(self), self, _callers_part(self.__traceback__), tb_offset=1
        )


def _callers_part(trace):
    """A traceback like `trace`, up to the first frame of this package."""
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    rest = _callers_part(trace.tb_next)
    return type(trace)(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


class RankError(_InNotebooks, RuntimeError):
    """A run ended because of one rank; the message has a line for every rank.

    Attributes: `rank` (the culprit, None where no single rank is), `call` (text of
    the communication call it was in, or None), `line` ("file:line", or None) and
    `run` (the partial `Run`, whose timeline can be plotted).
    """

    rank: int | None
    call: str | None
    line: str | None
    run: Run | None

    def __init__(self, message, rank=None, call=None, line=None, run=None):
        super().__init__(message)
        self.rank, self.call, self.line, self.run = rank, call, line, run


class DeadlockError(RankError):
    """Ranks wait for each other, or for something that will never come.

    Attribute: `cycle`, the ranks that wait for each other, each for the next and the
    last for the first; None where they do not wait in a circle.
    """

    cycle: list[int] | None = None
    advice = ""  # the part of the message that fits any such circle


class MismatchError(RankError):
    """Ranks meant to take part in one communication describe it differently."""


class RaceError(RankError):
    """A rank used memory that a call of its own, still in flight, reads or writes."""


class Interrupted(_InNotebooks, KeyboardInterrupt):
    """Ctrl-C, or the stop button, during a run; the message has a line for every rank.

    It is shown by the name that learners know.  `run` is the partial `Run`.
    """

    run: Run | None = None


Interrupted.__name__ = Interrupted.__qualname__ = "KeyboardInterrupt"
Interrupted.__module__ = "builtins"
