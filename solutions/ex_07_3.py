"""07.3 How many ranks, which batch?: plan(steps, row_seconds, S, most, alpha, beta)."""

import math
import operator
from functools import cache, partial
from itertools import product

from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, ranks
from d2lpar.checks.signs import violates

LIMIT = 0.01
# Steps and the most ranks: (3, 8), (3, 5), (4, 4) and (3, 4) ranks and rows are best.
SMALL = [({8: 10}, 3), ({5: 9, 4: 19}, 4), ({4: 100, 8: 60}, 4), ({4: 19, 8: 10}, 6)]
SMALL.append(({3: 7}, 8))


def agrees(came, wanted, case):
    """Its choice takes as long as the one that is wanted, but for 1 %."""
    found = judged(came, case)
    return bool(found) and abs(found[1] / wanted[2] - 1) <= LIMIT


ex = Exercise("07.3", agrees=agrees)


@ex.cases
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
    for steps, most in SMALL:
        yield case(steps, 1e-3, 10_000, most, 1e-6, 1e-10)
    yield case({64: 10}, 1e-6, 10**6, 8, 1e-3, 1e-9)  # alone is best


def log_uniform(rng, low, high):
    """A number between the two, its logarithm uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def case(steps, row, S, most, alpha, beta):
    """The call with these arguments, and the fastest choice."""
    given = steps, row, S, most, alpha, beta
    batches = f", batch {', '.join(map(str, steps))}" * (len(steps) < 3)
    text = f"up to {ranks(most)}{batches}, {row * 1e6:.3g} us a row, S = {S:,} bytes"
    choices = product(range(1, most + 1), steps)
    time, n, B = min((seconds(n, B, given), n, B) for n, B in choices)
    return Case(1, text, [given], [(n, B, time)])


def seconds(n, B, given):
    """Seconds to the target on n ranks with B rows in a batch."""
    steps, row, S, _, alpha, beta = given
    step = math.ceil(B / n) * row + 2 * (n - 1) * (alpha + beta * S / n)
    return steps[B] * step


def judged(came, case):
    """(the seconds it says, those of its choice); None where it is no such triple."""
    try:
        n, B, said = came
        n, B, said = operator.index(n), operator.index(B), float(said)
    except NO_NUMBER:
        return None
    given = case.inputs[0]
    there = B in given[0] and 1 <= n <= given[3]
    return (said, seconds(n, B, given)) if there else None


def chosen(attempt):
    """What `judged` says of an attempt that ended."""
    return judged(attempt.values[0], attempt.case)


def seconds_off(attempt):
    """By how much the seconds differ from those of the choice that is named."""
    found = chosen(attempt)
    return abs(found[0] / found[1] - 1) if found else math.inf


def percent(part):
    """A part in percent, with more digits where it is nearly the limit."""
    digits = 9 if 0 < abs(part - LIMIT) < 1e-4 else 3
    return f"{100 * part:.{digits}g} %"


best = lambda condition: lambda case: condition(*case.expected[0][:2])
most = lambda case: case.inputs[0][3]
batches = lambda case: case.inputs[0][0]
ex.boundaries(
    one_rank=lambda case: most(case) == 1,
    two_ranks=lambda case: most(case) == 2,
    one_batch=lambda case: len(batches(case)) == 1,
    more_ranks_than_rows=lambda case: most(case) > max(batches(case)),
    best_alone=lambda case: case.expected[0][0] == 1 < most(case),
    best_is_all=lambda case: case.expected[0][0] == most(case) > 1,
    best_is_no_power_of_two=best(lambda n, B: n & (n - 1)),
    best_does_not_divide=best(lambda n, B: B % n),
)
OFF = "seconds are off by"
SECONDS = Requirement(OFF, seconds_off, lambda case: LIMIT, False, percent)
ex.require(SECONDS)

# Texts of the answer, for edits

RANKS, BATCHES = "range(1, most + 1)", "steps.items()"
STEP, ROWS, RING = "step = math", "math.ceil(B / n)", "2 * (n - 1) * "
MESSAGE, COUNT = "(alpha + beta * S / n)", "count * step"
RETURN = "return n, B, seconds"

# Mistakes of its own

FORMULAS = "one step", "ring", "rows"  # mistakes in the seconds


@cache
def formula(known):
    """A known answer that takes `most` ranks, not fewer."""
    return known.make({RANKS: "[most]"})


def follows(known, attempt):
    """Are these the seconds of this known answer, for the choice that is named?"""
    steps, row, S, _, *pace = attempt.case.inputs[0]
    n, B, said = attempt.values[0]
    told = formula(known)({int(B): steps[int(B)]}, row, S, int(n), *pace)[2]
    return math.isclose(float(said), told, rel_tol=1e-3)


def timed(name, attempt):
    """The seconds are wrong, and all are those of this mistake in them only."""
    if not violates(SECONDS)(attempt) or not chosen(attempt):
        return False
    ended = [a for a in attempt.attempts if a.error is None]
    forms = [known for known in ex.known if known.mistake in FORMULAS]
    fit = [form.mistake for form in forms if all(follows(form, a) for a in ended)]
    return {*fit} == {name}


no_triple = lambda a: any(x.error is None and not chosen(x) for x in a.attempts)
ex.mistake("no triple", no_triple, {RETURN: "return seconds"}).says("""
    It does not return a triple (n, B, seconds) with an available number of ranks and a
    batch from `steps`.
""")
ex.wrong("no triple", {RETURN: "return B, n, seconds"})
one = {RETURN: "return n, B, seconds / steps[B]"}
ex.mistake("one step", partial(timed, "one step"), one).says("""
    Its seconds are those of a single step, not of all steps.
    Hint: Multiply by `steps[B]`, the steps that this batch needs to reach the target.
""")
ex.wrong("one step", {COUNT: "step"})
half = {RING: "(n - 1) * "}
ex.mistake("ring", partial(timed, "ring"), half).says("""
    It counts another number of messages than the ring has, or gives one of them another
    time than a chunk takes.
    Hint: The gradients are cut into n chunks, which go around the ring twice, and each
    message costs alpha besides, however small it is.
""")
for count in ("0 * ", "2 * n * ", "n * "):
    ex.wrong("ring", {RING: count})
pace = "beta * S / n", "alpha", "alpha + beta * S", "alpha + beta * S / max(n - 1, 1)"
for each in pace:
    ex.wrong("ring", {MESSAGE: f"({each})"})
ex.mistake("rows", partial(timed, "rows"), {ROWS: "(B / n)"}).says("""
    It counts another number of rows than the rank with the most of them has.
    Hint: A row cannot be split, and all ranks wait for the one with the most rows.
""")
for number in ("(B // n)", "(B // n + 1)"):
    ex.wrong("rows", {ROWS: number})
ex.slip("largest batch", {BATCHES: "[max(steps.items())]"}).says("""
    It always takes the largest batch, whatever a step costs.
    Hint: Beyond the bend, doubling the batch saves hardly any steps.
""")
ex.slip("ranks", {RANKS: "[most]"}).says("""
    It leaves out numbers of ranks that would be faster here.
    Hint: A single rank needs no all-reduce, and each further one makes the ring longer.
    The number need not be a power of two, nor divide the batch.
""")
several, powers = "range(2, most + 1)", "[2**k for k in range(most.bit_length())]"
for numbers in (f"({several} or [1])", powers, "range(1, max(most, 2))"):
    ex.slip("ranks", {RANKS: numbers})
ex.slip("ranks", {STEP: f"if B % n:\n                continue\n            {STEP}"})

# Answers to which the general sentences apply

ex.wrong("costly", {RETURN: "return n, B, seconds * 1.01001"})
ex.right({RETURN: "return [n, B, seconds * 1.009]"})
ex.right({BATCHES: "reversed(steps.items())", ROWS: "-(-B // n)"})
