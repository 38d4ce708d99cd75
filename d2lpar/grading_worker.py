"""The process that runs one submission; `grading` starts it and reads what it tells.

    python -m d2lpar.grading_worker JOB TOLD

JOB is a JSON file: the steps, a seed, seconds for a cell, bytes of memory, folders that
are secret.  A line of JSON goes to TOLD for every step that begins, every score, every
remark, and the end.  Lines are numbered and sealed with a key that comes by stdin, so
that nobody else can write them.  What the checks are made of is kept aside before the
first cell runs.
"""

import builtins
import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import types

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from . import checks
from .grading import KEY, sealed
from .grading_limits import Snapshot, Watch
from .report import Report

_check, _score, _text = checks.check, Report.score.fget, Report.__str__


class TooLong(BaseException):
    """A cell has had its time."""


def main(job, told):
    """Every step has been run."""
    key = os.read(0, KEY)
    threading.Thread(target=_end_with_the_grader, daemon=True).start()
    with open(job, encoding="utf-8") as file:
        os.unlink(job)  # the hidden tests are in it
        job = json.load(file)
    _limit(job["memory"])
    with open(told, "a", buffering=1, encoding="utf-8") as told:
        numbers = itertools.count()

        def tell(**line):
            told.write(sealed(json.dumps([next(numbers), line]), key) + "\n")

        _run(job, tell)
        tell(end=True)


def _end_with_the_grader():
    """Its end of the pipe closes when it ends, however it does."""
    os.read(0, 1)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _run(job, tell):
    asked = [step["exercise"] for step in job["steps"] if step["kind"] == "check"]
    names = "d2lpar.rubrics.variations"
    importlib.import_module(names)  # all that a check needs is there before any cell
    config = Config({"HistoryManager": {"enabled": False}})
    shell, before = InteractiveShell.instance(config=config), Snapshot(asked)
    shell.showtraceback = lambda *args, **kwargs: None
    watch = Watch(os.getcwd(), job["secret"])
    for number, step in enumerate(job["steps"]):
        tell(step=number)
        if step["kind"] == "run":
            if problem := _cell(shell, step["source"], job["cell"]):
                tell(remark=f"code cell {step['cell']}: {problem}")
            continue
        score, report = 0.0, ""
        if not before.changed():
            watch.checking = True
            score, report, problem = _judge(shell.user_ns, step, job)
            if problem:
                tell(remark=f"{step['exercise']}: {report}")
            watch.checking = False
        if changed := before.changed():
            score, report = 0.0, f"{changed} is not the course's own any more."
            tell(remark=report)
        tell(exercise=step["exercise"], score=score, report=report)


def _judge(names, step, job):
    """(score, report, whether the check did not come to its end)."""
    reports = []

    def check(name, function, hint=False, seed=0):
        reports.append(_check(name, function, hint=True, seed=seed + job["seed"]))
        return reports[-1]

    course = types.SimpleNamespace(check=check)
    space = {**names, "d2lpar": course, "display": lambda *values: None}
    space["__builtins__"] = builtins
    try:
        with _within(job["cell"]):
            exec(step["source"], space)
    except (Exception, TooLong, SystemExit) as error:
        return 0.0, _sentence(error), True
    if not reports:
        return 0.0, "no check", True
    return _score(reports[-1]), _text(reports[-1]), False


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


def _limit(memory):
    """Asking for more memory than this is a MemoryError, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))


if __name__ == "__main__":
    main(*sys.argv[1:])
