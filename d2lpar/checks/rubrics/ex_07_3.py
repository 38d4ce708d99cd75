"""07.3 How many ranks, which batch?"""

import math
import operator
from functools import partial
from itertools import product

from .. import signs
from ..judging import NO_NUMBER, Case, Exercise, Requirement, ranks

FORMULAS = ["one step", "free links", "no alpha", "whole tensor"]
FORMULAS += ["half a ring", "fraction of a row"]


def cases(rng):
    """Nets and links of many kinds; the curve of steps has a bend."""
    for i in range(10):
        bend, floor = log_uniform(rng, 16, 512), log_uniform(rng, 50, 500)
        batches = [2**k for k in range(2, 12 + i % 3)]
        steps = {B: math.ceil(floor * (1 + bend / B)) for B in batches}
        row, S = log_uniform(rng, 2e-6, 2e-3), int(log_uniform(rng, 1e4, 1e9))
        alpha, beta = log_uniform(rng, 2e-6, 2e-4), log_uniform(rng, 3e-12, 1e-9)
        most = (1, 2, 8, 16, 64, 6, 100, 32, 256, 12)[i]
        yield case(steps, row, S, most, alpha, beta)
    for steps, most in (
        ({4: 100, 8: 60}, 4),
        ({4: 19, 8: 10}, 6),
    ):  # take 4, not 3 or 6
        yield case(steps, 1e-3, 10_000, most, 1e-6, 1e-10)


def log_uniform(rng, low, high):
    """A number between the two, its logarithm uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def case(steps, row, S, most, alpha, beta):
    """The call with these arguments."""
    given = steps, row, S, most, alpha, beta
    text = f"up to {ranks(most)}, {row * 1e6:.3g} us a row, S = {S:,} bytes"
    return Case(1, text, [given], truth=partial(plan, *given))


def seconds(n, B, steps, row, S, most, alpha, beta, slip=""):
    """Seconds to the target on n ranks with B rows in a batch."""
    rows = B / n if slip == "fraction of a row" else math.ceil(B / n)
    chunk = S if slip == "whole tensor" else S / n
    messages = {"free links": 0, "half a ring": n - 1}.get(slip, 2 * (n - 1))
    each = (0 if slip == "no alpha" else alpha) + beta * chunk
    return (1 if slip == "one step" else steps[B]) * (rows * row + messages * each)


def plan(steps, row, S, most, alpha, beta, slip=""):
    """[(n, B, seconds) of the fastest choice]"""
    batches = [max(steps)] if slip == "largest batch" else steps
    numbers = [most] if slip == "all ranks" else range(1, most + 1)
    numbers = (slip == "never alone" and numbers[1:]) or numbers
    given = steps, row, S, most, alpha, beta
    choices = product(numbers, batches)
    time, n, B = min((seconds(n, B, *given), n, B) for n, B in choices)
    return [(n, B, time)]


def judged(came, case, slip=""):
    """(the seconds it says, those of its choice); None where it is no such triple."""
    try:
        n, B, said = came
        n, B, said = operator.index(n), operator.index(B), float(said)
    except NO_NUMBER:
        return None
    steps, _, _, most, _, _ = case.inputs[0]
    there = B in steps and 1 <= n <= most
    return (said, seconds(n, B, *case.inputs[0], slip)) if there else None


def agrees(came, wanted, case):
    """Its choice takes as long as the one that is wanted, but for 1 %."""
    found = judged(came, case)
    return bool(found) and abs(found[1] / wanted[2] - 1) <= 0.01


def seconds_off(attempt):
    """By how much the seconds differ from those of the choice that is named."""
    found = judged(attempt.values[0], attempt.case)
    return abs(found[0] / found[1] - 1) if found else math.inf


SECONDS = Requirement(
    "seconds are off by", seconds_off, lambda case: 0.01, False, "{:.1%}".format
)


def timed(formula, attempt):
    """The seconds are wrong, and all are those of this formula, here of no other."""
    fits = lambda x, a: math.isclose(*judged(a.values[0], a.case, x), rel_tol=1e-3)
    return (
        signs.violates(SECONDS)(attempt)
        and [x for x in FORMULAS if fits(x, attempt)] == [formula]
        and all(fits(formula, a) for a in attempt.attempts if a.error is None)
    )


exercise = Exercise(
    "07.3",
    cases,
    [SECONDS],
    {
        "no triple": lambda a: any(
            each.error is None and not judged(each.values[0], each.case)
            for each in a.attempts
        ),
        **{formula: partial(timed, formula) for formula in FORMULAS},
        **signs.slips("largest batch", "all ranks", "never alone"),
    },
    agrees=agrees,
)
