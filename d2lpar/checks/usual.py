"""Mistakes that occur in every exercise, where a rubric knows no better one."""

from . import signs
from .judging import Mistake
from .relations import relation

ONLY_SIMULATED = (
    "It is right in the simulator and wrong on real processes. "
    "Those share no memory and no module, and take turns in no fixed order."
)
WRONG = "The outcome is wrong: compare what came with what was expected."
# What these say has nothing to do with the exercise: the system refuses something, or
# a name is misspelt.
PLAIN = OSError, ImportError, NameError


def plain(attempt):
    """Does the exception say by itself what is wrong, whatever the exercise?"""
    return isinstance(attempt.cause, PLAIN)


def usual_mistake(exercise, attempts, failing):
    """The Mistake that the first failing attempt shows."""
    first = failing[0]
    if first.cause is not None:
        return Mistake("raises", _raised(first))
    if signs.hangs(first):
        return Mistake("hangs", "Ranks wait for each other; see who, above.")
    if first.error is not None:
        return Mistake("error", str(first.error).split("\n")[0])
    unwaited = [
        bool(a.run and not a.error and a.run.ledger.unwaited()) for a in failing
    ]
    if all(unwaited) or (first.right and unwaited[0]):
        text = "It starts a message and never waits for it."
        return Mistake("no wait", text)
    where = _pattern(attempts, failing)
    if all(attempt.right for attempt in failing):
        return Mistake("costly", _costly(exercise, failing, where))
    related = _related(exercise, failing)
    if where:
        text = f"It fails exactly where {where}. {related}".strip()
        return Mistake("pattern", text)
    return Mistake("wrong", related or WRONG)


def _costly(exercise, failing, where):
    """The rows that fail in each of these calls, and where that is."""
    rows = [row for row in exercise.requirements if not any(map(row.holds, failing))]
    rows = ", ".join(f'"{row.label}"' for row in rows) or "the rows that fail"
    text = f"The outcome is right, but not the way to it: see {rows}."
    if where and where != SEVERAL:  # one rank sends nothing, whatever it does
        text += f" They fail exactly where {where}."
    return text


def _related(exercise, failing):
    """What is true of every wrong outcome; "" if nothing is known, or some had none."""
    wrong = [attempt for attempt in failing if not attempt.right]
    if any(attempt.error for attempt in wrong):
        return ""
    return signs.ask(relation, wrong, exercise) or ""


def _raised(attempt):
    error, cause = attempt.error, attempt.cause
    rank = "It" if attempt.case.n == 1 else f"Rank {error.rank}"
    ours = any(
        room in (error.line or "") for room in ("judging.py", "rubrics", "solutions")
    )
    line = f" in {error.line}" if error.line and not ours else ""
    reason = str(cause).strip().split("\n")[0]
    return f"{rank} raises {type(cause).__name__}{line}: {reason}"


SEVERAL = "there is more than one rank"
PATTERNS = {
    "there is one rank only": lambda case: case.n == 1,
    SEVERAL: lambda case: case.n > 1,
    "there are more than two ranks": lambda case: case.n > 2,
    "the number of ranks is odd": lambda case: case.n > 1 and case.n % 2 == 1,
    "the number of ranks is no power of two": lambda case: case.n & (case.n - 1),
    "the root is not rank 0": lambda case: case.facts.get("root", 0) != 0,
    "the size does not divide by the number of ranks": (
        lambda case: case.facts.get("S", 0) % case.n
    ),
    "there are fewer elements than ranks": (
        lambda case: case.facts.get("S", case.n) < case.n
    ),
    "the tensor is empty": lambda case: case.facts.get("S", 1) == 0,
}


def _pattern(attempts, failing):
    """What all failing cases have in common, and no other case; None if nothing."""
    bad = {id(attempt) for attempt in failing}
    if len(bad) == len(attempts):
        return None
    for words, holds in PATTERNS.items():
        if all(bool(holds(a.case)) == (id(a) in bad) for a in attempts):
            return words
    return None
