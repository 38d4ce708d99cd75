"""The process that runs one submission; `grading` starts it and reads what it tells.

    python -m d2lpar.grading_worker JOB TOLD

JOB is a JSON file: the steps, a seed, seconds for a cell, bytes of memory.  A line of
JSON goes to TOLD for every step that begins, every score, every remark, and the end.
What the checks are made of is kept aside before the first cell runs.
"""

import contextlib
import json
import signal
import sys
import types

from IPython.core.interactiveshell import InteractiveShell

from . import checks
from .report import Report
from .rubrics import guard

_check, _replaced, _spaces = checks.check, guard.replaced, guard._spaces
_score, _text = Report.score.fget, Report.__str__


class TooLong(BaseException):
    """A cell has had its time."""


def main(job, told):
    """Every step has been run."""
    with open(job, encoding="utf-8") as file:
        job = json.load(file)
    _limit(job["memory"])
    asked = [step for step in job["steps"] if step["kind"] == "check"]
    for step in asked:
        checks.find(step["exercise"])  # its rubric is loaded before any cell
    with open(told, "a", buffering=1, encoding="utf-8") as told:
        tell = lambda **line: told.write(json.dumps(line) + "\n")
        _run(job, tell)
        tell(end=True)


def _run(job, tell):
    shell, before = InteractiveShell.instance(), _state()
    shell.showtraceback = lambda *args, **kwargs: None
    for number, step in enumerate(job["steps"]):
        tell(step=number)
        if step["kind"] == "run":
            if problem := _cell(shell, step["source"], job["cell"]):
                tell(remark=f"code cell {step['cell']}: {problem}")
            continue
        score, report = _judge(shell.user_ns, step, job)
        changed = [f"{a}.{b}" for (a, b), v in before.items() if _now(a, b) is not v]
        if changed or (changed := _replaced()):
            score, report = 0.0, f"{changed[0]} is not the course's own any more."
            tell(remark=report)
        tell(exercise=step["exercise"], score=score, report=report)


def _judge(names, step, job):
    """(score from 0 to 1, the report as text) of one of the instructor's checks."""
    reports = []

    def check(name, function, hint=False, seed=0):
        reports.append(_check(name, function, hint=True, seed=seed + job["seed"]))
        return reports[-1]

    course = types.SimpleNamespace(check=check)
    space = {**names, "d2lpar": course, "display": lambda *values: None}
    try:
        with _within(job["cell"]):
            exec(step["source"], space)
    except (Exception, TooLong, SystemExit) as error:
        return 0.0, _sentence(error)
    return (_score(reports[-1]), _text(reports[-1])) if reports else (0.0, "no check")


def _cell(shell, source, seconds):
    """Run a cell; a sentence where it failed."""
    try:
        with _within(seconds), _quiet():
            result = shell.run_cell(source, store_history=True)
    except (TooLong, SystemExit, KeyboardInterrupt) as error:
        return _sentence(error)
    error = result.error_before_exec or result.error_in_exec
    return _sentence(error) if error is not None else ""


def _sentence(error):
    if isinstance(error, TooLong):
        return "it took too long"
    first, *_ = [*str(error).strip().splitlines(), ""]
    return f"{type(error).__name__}: {first[:200]}".removesuffix(": ")


@contextlib.contextmanager
def _quiet():
    out, err = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


@contextlib.contextmanager
def _within(seconds):
    """TooLong is raised inside after `seconds`, and again as long as it is caught."""
    if not hasattr(signal, "setitimer"):  # Windows: the limit of the whole holds
        yield
        return

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _state():
    """Functions, classes and properties that the checks are made of."""
    kinds = types.FunctionType | type | property | staticmethod | classmethod
    return {
        (where, name): value
        for where, space in _spaces()
        for name, value in list(space.items())
        if where.startswith("d2lpar") and isinstance(value, kinds)
    }


def _now(where, name):
    if where in sys.modules:
        return vars(sys.modules[where]).get(name)
    module, _, cls = where.rpartition(".")
    return vars(vars(sys.modules[module]).get(cls, object)).get(name)


def _limit(memory):
    """Asking for more memory than this is a MemoryError, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))


if __name__ == "__main__":
    main(*sys.argv[1:])
