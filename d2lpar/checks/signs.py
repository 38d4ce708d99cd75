"""What gives a mistake away: questions about an Attempt."""

import linecache
import re
import traceback

import numpy as np
import torch

from ..report.engine import is_users
from ..report.errors import DeadlockError, MismatchError, RaceError
from .equality import leaves, numbers

# Whether an error of the check itself is raised.  Learners get a report without the
# likely mistake then; the tests of the checks want to see it.
STRICT = False


def ask(question, *about):
    """Return what `question` says, or None where it fails on an outcome too strange."""
    try:
        return question(*about)
    except Exception:
        if STRICT:
            raise
        return None


def hangs(attempt):
    """Ranks wait for each other."""
    return isinstance(attempt.error, DeadlockError)


def races(attempt):
    """A rank used memory that a call of its own still reads or writes."""
    return isinstance(attempt.error, RaceError)


def mismatched(attempt):
    """Ranks describe one communication differently."""
    return isinstance(attempt.error, MismatchError)


def endless(attempt):
    """A rank did not come to an end."""
    text = str(attempt.error)
    return attempt.error is not None and ("no progress" in text or "not at an" in text)


def not_done(attempt):
    """A line of the answer says so, and not torch, which lacks some operations, too."""
    cause = attempt.cause
    if not isinstance(cause, NotImplementedError):
        return False
    frames = [*traceback.walk_tb(cause.__traceback__)]
    if not str(cause) or not frames:
        return not str(cause)
    file, number = frames[-1][0].f_code.co_filename, frames[-1][1]
    return is_users(file) and linecache.getline(file, number).strip()[:5] == "raise"


def raises(*kinds):
    """The function itself raised one of these exceptions."""
    return lambda attempt: isinstance(attempt.cause, kinds)


def fails(attempt):
    """Whatever way: it hangs, raises or has a wrong outcome."""
    return not attempt.right


def wrong(attempt):
    """It ended, and the outcome is wrong on some rank."""
    return attempt.error is None and not attempt.right


def right(attempt):
    """It ended, and the outcome is right on every rank."""
    return attempt.right


def silent(attempt):
    """Every rank returned None where a value is wanted."""
    came, wanted = attempt.came or [], attempt.case.expected
    pairs = zip(came, wanted, strict=False)
    return bool(came) and all(a is None and b is not None for a, b in pairs)


def not_a_tensor(attempt):
    """Some rank returned something else where a tensor is wanted."""
    pairs = zip(attempt.came or [], attempt.case.expected, strict=False)
    return any(torch.is_tensor(b) and not torch.is_tensor(a) for a, b in pairs)


def both(*questions):
    """All of these at once."""
    return lambda attempt: all(question(attempt) for question in questions)


def either(*questions):
    """One of these at least."""
    return lambda attempt: any(question(attempt) for question in questions)


def breaks(requirement):
    """The outcome is right, and this requirement does not hold."""
    return lambda attempt: attempt.right and not requirement.holds(attempt)


def violates(requirement):
    """It ended, and this requirement does not hold, whatever the outcome is."""
    return lambda attempt: attempt.error is None and not requirement.holds(attempt)


def waiting(attempt):
    """[(rank, "src" or "dst", peer)] of the ranks that wait for a message."""
    found = re.findall(r"rank (\d+): .*?\b(src|dst)=(\d+)", str(attempt.error))
    return [(int(rank), way, int(peer)) for rank, way, peer in found]


def not_a_number(attempt):
    """The outcome is wrong, and has NaN on some rank."""
    is_nan = lambda x: bool(x.isnan().any()) if torch.is_tensor(x) else x != x
    return wrong(attempt) and any(is_nan(x) for _, x in leaves(attempt.came))


def only(condition, question=fails):
    """It fails, or what else is asked, in no call whose case does not meet this.

    An endless call ends the check, so nobody knows of the cases after it.
    """
    return lambda attempt: (
        question(attempt)
        and not endless(attempt.attempts[-1])
        and all(
            condition(other.case) or not question(other) for other in attempt.attempts
        )
    )


def no_numbers(attempt):
    """It returned something else where so many numbers are wanted."""
    if not wrong(attempt):
        return False
    came, wanted = numbers(attempt.came[0]), numbers(attempt.case.expected[0])
    return bool(came.shape != wanted.shape or np.isnan(came).any())


def says(text):
    """The function itself raised an exception with this text."""
    return lambda attempt: attempt.cause is not None and text in str(attempt.cause)


def always(question, among=fails):
    """This, in every call that fails, or of which something else is true."""
    return lambda attempt: (
        among(attempt)
        and all(question(other) for other in attempt.attempts if among(other))
    )
