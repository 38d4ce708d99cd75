"""01.3 Whose roof is it?: machine(rows)."""

import numpy as np

from d2lpar.checks import signs
from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, wrong

ROWS = 48
# Rows that are bound by arithmetic, from 18 to 30 where it is 0, and the noise
MACHINES = ((0, 0), (3, 0), (45, 0), *[(many, 0.03) for many in (0, 12, 36, 0, 0)])

ex = Exercise(
    "01.3", agrees=lambda came, wanted, case: near(came, wanted, case.facts["within"])
)


@ex.cases
def cases(rng):
    """48 rows (FLOPs, bytes, seconds) of three machines, and of five with noise."""
    for i, (many, noise) in enumerate(MACHINES):
        peak, rate = 10 ** rng.uniform(10, 14.5), 10 ** rng.uniform(9.5, 12.5)
        launch = 10 ** rng.uniform(-5.7, -4.5)
        many = many or int(rng.integers(18, 31))
        by_flops = rng.permutation(ROWS) < many
        least = -1 if 3 < many < ROWS - 3 else 0  # each of a few has to count
        rows = [row(rng, peak, rate, launch, noise, each, least) for each in by_flops]
        yield Case(
            1,
            f"machine {i + 1}, " + ("3 % noise" if noise else "no noise"),
            [(rows,)],
            [(peak, rate, launch)],
            facts={"within": 0.1 if noise else 0.01, "many": many},
        )


def row(rng, peak, rate, launch, noise, by_flops, least):
    """Work from 10^least launches to a thousand, on either side of the ridge."""
    long = launch * 10 ** rng.uniform(least, 3)
    short = long * 10 ** -rng.uniform(0.05, 2)
    f = peak * (long if by_flops else short)
    m = rate * (short if by_flops else long)
    return f, m, (long + launch) * (1 + noise * rng.uniform(-1, 1))


few_by_flops = lambda case: case.facts["many"] == 3
few_by_bytes = lambda case: case.facts["many"] == ROWS - 3
ex.boundaries(
    few_by_flops=few_by_flops,
    few_by_bytes=few_by_bytes,
    noise=lambda case: case.facts["within"] == 0.1,
    no_noise=lambda case: case.facts["within"] == 0.01,
)

# Texts of the answer, for edits

CUTS, LINES = "range(1, len(rows))", "[f * above, m * ~above, np.ones(len(rows))]"
POSITIVE, WEIGHT = "solution[0] > 0 and solution[1] > 0", "lines / t[:, None]"
FIT, OFF = "np.ones(len(rows)), rcond", "scaled @ solution - 1"
RETURN = "return 1 / per_flop, 1 / per_byte, launch"
UNWEIGHTED = {WEIGHT: "lines", FIT: "t, rcond", OFF: "scaled @ solution - t"}

# Mistakes of its own

order = {RETURN: "return 1 / per_byte, 1 / per_flop, launch"}
ex.slip("turned", order).says("""
    The three numbers are right, but they come upside down or in another order.
    Hint: The order is peak, rate, launch. The first two are how many per second, and
    the third is in seconds.
""")
ex.slip("turned", {RETURN: "return launch, 1 / per_byte, 1 / per_flop"})
ex.slip("turned", {RETURN: "return per_flop, per_byte, launch"})
ex.slip("turned", {RETURN: "return per_flop, 1 / per_byte, launch"})
ex.slip("turned", {RETURN: "return 1 / per_flop, per_byte, launch"})
summed = {LINES: "[f, m, np.ones(len(rows))]", POSITIVE: "True"}
ex.slip("summed", summed).says("""
    It adds the time of the arithmetic and that of the bytes, but only the longer of the
    two counts.
    Hint: The roofline takes the maximum of the two times, so find out first which rows
    are bound by which limit.
""")
two = {LINES: "[f * above, m * ~above]", "per_byte, launch =": "per_byte ="}
ex.slip("no launch", {**two, RETURN: "return 1 / per_flop, 1 / per_byte, 0.0"}).says("""
    It leaves out the launch, which is in every row and is a third unknown.
    Hint: How long does a row take that has hardly any work?
""")
middle = {CUTS: "[len(rows) // 2]", POSITIVE: "True"}
ex.slip("middle", middle).says("""
    It cuts the sorted list in the middle, but one limit may hold for more rows than the
    other.
    Hint: How can you tell a good cut from a bad one, if all you have is the times? Fit
    at every cut, and compare how far off the times of the fit are.
""")
ex.slip("middle", middle | UNWEIGHTED)
ex.slip("unweighted", UNWEIGHTED).says("""
    It fits the seconds as they are, so the longest rows decide alone and their noise
    hides the launch.
    Hint: Should one second count alike in a long row and in a short one? Divide each
    equation by its time, so that all rows have the same weight.
""")
few = only(lambda case: few_by_flops(case) or few_by_bytes(case))
ex.mistake("few", both(wrong, few), {CUTS: "range(8, len(rows) - 7)"}).says("""
    It is wrong exactly where one of the two limits holds for 3 rows only.
    Hint: Where can the cut be, if 3 rows are on one side and 45 on the other?
""")
ex.wrong("few", {CUTS: "range(4, len(rows))"})
ex.wrong("few", {CUTS: "range(1, len(rows) - 3)"})
best = {RETURN: "return max(f / t), max(m / t), min(t)"}
off = both(wrong, lambda attempt: not signs.no_numbers(attempt))
ex.mistake("off", off, best).says("""
    A number is farther off than allowed, which is 1 % without noise and 10 % with it.
    Hint: Does a number come from one row alone? The time of each row contains a launch,
    so fit all rows together. They give 48 equations with three unknowns.
""")
ex.wrong("off", {RETURN: "return np.median(f / t), np.median(m / t), min(t)"})
ex.wrong("off", {RETURN: "return 1 / per_flop, 1 / per_byte, min(t)"})

# Answers to which the general sentences apply

ex.wrong("wrong", {RETURN: "return 1 / per_flop, 1 / per_byte"})
infinite = {LINES: "[f / above, m / ~above, np.ones(len(rows))]"}
ex.wrong("raises", infinite)
ex.wrong("raises", middle | {POSITIVE: "False"})
ex.right({RETURN: f"{RETURN} * 1.005"})
ex.right({CUTS: "range(3, len(rows) - 2)"})


@ex.right
def back_and_forth(rows):
    """Guess who is bound by what, fit, guess again."""
    f, m, t = map(np.array, zip(*rows, strict=True))
    peak, rate = max(f / t), max(m / t)
    for _ in range(50):
        above = f / peak > m / rate
        A = np.stack([f * above, m * ~above, np.ones_like(t)], 1) / t[:, None]
        u = np.linalg.lstsq(A, np.ones_like(t), rcond=None)[0]
        peak, rate = 1 / u[0], 1 / u[1]
    return [peak, rate, float(u[2])]
