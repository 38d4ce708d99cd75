"""What exercise 01.1 asks for: a stopwatch for a device that answers at once."""

import math

from ...world.played import Device
from ..judging import Case, Exercise, Mistake, Requirement
from ..signs import both, right, wrong
from .chain import place
from .roof import roof

# 01.1 Mend the stopwatch

MOST = 20  # launches
SLOW = 25.0  # how many times as long the first call takes


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
