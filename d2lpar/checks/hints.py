"""Mistakes that occur in every exercise, where it knows no better one of its own.

`RECOGNISERS` is the table: the first that has a Mistake for the failing attempts tells
it.  What is told before any other stands in `checker`: a function replaced, work in
threads, native collectives, None on every rank.  `relations` has what wrong numbers
have to do with the right ones.
"""

import torch

from . import signs
from .judging import Mistake
from .relations import relation
from .requirements import UNTOUCHED, changed

ONLY_SIMULATED = (
    "It is right in the simulator and wrong on real processes. "
    "Those share no memory and no module, and take turns in no fixed order."
)
WAITING = "Ranks wait for each other; see who, above."
WRONG = "The outcome is wrong: compare what came with what was expected."
# What these say has nothing to do with the exercise: the system refuses something, or
# a name is misspelt.
PLAIN = OSError, ImportError, NameError


def usual_mistake(exercise, attempts, failing):
    """The Mistake that the failing attempts show; those come first that tell most."""
    for name, recognise in RECOGNISERS.items():
        if found := signs.ask(recognise, exercise, attempts, failing):
            sentence, _, hint = found.partition(" Hint: ")
            return Mistake(name, sentence, hint)
    return Mistake("wrong", WRONG)


# Recognisers: (exercise, attempts, failing) -> a sentence, with its hint, or None


def _raises(exercise, attempts, failing):
    attempt = failing[0]
    if attempt.cause is None:
        return None
    rank = "It" if attempt.case.n == 1 else f"Rank {attempt.error.rank}"
    line, cause = attempt.error.line or "", attempt.cause
    ours = any(room in line for room in ("judging.py", "backward.py", "solutions"))
    line = f" in {line}" if line and not ours else ""
    reason = str(cause).strip().split("\n")[0]
    told = [f" Hint: {hint}" for text, hint in ADVICE.items() if text in str(cause)]
    text = f"{rank} raises {type(cause).__name__}{line}: {reason}"
    return text + "".join(told[:1])


ONE_RANK = "Where sender and receiver are one rank, copy; or leave this case out."
ADVICE = {
    "cannot send to itself": ONE_RANK,
    "cannot receive from itself": ONE_RANK,
    "should not be the same as the rank": ONE_RANK,
    "does not require grad": (
        "The way back is lost where a value leaves autograd: `detach`, `.data`, "
        "`no_grad`, a new tensor, or a message that autograd does not know."
    ),
    "in-place operation": (
        "Autograd needs the old value in the backward pass: write into a new tensor."
    ),
}


def _no_wait(exercise, attempts, failing):
    open_ends = [a.run and not a.error and a.run.ledger.unwaited() for a in failing]
    if all(open_ends) or (failing[0].right and open_ends[0]):
        return "It starts a message and never waits for it."
    return None


def _not_in_place(exercise, attempts, failing):
    k = getattr(exercise.outcome, "argument", None)
    wrong = [attempt for attempt in failing if not attempt.right]
    if k is None or not wrong or any(a.error or changed(a, k) for a in wrong):
        return None
    returns = all(any(map(torch.is_tensor, attempt.values)) for attempt in wrong)
    return (
        f"{'It returns a tensor, and the' * returns or 'The'} argument itself is what "
        "it was before. Hint: The call is in place: write the result into that tensor, "
        "as `copy_` and `+=` do. `x = ...` gives the name `x` to another one."
    )


def _pattern(exercise, attempts, failing):
    wrong = [attempt for attempt in failing if not attempt.right]
    where = _where(attempts, wrong) if wrong else None
    if where is None:
        return None
    return f"It fails exactly where {where}. {_related(exercise, failing)}".strip()


def _costly(exercise, attempts, failing):
    """The rows that fail in each of these calls, or in some; how much, and where."""
    if not all(attempt.right for attempt in failing):
        return None
    rows = [x for x in exercise.requirements if not any(map(x.holds, failing))]
    rows = rows or [x for x in exercise.requirements if not all(map(x.holds, failing))]
    counted = [text for row in rows for text in [_count(row, attempts)] if text]
    names = ", ".join(f'"{row.label}"' for row in rows)
    labels = [row.label for row in rows]
    said = next((text for label, text in TOO_MUCH.items() if label in labels), "")
    _, what, hint = Mistake.of("costly", said)
    text = f"The outcome is right, but {what or 'not the way to it'}: see {names}."
    if counted:
        first = min(counted, key=lambda text: not text.startswith("it "))
        text = f"The outcome is right, but {first}."
    where = _where(attempts, failing)
    if where and where != SEVERAL:  # one rank sends nothing, whatever it does
        text += f" They fail exactly where {where}."
    return f"{text} Hint: {hint}" if hint else text


# Row to what is wrong with the way, the most telling one first.
TOO_MUCH = {
    UNTOUCHED: "it changes an argument that should stay as it is",
    "extra memory of a rank": """a rank holds more at a time than it needs Hint: Is
        there a copy of the whole, a list of all parts, or a new buffer every time?""",
    "messages of all ranks": """the ranks send more messages than they need Hint: Which
        of them could travel as one, and which does nobody need?""",
    "bytes sent by a rank": """a rank sends more bytes than it must Hint: Does anything
        travel twice, or to a rank that does not need it?""",
    "rounds": """messages wait for others more often than they must Hint: Which of them
        could travel at the same time?""",
    "time": """it takes longer than it must Hint: What waits for what, and what could
        travel or be computed at the same time?""",
}


def _race(exercise, attempts, failing):
    if not signs.races(failing[0]):
        return None
    hint = "Until `wait()` returns, write to nothing sent, and read nothing received."
    return f"{str(failing[0].error).splitlines()[0]} Hint: {hint}"


RECOGNISERS = {
    "race": _race,
    "raises": _raises,
    "hangs": lambda exercise, attempts, failing: (
        WAITING if signs.hangs(failing[0]) else None
    ),
    "error": lambda exercise, attempts, failing: (
        failing[0].error and str(failing[0].error).split("\n")[0]
    ),
    "no wait": _no_wait,
    "not in place": _not_in_place,
    "pattern": _pattern,
    "costly": _costly,
    "wrong": lambda exercise, attempts, failing: _related(exercise, failing),
}


def _related(exercise, failing):
    """What is true of every wrong outcome; "" if nothing is known, or some had none."""
    wrong = [attempt for attempt in failing if not attempt.right]
    if any(attempt.error for attempt in wrong):
        return ""
    return signs.ask(relation, wrong, exercise) or ""


# Costs, as counts

log2 = lambda n: (n - 1).bit_length()
COUNTS = {
    "1": lambda n: 1,
    "2": lambda n: 2,
    "n-1": lambda n: n - 1,
    "n": lambda n: n,
    "n+1": lambda n: n + 1,
    "2(n-1)": lambda n: 2 * (n - 1),
    "2n": lambda n: 2 * n,
    "ceil(log2 n)": log2,
    "ceil(log2 n) + 1": lambda n: log2(n) + 1,
    "2 ceil(log2 n)": lambda n: 2 * log2(n),
    "ceil(log2 n) + n-1": lambda n: log2(n) + n - 1,
    "n ceil(log2 n)": lambda n: n * log2(n),
    "n(n-1)": lambda n: n * (n - 1),
    "2n(n-1)": lambda n: 2 * n * (n - 1),
    "n^2": lambda n: n * n,
}
COUNTED = {"rounds": "takes {} rounds", "messages of all ranks": "sends {} messages"}
TIMES = {"twice": lambda n: 2, "three times": lambda n: 3, "four times": lambda n: 4}
TIMES |= {f"{name} times": COUNTS[name] for name in ("n-1", "n", "2(n-1)")}


def _count(row, attempts):
    """How much it is, in all calls that are right, as a count; None if none fits."""
    right = [attempt for attempt in attempts if attempt.right and attempt.case.n > 1]
    ns = [attempt.case.n for attempt in right]
    figures, limits = (
        [sum(rank[k] for rank in row.figures(attempt)) for attempt in right]
        for k in (0, 1)
    )
    if row.label in COUNTED and len({*ns}) > 2:
        came, enough = _name(ns, figures), _name(ns, limits)
        if came and enough:
            return f"it {COUNTED[row.label].format(came)}, and {enough} are enough"
    every = zip(ns, figures, limits, strict=True)
    more = [(n, came, limit) for n, came, limit in every if came != limit]
    for name, times in TIMES.items() if len(more) > 2 else ():
        if all(came == times(n) * limit for n, came, limit in more):
            return f'"{row.label}" is {name} the figure that is allowed'
    return None


def _name(ns, figures):
    """The first count that gives these figures for these numbers of ranks, or None."""
    fits = lambda count: list(map(count, ns)) == figures
    return next((name for name, count in COUNTS.items() if fits(count)), None)


# Where it fails

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


def _where(attempts, failing):
    """What all failing cases have in common, and no other case; None if nothing."""
    fits = lambda holds: all(bool(holds(a.case)) == (a in failing) for a in attempts)
    found = (words for words, holds in PATTERNS.items() if fits(holds))
    return next(found, None) if {*failing} < {*attempts} else None
