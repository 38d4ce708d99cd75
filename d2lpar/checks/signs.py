"""What gives a mistake away: questions about an Attempt."""

import torch

from ..errors import DeadlockError, MismatchError
from .judging import same


def hangs(attempt):
    """Ranks wait for each other."""
    return isinstance(attempt.error, DeadlockError)


def mismatched(attempt):
    """Ranks describe one communication differently."""
    return isinstance(attempt.error, MismatchError)


def endless(attempt):
    """A rank did not come to an end."""
    text = str(attempt.error)
    return attempt.error is not None and ("no progress" in text or "not at an" in text)


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


def gives(fake):
    """The wrong outcome is `fake(case)`, a list with one value per rank."""
    return lambda a: wrong(a) and all(map(same, a.came, fake(a.case)))


def returns_none(attempt):
    """Some rank returned nothing where a value is wanted."""
    pairs = zip(attempt.came or [], attempt.case.expected, strict=False)
    return any(came is None and wanted is not None for came, wanted in pairs)


def silent(attempt):
    """Every rank returned None where a value is wanted."""
    came, wanted = attempt.came or [], attempt.case.expected
    pairs = zip(came, wanted, strict=False)
    return bool(came) and all(a is None and b is not None for a, b in pairs)


def strided(attempt):
    """A message of a tensor that is not contiguous was refused."""
    return "contiguous" in str(attempt.cause)


def not_a_tensor(attempt):
    """Some rank returned something else where a tensor is wanted."""
    pairs = zip(attempt.came or [], attempt.case.expected, strict=False)
    return any(torch.is_tensor(b) and not torch.is_tensor(a) for a, b in pairs)


def both(*questions):
    """All of these at once."""
    return lambda attempt: all(question(attempt) for question in questions)


def to_itself(attempt):
    """A rank sent a message to itself, which is refused."""
    return "cannot send to itself" in str(attempt.cause)


def left_alone(k=0):
    """The outcome is wrong: argument k is on every rank what it was before."""

    def unchanged(attempt):
        before = [arguments[k] for arguments in attempt.case.inputs]
        after = [arguments[k] for arguments in attempt.args]
        return all(map(same, after, before))

    return both(wrong, unchanged)


def touches_what_leaves(attempt):
    """The outcome is wrong, and some rank computed while a message of it was leaving.

    Seen on clusters where computing takes time.
    """
    if not wrong(attempt):
        return False
    for streams in attempt.run.timeline.rows.values():
        works = [event for event in streams["compute"] if event.kind == "compute"]
        for send in streams.get("send", []):
            if any(send.start <= work.start < send.stop for work in works):
                return True
    return False
