"""`check`: an answer to an exercise, judged by what it does and how.

The function runs on many small cases: 1 to 8 ranks and more, sizes that do not
divide, any root.  Its values are compared with a serial truth that is computed outside
of the ranks; bytes, rounds, messages, memory and time are what the simulator counted.
"""

import re
from collections.abc import Callable

import numpy as np

from . import signs, solutions
from .guard import replaced
from .hints import ONLY_SIMULATED, PLAIN, usual_mistake
from .judging import Mistake
from .report import Report, Row
from .requirements import NATIVE, collectives
from .showing import compared


def check(name: str, function: Callable, hint: bool = False, seed: int = 0) -> Report:
    """A `Report` on `function` as the answer to exercise `name`, such as "06.1".

    It raises nothing because of what `function` does, and comes to an end unless that
    loops inside of a library's C code, such as `sum(range(10**15))`.
    `hint=True` says more about the likely mistake.  `seed` draws other numbers.
    Raises ValueError for an unknown exercise, TypeError where `function` is none.
    """
    exercise = find(name)
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f'check("{name}", ...) wants your function, not a {kind}')
    cases = list(exercise.draw(np.random.default_rng(seed)))
    attempts = _attempts(exercise, function, cases)
    report = Report(exercise.name, exercise.title, hint=hint)
    if any(map(signs.not_done, attempts)):
        report.done = False
        return report
    rows, whole = exercise.requirements, len(attempts) == len(cases)
    met = whole and all(attempt.meets(rows) for attempt in attempts)
    tried = _on_processes(exercise, function, cases) if met else []
    _judge(report, exercise, cases, attempts, tried)
    if not report.passed and exercise.public:
        if _passes(exercise.public, function, seed):
            why = "it is an answer to the public exercise"
            row = Row("answer to", "the public one", "this", False, vital=why)
            report.rows.append(row)
            report.mistake, report.more = "public answer", ""
            report.sentence = exercise.differs
    return report


def _judge(report, exercise, cases, attempts, tried):
    """The report has its rows, and where one fails the call that shows the mistake."""
    failing = [a for a in attempts if not a.meets(exercise.requirements)]
    failing.sort(key=_less_telling)
    report.run, evasions = attempts[-1].recorded, list(_evasions(attempts))
    if failing or evasions or not all(attempt.right for attempt in tried):
        likely = evasions[0][:2] if evasions else None
        mistake, shown = likely or _mistake(exercise, attempts, failing, tried)
        report.mistake, report.sentence, report.more = mistake
        if shown is not None:
            report.failing, report.run = shown.case.call, shown.recorded
            report.details = _details(shown, exercise, mistake.name)
            report.stuck = shown.error is not None and shown.cause is None
        if shown in failing:
            failing.insert(0, shown)
    report.rows = [_outcome_row(exercise, attempts, cases, failing)]
    least = min(2, max(case.n for case in cases))
    for requirement in exercise.requirements:
        report.rows.append(_row(requirement, exercise, attempts, failing, least))
    report.rows += [_processes_row(tried)] * bool(tried)
    for call in [a.case.call for a in failing if signs.races(a)][:1]:
        report.rows.append(Row("races", "1", "none", False, call, "it has a race"))
    report.rows += [row for *_, row in evasions]


def _evasions(attempts):
    """(the mistake, the call that shows it, its row) of what evades the measuring."""
    for name in replaced()[:1]:
        text = f"{name} is not the library's own any more; restart the kernel."
        why = "a function of the course is replaced"
        row = Row("functions replaced", name, "none", False, vital=why)
        yield Mistake("replaced", text), None, row
    for each in [a for a in attempts if a.run is not None and any(a.run.aside)][:1]:
        text = "It computes in threads that it starts, and not where it is called."
        made, why = f"{sum(each.run.aside)} operations", "work is hidden in threads"
        label = "work in threads of its own"
        row = Row(label, made, "none", False, each.case.call, why)
        yield Mistake("threads", text), each, row


def _passes(exercise, function, seed):
    """Does the function do what this exercise asks for, in the simulator?"""
    cases = exercise.draw(np.random.default_rng(seed))
    attempts = (exercise.attempt(function, case) for case in cases)
    return all(attempt.meets(exercise.requirements) for attempt in attempts)


def find(name):
    """The Exercise of that name, or its variation of that name, such as "06.1b"."""
    public = re.match(r"\d+\.\d+|", str(name))[0]
    if public not in solutions.known():
        chapter = str(name).partition(".")[0]
        known = [x for x in solutions.known() if x.startswith(f"{chapter}.")]
        chapters = ", ".join(sorted({x[:2] for x in solutions.known()}))
        known = ", ".join(known) or f"in chapters {chapters}"
        raise ValueError(f"There is no exercise {name!r}: there are {known}.")
    exercise = solutions.load(public)
    if name == public:
        return exercise
    if name in exercise.variations:
        return exercise.variations[name]
    known = ", ".join(exercise.variations) or "none"
    raise ValueError(f"There is no variation {name!r} of {public}: {known}.")


def _attempts(exercise, function, cases):
    """An Attempt per case; the rest is left out once a rank does not come to an end."""
    attempts = []
    for case in cases:
        attempts.append(exercise.attempt(function, case))
        attempts[-1].attempts = attempts
        if signs.endless(attempts[-1]) or signs.not_done(attempts[-1]):
            break
    return attempts


def _on_processes(exercise, function, cases):
    """The largest case of each world size that counts, on real processes.

    Where a case names a program among its facts, of each program.
    """
    few = [case for case in cases if case.n in exercise.processes]
    largest = {(case.n, case.facts.get("program")): case for case in few}
    return [_on_a_busy_machine(exercise, function, c) for c in largest.values()]


def _on_a_busy_machine(exercise, function, case):
    """An Attempt on processes.

    Ranks that get stuck there and not in the simulator may be the machine's fault, so
    such an answer has to be right twice in a row instead.
    """
    attempt = exercise.attempt(function, case, backend="gloo")
    if attempt.error is not None and attempt.cause is None:
        for _ in range(2):
            attempt = exercise.attempt(function, case, backend="gloo")
            if not attempt.right:
                break
    return attempt


# The rows

NOT_RIGHT = "the outcome is not right in every call"


def _outcome_row(exercise, attempts, cases, failing):
    """Right calls on one rank do not count where no other is right."""
    vital = [row for row in exercise.requirements if row.vital]
    right = [attempt for attempt in attempts if attempt.meets(vital)]
    several = [case for case in cases if case.n > 1]
    count, of, where = len(right), len(cases), ""
    if right and several and all(attempt.case.n == 1 for attempt in right):
        count, of, where = 0, len(several), " on several ranks"
    wrong = [a.case.call for a in failing if a not in right] + [""]
    came, wanted = f"right in {count} of {of} calls{where}", f"all {len(cases)}"
    passed = len(right) == len(cases)
    return Row("outcome", came, wanted, passed, wrong[0], NOT_RIGHT)


def _row(requirement, exercise, attempts, failing, least):
    """The figures of the first call in which the requirement fails, else of the last.

    A call shows that it is met if the outcome is right there, on at least that many
    ranks, and by the answer's own work.  Where no call does, nothing is judged.
    """
    ended = [attempt for attempt in attempts if attempt.error is None]
    own = [a for a in ended if not _by_others(requirement, exercise, a)]
    bad = [a for a in failing if a in own and not requirement.holds(a)]
    good = [a for a in own if a.right and a.case.n >= least]
    vital = NOT_RIGHT * requirement.vital
    if not bad and not good:
        why = "no right call" if len(own) == len(ended) else "done by what is forbidden"
        return Row(requirement.label, why, "", None, "", vital)
    shown = bad[0] if bad else good[-1]
    texts = requirement.texts(shown)
    return Row(requirement.label, *texts, not bad, shown.case.call, vital)


def _by_others(requirement, exercise, attempt):
    """Has something done the work that another requirement forbids?"""
    asked = [r.instead for r in exercise.requirements if r.instead]
    return not requirement.instead and any(instead(attempt) for instead in asked)


def _processes_row(tried):
    wrong = [attempt.case.call for attempt in tried if not attempt.right]
    sizes = " and ".join(sorted({str(attempt.case.n) for attempt in tried}))
    came = f"right in {len(tried) - len(wrong)} of {len(tried)} calls"
    wanted = f"all {len(tried)}, on {sizes} ranks"
    why = "the outcome is not right on real processes"
    return Row("on real processes", came, wanted, not wrong, (wrong + [""])[0], why)


def _less_telling(attempt):
    """A wrong outcome comes first; then several ranks, with something to be seen."""
    run = attempt.recorded
    return attempt.right, attempt.case.n == 1, not (run and run.timeline)


def _details(attempt, exercise, mistake):
    """Lines; without advice for any deadlock, where the exercise knows the mistake."""
    if attempt.error is not None:
        known = mistake in exercise.mistakes
        advice = getattr(attempt.error, "advice", "") if known else ""
        lines = str(attempt.error).replace(advice, "").split("\n")
        return [f"  {line}" for line in lines]
    for rank, wanted in enumerate(attempt.case.expected):
        came = attempt.came[rank]
        if not exercise.agrees(came, wanted, attempt.case):
            who = f"rank {attempt.case.rank(rank)} " if attempt.case.n > 1 else ""
            came, wanted = (exercise.shows(x, attempt.case.n) for x in (came, wanted))
            return [f"  {who}{line}" for line in compared(came, wanted)]
    return []


def _mistake(exercise, attempts, failing, tried):
    """(the likely mistake, the smallest case that shows it): the exercise's own
    mistakes come before those that occur everywhere."""
    if not failing:
        shown = next(attempt for attempt in tried if not attempt.right)
        return Mistake("processes", ONLY_SIMULATED), shown
    of_messages = NATIVE in [row.label for row in exercise.requirements]
    for attempt in failing if of_messages else ():
        if names := ", ".join(dict.fromkeys(collectives(attempt.run))):
            text = f"It calls {names}; here the answer is made of messages."
            return Mistake("native collective", text), attempt
    if isinstance(failing[0].cause, PLAIN) or signs.races(failing[0]):
        return usual_mistake(exercise, attempts, failing), failing[0]
    if all(map(signs.silent, failing)) and any(a.case.n > 1 for a in failing):
        text = "It returns None on every rank, and a value is expected."
        return Mistake("returns None", text), failing[0]
    for name, question in exercise.mistakes.items():
        for attempt in failing:
            if signs.ask(question, attempt):
                return exercise.words[name], attempt
    return usual_mistake(exercise, attempts, failing), failing[0]
