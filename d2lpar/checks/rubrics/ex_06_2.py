"""06.2 Where is the maximum?"""

import operator
from functools import partial

import numpy as np

from .. import requirements as rows
from .. import signs
from ..judging import NO_NUMBER, Case, Exercise, ranks, same
from ..signs import both, breaks


def cases(rng):
    """Negative values, the maximum on several ranks, values near the limits."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 16):
        large = 2**62 + rng.integers(0, 99, n)
        tied = rng.integers(-9, -4, n)
        tied[rng.permutation(n)[: max(1, n - 2)]] = -3
        least = [[k - 2**63 for k in (0, 2, 3, 1)]] * (n == 4)
        for values in (rng.permutation(-np.arange(1, n + 1)), tied, large, *least):
            values = [int(value) for value in values]
            yield Case(
                n,
                f"{ranks(n)} with {in_words(values)}",
                [(value,) for value in values],
                facts={"tied": values.count(max(values)) > 1, "values": values},
                truth=partial(where, values),
            )


def where(values, slip=""):
    """Per rank, the largest value and the lowest rank that has it."""
    found = max(values), values.index(max(values))
    slips = {"starts at zero": (0, ...), "rounded": (int(float(found[0])), ...)}
    return [slips.get(slip, found)] * len(values)


def in_words(values):
    """The first of some whole numbers, in a line."""
    first = (f"2^62+{x - 2**62}" if x >= 2**62 else str(x) for x in values[:8])
    return ", ".join(first) + ", ..." * (len(values) > 8)


def numbers(came):
    """(value, rank) as Python's own integers; None where it is no such pair."""
    try:
        value, rank = came
        return operator.index(value), operator.index(rank)
    except NO_NUMBER:
        return None


def overflows(attempt):
    """A value is refused, or what comes is a value that no rank has."""
    values = {*attempt.case.facts["values"]}
    strange = {numbers(came)[0] for came in attempt.came or []} - values
    large = most(attempt.case) >= 2**62
    return large and ("verflow" in str(attempt.cause) or strange)


def most(case):
    """The largest value."""
    return max(case.facts["values"])


def levels(case):
    """ceil(log2 n)."""
    return (case.n - 1).bit_length()


def fewest(case):
    """Messages: one from each rank in each round."""
    return case.n * levels(case)


def folded(n):
    """Messages where ranks beyond the power of two give before, and get after."""
    k = n.bit_length() - 1
    return k * 2**k + 2 * (n - 2**k)


ZERO = signs.slips_somewhere("starts at zero")["starts at zero"]
LARGE = signs.only(lambda case: not -(2**62) < most(case) < 2**62)
ROUNDS = rows.rounds(levels, exactly=False)
MESSAGES = rows.messages(fewest, exactly=False)
BYTES = rows.bytes_sent(lambda case: 16 * levels(case), exactly=False)


def slow(messages):
    """Too many rounds, and so many messages in every call, whatever n is."""
    fits = lambda a: not a.right or sum(a.run.messages) == messages(a.case.n)
    return both(breaks(ROUNDS), lambda a: all(map(fits, a.attempts)))


exercise = Exercise(
    "06.2",
    cases,
    [rows.from_messages(), rows.all_waited(), ROUNDS, MESSAGES, BYTES],
    {
        "no pair": lambda a: None in map(numbers, a.came or []),
        "ties": both(signs.wrong, signs.only(lambda case: case.facts["tied"])),
        **signs.slips("rounded"),
        "starts at zero": both(ZERO, signs.only(lambda case: most(case) < 0)),
        "powers of two": signs.only(lambda case: case.n & (case.n - 1)),
        "negated": both(
            signs.says("verflow"), signs.only(lambda case: most(case) < -(2**62))
        ),
        "packed": both(overflows, LARGE),
        "two messages": both(
            breaks(MESSAGES),
            BYTES.holds,
            lambda a: sum(a.run.messages) == 2 * fewest(a.case),
        ),
        "ring": slow(lambda n: n * (n - 1)),
        "there and back": slow(lambda n: 2 * (n - 1)),
        "fold": slow(folded),
    },
    agrees=lambda came, wanted, case: same(numbers(came), wanted),
)
