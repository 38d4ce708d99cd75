"""01.1 Mend the stopwatch."""

from functools import partial

import numpy as np

from ...shared.played import Device
from .. import signs
from ..judging import Case, Exercise, Requirement, near, numbers, on_ranks
from ..signs import breaks, wrong

SLOW = 25.0  # how many times as long the first call takes
FEWEST, MOST = 4, 20  # launches: the slow one, and three of which one is not disturbed
WITHIN = 0.01
LOOKED_AT = 400  # of so many readings of the clock at most


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
            [((ask, job, busy, factors), "job")],
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


def on_a_device(fn, case, **options):
    """Tried by `run`, with a device that is made there."""
    return on_ranks(partial(timed, fn), case, **options)


def timed(fn, makings, job):
    """(what `fn` returns, the record of the device that it was given)."""
    gpu = Device(*makings)
    record = gpu.record
    return fn(gpu, job), record()


def launches(attempt):
    return attempt.values[0][1][0]


def unseen(attempt):
    """A right result that lies between no two readings of the clock: 1, else 0."""
    _, readings = attempt.values[0][1]
    if not (attempt.right and readings):
        return int(attempt.right)
    after, at = np.array(readings[:LOOKED_AT]).T
    count, spans = after[None] - after[:, None], at[None] - at[:, None]
    shown = spans[count > 0] / count[count > 0]
    return int(not np.isclose(shown, numbers(attempt.came[0]), rtol=WITHIN).any())


def times(low, high):
    """It is wrong, and came out between so many times the job."""
    return lambda a: wrong(a) and low < numbers(a.came[0]) / a.case.facts["job"] < high


LAUNCHES = Requirement(
    "launches", launches, lambda case: MOST, exactly=False, least=lambda case: FEWEST
)
SHOWN = Requirement(
    "results that no two readings of the clock show", unseen, lambda case: 0, vital=True
)

exercise = Exercise(
    "01.1",
    cases,
    [LAUNCHES, SHOWN],
    {
        "no number": signs.no_numbers,
        "asks": times(0, 0.5),
        "first": times(0.99 * SLOW, 2 * SLOW),
        **signs.slips("no launch"),
        "disturbed": times(1, 8),
        "too many": lambda a: a.right and launches(a) > MOST,
        "too few": lambda a: a.right and launches(a) < FEWEST,
        "not measured": breaks(SHOWN),
    },
    outcome=lambda attempt, rank: attempt.values[rank][0],
    agrees=lambda came, wanted, case: near(came, wanted, WITHIN),
    perform=on_a_device,
)
