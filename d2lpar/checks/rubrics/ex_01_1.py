"""01.1 Mend the stopwatch."""

from functools import partial

from ...world.played import Device
from .. import signs
from ..judging import Case, Exercise, Requirement, near, numbers
from ..signs import breaks, wrong

SLOW = 25.0  # how many times as long the first call takes


def cases(rng):
    """A device that is busy at first, or not; the last has a launch that counts."""
    for i in range(7):
        ask, job = 10 ** rng.uniform(-6, -5), 10 ** rng.uniform(-4.5, -2)
        job = job if i < 6 else 8 * ask
        factors = disturbed(rng)
        busy = job * rng.uniform(5, 20) if i % 2 else 0.0
        yield Case(
            1,
            f"a job of {job * 1e6:.0f} us, {'busy' if busy else 'idle'} at first",
            [(Device(ask, job, busy, factors), "job")],
            facts={"job": job},
            truth=partial(seconds, ask, job),
        )


def disturbed(rng):
    """How many times as long each call takes; of any three later ones, one is 1."""
    factors = [SLOW]
    for _ in range(13):
        quiet = int(rng.integers(3))
        factors += [1.0 if k == quiet else rng.uniform(1.2, 4) for k in range(3)]
    for k in range(3, len(factors)):
        if min(factors[k - 2 : k]) > 1:
            factors[k] = 1.0
    return factors


def seconds(ask, job, slip=""):
    """The time of one undisturbed job."""
    return [job if slip == "no launch" else ask + job]


def times(low, high):
    """It is wrong, and came out between so many times the job."""
    return lambda a: wrong(a) and low < numbers(a.came[0]) / a.case.facts["job"] < high


LAUNCHES = Requirement(
    "launches", lambda a: a.args[0][0].launches, lambda case: 20, exactly=False
)

exercise = Exercise(
    "01.1",
    cases,
    [LAUNCHES],
    {
        "no number": signs.no_numbers,
        "asks": times(0, 0.5),
        "first": times(0.99 * SLOW, 2 * SLOW),
        **signs.slips("no launch"),
        "disturbed": times(1, 8),
        "too many": breaks(LAUNCHES),
    },
    agrees=lambda came, wanted, case: near(came, wanted, 0.01),
)
