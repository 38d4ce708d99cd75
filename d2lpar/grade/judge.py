"""The judge of one submission: `grading` starts it and reads what it tells.

    python -m d2lpar.grade.judge

The job comes by stdin, behind a key: the steps, a seed, seconds for a cell, bytes of
memory, folders that are secret.  A line of JSON goes to stdout for every step that
begins, every score, every remark, and the end, numbered and sealed with the key.

No code of the submission runs here.  The runner, a process that is started before the
job is read, runs the cells and calls the functions; the cases, what they should give,
the hidden tests and the score stay in this one.
"""

import builtins
import contextlib
import ctypes
import functools
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from dataclasses import replace

from ..checks import checker, judging, solutions
from ..checks.exercise import Exercise
from ..sim.patching import patched
from . import runner as runners
from .exchange import Forbidden, decode, entrust
from .process import ENDED, FORGED, KEY, ending, sealed
from .runner import TooLong, sentence, within

GRACE = 15.0  # seconds that a runner may take to notice that its time is over
LARGEST = 1 << 30  # bytes of one answer
# Mistakes that a remark tells: what was to be measured was done elsewhere, or not.
EVASIONS = {"replaced", "threads", "not measured", "too few", "whole work"}


class Ended(Exception):
    """The runner's process is gone."""


class Broken(Forbidden):
    """What came from the runner is no answer to what was asked."""


def main():
    """Every step has been run."""
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    runner = Runner([told])
    _private()
    key = _whole(KEY)
    job = json.loads(_whole(int.from_bytes(_whole(8), "big")))
    solutions.given(job["checks"])
    threading.Thread(target=_end_with_the_grader, daemon=True).start()
    numbers = itertools.count()
    with open(told, "w", buffering=1, encoding="utf-8") as file:

        def tell(**line):
            file.write(sealed(json.dumps([next(numbers), line]), key) + "\n")

        try:
            _run(job, runner, tell)
            tell(end=True)
        except Ended as error:
            tell(problem=ENDED.format(error))
        except Forbidden:
            tell(problem=FORGED)
        except BaseException as error:  # the next exercise may be unlike this one
            tell(problem=f"the judge gave up: {sentence(error)}")
        finally:
            runner.process.kill()
    os._exit(0)


def _whole(size):
    """The next bytes of stdin, unbuffered: what follows says that the grader lives."""
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("the grader is gone")
    return data


def _private():
    """Other processes of this user may not read this one's memory, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _end_with_the_grader():
    """Its end of the pipe closes when it ends, however it does."""
    os.read(0, 1)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class Runner:
    """The process of the submission, as the judge sees it."""

    def __init__(self, private):
        method = "fork" if sys.platform == "linux" else "spawn"
        context = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        ends = [*private, self.pipe.fileno()] if method == "fork" else []
        self.process = context.Process(target=runners.main, args=(theirs, ends))
        self.process.start()
        theirs.close()
        self.numbers = itertools.count()
        self.known = set(sys.modules)

    def behind(self):
        """Modules of torch that were loaded here since, and are not there."""
        since = [name for name in sys.modules if name not in self.known]
        self.known.update(since)
        return [n for n in since if n.partition(".")[0] in ("torch", "sympy")]

    def settle(self, **settings):
        """The runner knows its limits."""
        self.pipe.send_bytes(entrust(settings))

    def ask(self, question, *arguments, seconds):
        """The answer; raises what the runner raised, TooLong, Ended or Forbidden."""
        number = next(self.numbers)
        try:
            self.pipe.send_bytes(entrust((number, question, *arguments)))
            return self._answer(number, time.monotonic() + seconds)
        except (EOFError, ConnectionError):
            self.process.join(5)
            raise Ended(ending(self.process.exitcode)) from None
        except OSError as error:  # an answer that is longer than LARGEST
            raise Broken(str(error)) from None

    def _answer(self, number, deadline):
        while self.pipe.poll(max(deadline - time.monotonic(), 0)):
            answer = decode(self.pipe.recv_bytes(LARGEST))
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise Broken("no answer")
            if type(answer[0]) is not int:
                raise Broken("no number")
            if answer[0] == number:
                if isinstance(answer[1], BaseException):
                    late = type(answer[1]).__name__ == "TooLong"  # the runner's own
                    raise TooLong() if late else answer[1]
                return answer[1]
        raise TooLong


def _run(job, runner, tell):
    runner.settle(memory=job["memory"], secret=job["secret"])
    seconds = job["cell"]
    for number, step in enumerate(job["steps"]):
        tell(step=number)
        if step["kind"] == "run":
            problem = runner.ask("cell", step["source"], seconds, seconds=seconds * 9)
            if problem:
                tell(remark=f"code cell {step['cell']}: {problem}")
            continue
        score, report, problem, likely = _fairly_judged(step, job, runner)
        if problem:
            tell(remark=problem)
        tell(exercise=step["exercise"], score=score, report=report, likely=likely)


def _fairly_judged(step, job, runner):
    """(score, report, remark or "", mistake): nothing where the course was changed.

    Nothing either where the answer looked for a way around the check.
    """
    score, report, problem, likely = 0.0, "", "", ""
    if not runner.ask("changed", seconds=GRACE * 4):
        score, report, said, likely = _judge(step, job, runner)
        problem = f"{step['exercise']}: {said}" if said else ""
    if changed := runner.ask("changed", seconds=GRACE * 4):
        report = f"{changed} is not the course's own any more."
        return 0.0, report, report, ""
    if refused := runner.ask("refused", seconds=GRACE):
        return 0.0, f"{refused}\n\n{report}", f"{step['exercise']}: {refused}", ""
    return score, report, problem, likely


def _judge(step, job, runner):
    """(score, report, remark or "", mistake), also where the check did not end."""
    reports, deadline = [], time.monotonic() + job["cell"]

    def check(name, function, hint=False, seed=0):
        seed += job["seed"]
        reports.append(checker.check(name, function, hint=True, seed=seed))
        return reports[-1]

    space = {"d2lpar": types.SimpleNamespace(check=check), "__builtins__": builtins}
    space["display"] = lambda *values: None
    try:
        with _attempts_by(runner, deadline), within(job["cell"] + GRACE):
            exec(step["source"], space, Names(runner))
    except (Ended, Broken):
        raise
    except (Exception, TooLong, SystemExit) as error:
        return 0.0, sentence(error), sentence(error), ""
    if not reports:
        return 0.0, "no check", "no check", ""
    last = reports[-1]
    evades = last.sentence * (last.mistake in EVASIONS)
    return last.score, str(last), evades, last.sentence


class Names(dict):
    """The names of the submission, for the instructor's cell."""

    def __init__(self, runner):
        self.runner = runner

    def __missing__(self, name):
        if name in ("d2lpar", "display") or hasattr(builtins, name):
            raise KeyError(name)
        kind = self.runner.ask("kind", name, seconds=GRACE)
        if kind is None:
            raise KeyError(name)
        return Remote(name) if kind == "function" else type(str(kind), (), {})()


class Remote:
    """A function of the submission; it is called by the runner only."""

    def __init__(self, name):
        self.name = self.__name__ = name

    def __call__(self, *arguments):
        raise TypeError("the judge calls no function of a submission")


@contextlib.contextmanager
def _attempts_by(runner, deadline):
    """Inside, what an exercise tries is tried by the runner, and judged here."""
    usual = Exercise.attempt

    def attempt(exercise, function, case, **options):
        perform = functools.partial(_perform, runner, deadline, exercise.perform)
        return usual(exercise.but(perform=perform), function, case, **options)

    with patched((Exercise, "attempt", lambda _: attempt)):
        yield


def _perform(runner, deadline, perform, function, case, **options):
    """The Attempt that the runner made, at this process's own case."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TooLong
    told = replace(case, expected=None)
    question = "attempt", function.name, perform, told, options, left
    question += (runner.behind(),)
    made = runner.ask(*question, seconds=left + GRACE)
    if not isinstance(made, dict):
        raise Forbidden("no attempt")
    attempt = judging.Attempt(case)
    for name in ("run", "error", "values", "args", "recorded"):
        setattr(attempt, name, made.get(name))
    return attempt


if __name__ == "__main__":
    main()
