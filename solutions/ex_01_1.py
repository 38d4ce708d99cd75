"""01.1 Mend the stopwatch: stopwatch(gpu, job)."""

from functools import partial

import numpy as np

from d2lpar.checks.equality import near, numbers
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, on_ranks
from d2lpar.checks.signs import breaks, wrong
from d2lpar.shared.played import Device

SLOW = 25.0  # how many times as long the first call takes
FEWEST, MOST = 4, 20  # launches: the slow one, and three of which one is not disturbed
WITHIN = 0.01
LOOKED_AT = 400  # of so many readings of the clock at most


def on_a_device(fn, case, **options):
    """Tried by `run`, with a device that is made there."""
    return on_ranks(partial(timed, fn), case, **options)


def timed(fn, makings, job):
    """(what `fn` returns, the record of the device that it was given)."""
    gpu = Device(*makings)
    record = gpu.record
    return fn(gpu, job), record()


ex = Exercise(
    "01.1",
    outcome=lambda attempt, rank: attempt.values[rank][0],
    agrees=lambda came, wanted, case: near(came, wanted, WITHIN),
    perform=on_a_device,
)


@ex.cases
def cases(rng):
    """A device that is busy at first, or not; the last has a launch that counts."""
    for i in range(7):
        ask, job = 10 ** rng.uniform(-6, -5), 10 ** rng.uniform(-4.5, -2)
        job = job if i < 6 else 8 * ask
        busy = job * rng.uniform(5, 20) if i % 2 else 0.0
        yield Case(
            1,
            f"a job of {job * 1e6:.0f} us, {'busy' if busy else 'idle'} at first",
            [((ask, job, busy, disturbed(rng)), "job")],
            [ask + job],
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


made = lambda case: case.inputs[0][0]  # (ask, job, busy, factors)
ex.boundaries(
    idle=lambda case: made(case)[2] == 0,
    busy=lambda case: made(case)[2] > 0,
    launch_counts=lambda case: made(case)[0] > 0.1 * made(case)[1],
    two_disturbed=lambda case: min(made(case)[3][1:3]) > 1,
)


def unseen(attempt):
    """A right result that lies between no two readings of the clock: 1, else 0."""
    _, readings = attempt.values[0][1]
    if not (attempt.right and readings):
        return int(attempt.right)
    after, at = np.array(readings[:LOOKED_AT]).T
    count, spans = after[None] - after[:, None], at[None] - at[:, None]
    shown = spans[count > 0] / count[count > 0]
    return int(not np.isclose(shown, numbers(attempt.came[0]), rtol=WITHIN).any())


launches = lambda attempt: attempt.values[0][1][0]
most = {"exactly": False, "least": lambda case: FEWEST}
not_shown = "results that no two readings of the clock show"
SHOWN = Requirement(not_shown, unseen, lambda case: 0, vital=True)
ex.require(Requirement("launches", launches, lambda case: MOST, **most), SHOWN)

# Texts of the answer, for edits

TIMES, RETURN = "range(10)", "return min(times[1:])"
BEFORE, AFTER = "gpu.synchronize()  # nothing", "gpu.synchronize()  # the work"
START, LAUNCH = "start = gpu.clock()\n", "gpu.launch(job)\n"
NO_WAIT = {BEFORE: "pass  # nothing", AFTER: "pass  # the work"}

# Mistakes of its own


def times(low, high):
    """It is wrong, and came out between so many times the job."""
    return lambda a: wrong(a) and low < numbers(a.came[0]) / made(a.case)[1] < high


ex.mistake("asks", times(0, 0.5), {AFTER: "pass  # the work"}).says("""
    It measures how long the GPU takes to accept the job, not how long the job runs.
    Hint: Is the work done when `launch` returns? Read the clock again after
    `synchronize()`.
""")
ex.wrong("asks", NO_WAIT | {RETURN: "return sum(times) / len(times)"})
first = {RETURN: "return times[0]"}
ex.mistake("first", times(0.99 * SLOW, 2 * SLOW), first).says("""
    The slow first call counts, or older work that was still in the queue.
    Hint: What happens before the calls that count? Warm up with one call, and
    `synchronize()` before you read the clock.
""")
late = {START: "\n", LAUNCH: "gpu.launch(job)\n        start = gpu.clock()\n"}
ex.slip("no launch", late).says("""
    It leaves out the launch, which is part of the time you are asked for.
    Hint: Is the launch before or after the line in which you start the clock?
""")
mean = {RETURN: "return sum(times[1:]) / 9"}
ex.mistake("disturbed", times(1, 8), mean).says("""
    Calls that other programs disturbed still count in the result.
    Hint: A disturbance can only make a call longer. Which one of several times, each of
    a single call, is disturbed the least?
""")
at_once = "start = gpu.clock()\n    [gpu.launch(job) for _ in range(9)]"
at_once += "\n    gpu.synchronize()\n    return (gpu.clock() - start) / 9"
ex.wrong("disturbed", {TIMES: "range(1)", RETURN: at_once})
# What the device plays, read instead of measured; `d2lpar grade` refuses that.
PEEK = "known = gpu._do.__self__.gi_frame.f_locals\n"
PEEK = {RETURN: f"{PEEK}    return known['ask'] + known['job']"}
ex.mistake("not measured", breaks(SHOWN), {TIMES: "range(0)", **PEEK}).says("""
    The result lies between no two readings of the clock, so it was not measured.
    Hint: Read the clock before and after a launch. The result is the difference of the
    two readings.
""")
ex.wrong("not measured", NO_WAIT | PEEK)

# Answers to which the general sentences apply

ex.wrong("costly", {TIMES: "range(21)"})
ex.wrong("wrong", {RETURN: "print(min(times[1:]))"})
ex.wrong("wrong", {RETURN: "return 1e6 * min(times[1:])"})
ex.right({RETURN: "return min(times)"})  # the first is the slowest
ex.right({TIMES: "range(20)", RETURN: "return min(times[17:])"})
apart = {LAUNCH: "gpu.launch(job)\n        asked = gpu.clock()\n"}
apart["gpu.clock() - start)"] = "(gpu.clock() - asked) + (asked - start))"
ex.right(apart)
