"""What exercise 01.1 asks for: a stopwatch for a device that answers at once."""

import math

from .chain import place
from .judging import Case, Exercise, Mistake, Requirement
from .roof import roof
from .signs import both, right, wrong

# 01.1 Mend the stopwatch

MOST = 20  # launches
SLOW = 25.0  # how many times as long the first call takes


class Device:
    """A played GPU with a clock of its own: launches return before the work is done.

    `clock()` in seconds, `launch(job)`, `synchronize()`.
    """

    def __init__(self, ask, job, busy, factors):
        self._ask, self._job, self._factors = ask, job, factors
        self._now, self._free = 0.0, busy  # it still works on something older
        self.launches = 0

    def clock(self):
        """What time it is for the program."""
        return self._now

    def launch(self, job):
        """Put the job into the queue; returns when it is in there."""
        if job != "job":
            raise ValueError(f"There is one job, called 'job', not {job!r}.")
        self._now += self._ask
        factor = self._factors[self.launches % len(self._factors)]
        self.launches += 1
        self._free = max(self._now, self._free) + factor * self._job

    def synchronize(self):
        """Wait until all launched jobs are done."""
        self._now = max(self._now, self._free)


def watch_cases(rng):
    """A device; the truth is the time of one undisturbed job, its launch included."""
    for i in range(6):
        ask, job = 10 ** rng.uniform(-6, -5), 10 ** rng.uniform(-4.5, -2)
        factors = [SLOW]
        for _ in range(13):  # of any three calls in a row one is not disturbed
            quiet = int(rng.integers(3))
            factors += [1.0 if k == quiet else rng.uniform(1.2, 4) for k in range(3)]
        busy = job * rng.uniform(5, 20) if i % 2 else 0.0
        yield Case(
            1,
            f"a job of {job * 1e6:.0f} us, {'busy' if busy else 'idle'} at first",
            inputs=[(Device(ask, job, busy, factors), "job")],
            expected=[ask + job],
            facts={"ask": ask, "job": job},
        )


def _number(came):
    try:
        return float(came)
    except (TypeError, ValueError):
        return None


def _near(came, wanted, case):
    number = _number(came)
    return number is not None and math.isclose(number, wanted, rel_tol=0.01)


def _launches(attempt):
    return attempt.args[0][0].launches


def _came(attempt):
    return _number(attempt.came[0]) if wrong(attempt) else None


def _asked(attempt):
    """The time of one launch, or of a few."""
    came, facts = _came(attempt), attempt.case.facts
    return came is not None and came < 0.99 * (facts["ask"] + facts["job"])


def _first(attempt):
    """At least the share that the first call has in a mean over 20."""
    came, facts = _came(attempt), attempt.case.facts
    return came is not None and came > 0.99 * SLOW * facts["job"]


watch = Exercise(
    "01.1",
    "Mend the stopwatch",
    watch_cases,
    [Requirement("launches", _launches, lambda case: MOST, exactly=False)],
    [
        Mistake(
            "no number",
            lambda a: wrong(a) and _came(a) is None,
            "It does not return a number of seconds.",
        ),
        Mistake(
            "asks",
            _asked,
            "It measures how long the asking takes, not the work.",
            "`launch` returns at once. Read the clock again after `synchronize()`.",
        ),
        Mistake(
            "first",
            _first,
            "The first call counts, or the work of others. Both take far longer.",
            "One call to warm up, and `synchronize()` before the clock is read.",
        ),
        Mistake(
            "disturbed",
            wrong,
            "Calls that were disturbed count.",
            "Disturbance only ever adds. Time the calls one by one and take the least.",
        ),
        Mistake(
            "too many",
            both(right, lambda a: _launches(a) > MOST),
            "It is right, but it launches more than 20 jobs.",
        ),
    ],
    agrees=_near,
)


EXERCISES = [watch, place, roof]
