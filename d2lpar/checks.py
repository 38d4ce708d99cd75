"""`check`: an answer to an exercise, judged by what it does and how.

The function runs on many small cases: 1 to 8 ranks and more, sizes that do not
divide, any root.  Its values are compared with a serial truth that is computed outside
of the ranks; bytes, rounds, messages, memory and time are what the simulator counted.
"""

import importlib

import numpy as np

from .report import Report, Row, short
from .rubrics import signs
from .rubrics.guard import replaced
from .rubrics.judging import Mistake
from .rubrics.requirements import NATIVE, collectives

# chapters with exercises, and the module of `rubrics` that judges them
CHAPTERS = {
    "00": "start",
    "01": "gpus",
    "02": "training_step",
    "03": "splits",
    "04": "messages",
    "05": "scatter",
    "06": "allreduce",
    "07": "data_parallel",
    "08": "overlap",
    "09": "parameter_server",
    "10": "sharding",
    "11": "network_partition",
    "12": "tensor_parallel",
    "13": "pipeline",
}

# Whether an error of the check itself is raised.  Learners get a report without the
# likely mistake then; the tests of the checks want to see it.
STRICT = False

# Whether real processes are asked for, too, where the way to a right outcome is not the
# right one.  A grader wants to know that the outcome was really sent.
THOROUGH = False


def check(name, function, hint=False, seed=0):
    """A `Report` on `function` as the answer to exercise `name`, such as "06.1".

    It always comes to an end, and raises nothing because of what `function` does.
    `hint=True` says more about the likely mistake.  `seed` draws other numbers.
    Raises ValueError for an unknown exercise, TypeError where `function` is none.
    """
    exercise = find(name)
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f'check("{name}", ...) wants your function, not a {kind}')
    cases = list(exercise.cases(np.random.default_rng(seed)))
    attempts = _attempts(exercise, function, cases)
    if any(isinstance(a.cause, NotImplementedError) for a in attempts):
        return Report(exercise.name, exercise.title, done=False)
    failing = [attempt for attempt in attempts if _fails(attempt, exercise)]
    right = len(attempts) == len(cases) and all(attempt.right for attempt in attempts)
    ask = right if THOROUGH else not failing
    tried = _on_processes(exercise, function, cases) if ask else []
    rows = [_outcome_row(attempts, cases)]
    rows += [_row(requirement, attempts) for requirement in exercise.requirements]
    rows += [_processes_row(tried)] * bool(tried)
    rows += [_foreign_row(name) for name in replaced()[:1]]
    report = Report(exercise.name, exercise.title, rows, hint=hint)
    report.run = attempts[-1].recorded or attempts[-1].run
    if not report.passed:
        _explain(report, exercise, *_mistake(exercise, attempts, failing, tried))
        if exercise.public and _passes(exercise.public, function, seed):
            report.rows.append(
                Row("asked for", "the public one", "this", False, vital=True)
            )
            report.mistake, report.sentence = "public answer", exercise.differs
            report.more = ""
    return report


def _passes(exercise, function, seed):
    """Does the function do what this exercise asks for, in the simulator?"""
    for case in exercise.cases(np.random.default_rng(seed)):
        attempt = exercise.attempt(function, case)
        if attempt.error is not None or _fails(attempt, exercise):
            return False
    return True


def exercises_of(chapter):
    """All exercises of a chapter, such as "06", as their checks see them."""
    module = importlib.import_module(f".rubrics.{CHAPTERS[chapter]}", __package__)
    return module.EXERCISES


def find(name):
    """The Exercise of that name, or its variation of that name, such as "06.1b"."""
    chapter = str(name).partition(".")[0]
    exercises = exercises_of(chapter) if chapter in CHAPTERS else []
    for exercise in exercises:
        if exercise.name == name:
            return exercise
        if str(name).startswith(exercise.name):
            return _varied(exercise, name)
    known = ", ".join(exercise.name for exercise in exercises)
    known = known or f"in chapters {', '.join(CHAPTERS)}"
    raise ValueError(f"There is no exercise {name!r}: there are {known}.")


def _varied(exercise, name):
    """A variation of an exercise; ValueError where it has none of that name."""
    variations = importlib.import_module(".rubrics.variations", __package__)
    known = variations.names(exercise.name)
    if name in known:
        return variations.varied(exercise, name)
    known = ", ".join(known) or "none"
    raise ValueError(f"There is no variation {name!r} of {exercise.name}: {known}.")


def _attempts(exercise, function, cases):
    """An Attempt per case; the rest is left out once a rank does not come to an end."""
    attempts = []
    for case in cases:
        attempts.append(exercise.attempt(function, case))
        if signs.endless(attempts[-1]) or isinstance(
            attempts[-1].cause, NotImplementedError
        ):
            break
    return attempts


def _on_processes(exercise, function, cases):
    """The largest case of each world size that counts, on real processes.

    Where a case names a program among its facts, of each program.
    """
    largest = {
        (case.n, case.facts.get("program")): case
        for case in cases
        if case.n in exercise.processes
    }
    return [exercise.attempt(function, c, backend="gloo") for c in largest.values()]


# The rows


def _outcome_row(attempts, cases):
    right = sum(attempt.right for attempt in attempts)
    wrong = next((a for a in attempts if not a.right), None)
    return Row(
        "outcome",
        f"right in {right} of {len(cases)} calls",
        f"all {len(cases)}",
        right == len(cases),
        wrong.case.call if wrong else "",
        vital=True,
    )


def _row(requirement, attempts):
    """The first case that breaks the requirement; the last one where none does."""
    ended = [attempt for attempt in attempts if attempt.error is None]
    if not ended:
        return Row(requirement.label, "-", "-", None, "", requirement.vital)
    failing = [attempt for attempt in ended if not requirement.holds(attempt)]
    shown = failing[0] if failing else ended[-1]
    texts = requirement.texts(shown)
    return Row(
        requirement.label, *texts, not failing, shown.case.call, requirement.vital
    )


def _processes_row(tried):
    wrong = next((attempt for attempt in tried if not attempt.right), None)
    sizes = " and ".join(sorted({str(attempt.case.n) for attempt in tried}))
    return Row(
        "on real processes",
        f"right in {sum(attempt.right for attempt in tried)} of {len(tried)} calls",
        f"all {len(tried)}, on {sizes} ranks",
        wrong is None,
        wrong.case.call if wrong else "",
        vital=True,
    )


def _foreign_row(name):
    return Row("functions replaced", name, "none", False, vital=True)


# The report


def _explain(report, exercise, mistake, shown):
    """The report names the mistake, and the attempt that shows it."""
    report.mistake, report.sentence = mistake.name, mistake.sentence
    report.more = mistake.more
    if shown is not None:
        report.failing, report.run = shown.case.call, shown.recorded or shown.run
        report.details = _details(shown, exercise)


def _fails(attempt, exercise):
    if not attempt.right:
        return True
    return not all(requirement.holds(attempt) for requirement in exercise.requirements)


def _details(attempt, exercise):
    if attempt.error is not None:
        return [f"  {line}" for line in str(attempt.error).split("\n")]
    for rank, wanted in enumerate(attempt.case.expected):
        came = attempt.came[rank]
        if not exercise.agrees(came, wanted, attempt.case):
            who = f"rank {attempt.case.rank(rank)} " if attempt.case.n > 1 else ""
            came, wanted = (exercise.shows(x, attempt.case.n) for x in (came, wanted))
            lines = [f"came     {short(came)}", f"expected {short(wanted)}"]
            return [f"  {who}{line}" for line in lines]
    return []


def _mistake(exercise, attempts, failing, tried):
    """(the likely mistake, the smallest case that shows it): first what is forbidden,
    then the exercise's own mistakes, then those that occur everywhere."""
    if foreign := replaced():
        text = f"{foreign[0]} is not the library's own any more; restart the kernel."
        return Mistake("replaced", None, text), None
    if not failing:
        shown = next(attempt for attempt in tried if not attempt.right)
        return Mistake("processes", None, ONLY_SIMULATED), shown
    of_messages = NATIVE in [row.label for row in exercise.requirements]
    for attempt in failing if of_messages else ():
        if names := ", ".join(dict.fromkeys(collectives(attempt.run))):
            text = f"It calls {names}; here the answer is made of messages."
            return Mistake("native collective", None, text), attempt
    if all(map(signs.silent, failing)) and failing[-1].case.n > 1:
        text = "It returns None on every rank, and a value is expected."
        return Mistake("returns None", None, text), failing[0]
    for mistake in exercise.mistakes:
        for attempt in failing:
            if _recognises(mistake, attempt):
                return mistake, attempt
    return _usual_mistake(attempts, failing), failing[0]


ONLY_SIMULATED = (
    "It is right in the simulator and wrong on real processes. "
    "Those share no memory and no module, and take turns in no fixed order."
)


def _recognises(mistake, attempt):
    """An outcome so strange that the question itself fails is no sign of it."""
    try:
        return mistake.when(attempt)
    except Exception:
        if STRICT:
            raise
        return False


def _usual_mistake(attempts, failing):
    first = failing[0]
    if first.cause is not None:
        return Mistake("raises", None, _raised(first))
    if signs.hangs(first):
        return Mistake("hangs", None, "Ranks wait for each other; see who, above.")
    if first.error is not None:
        return Mistake("error", None, str(first.error).split("\n")[0])
    if first.right and first.run.unwaited:
        text = "It starts a message and never waits for it."
        return Mistake("no wait", None, text)
    where = _pattern(attempts, failing)
    if where:
        return Mistake("pattern", None, f"It fails exactly where {where}.")
    if first.right:
        text = "The outcome is right, but not the way to it: see the rows that fail."
        return Mistake("costly", None, text)
    text = "The outcome is wrong: compare what came with what was expected."
    return Mistake("wrong", None, text)


def _raised(attempt):
    error, cause = attempt.error, attempt.cause
    rank = "It" if attempt.case.n == 1 else f"Rank {error.rank}"
    line = f" in {error.line}" if error.line and "judging.py" not in error.line else ""
    reason = str(cause).strip().split("\n")[0]
    return f"{rank} raises {type(cause).__name__}{line}: {reason}"


PATTERNS = {
    "there is one rank only": lambda case: case.n == 1,
    "there is more than one rank": lambda case: case.n > 1,
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
