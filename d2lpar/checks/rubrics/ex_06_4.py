"""06.4 Which one, when."""

import math
from contextlib import suppress

import numpy as np

from ...allreduce import costs
from ...report.units import show_bytes, show_seconds
from .. import signs
from ..judging import NO_NUMBER, Case, Exercise, Requirement, ranks
from ..signs import both, violates, wrong

COSTS = {
    "naive": costs.naive_cost,
    "tree": costs.tree_cost,
    "direct": costs.direct_cost,
    "ring": costs.ring_cost,
    "recursive doubling": costs.recursive_doubling_cost,
    "halving-doubling": costs.halving_doubling_cost,
}
CHUNKED = {"ring", "halving-doubling"}
RATIOS = {  # ranks: how many times alpha the tensor's bytes take
    1: [3.0],
    2: [0.1],
    3: [0.2, 50.0],
    4: [0.1, 30.0],
    5: [0.3],
    6: [20.0],
    7: [0.2],
    8: [0.5, 100.0],
    12: [0.3, 4.0, 200.0],
    64: [0.5, 1000.0],
    100: [1e4],
}


def cases(rng):
    """Small and large tensors on few and many ranks, powers of two or not."""
    pairs = [(n, ratio) for n, ratios in RATIOS.items() for ratio in ratios]
    for n, ratio in [*pairs, (8, 20.0)]:  # here halving-doubling beats the ring
        low, high = np.log([2e-6, 1e-11]), np.log([1e-3, 1e-9])
        alpha, beta = np.exp(rng.uniform(low, high)).tolist()
        S = 8 * max(100 * n, round(ratio * alpha / beta / 8))
        seconds = times(S, n, alpha, beta)
        best = min(seconds, key=seconds.get)
        link = f"alpha {show_seconds(alpha)}, {1e-9 / beta:.3g} GB/s"
        yield Case(
            1,
            f"S = {show_bytes(S)}, {ranks(n)}, {link}",
            [(S, n, alpha, beta)],
            expected=[(best, seconds[best])],
            facts={"seconds": seconds, "best": best, "power": n & (n - 1) == 0},
        )


def times(S, n, alpha, beta):
    """{name: seconds} of all six."""
    return {w: cost(S // 8, n, 8).seconds(alpha, beta) for w, cost in COSTS.items()}


def pair(came):
    """(name, seconds); (None, infinity) where it is no such pair."""
    with suppress(*NO_NUMBER):
        name, seconds = came
        if name in COSTS:
            return name, float(seconds)
    return None, math.inf


def named(attempt):
    """The name that came."""
    return pair(attempt.came[0])[0]


def fast_enough(came, wanted, case):
    """At most 5 % above the fastest."""
    times = case.facts["seconds"]
    return times.get(pair(came)[0], math.inf) <= 1.05 * times[case.facts["best"]]


def off(attempt):
    """By how much the seconds differ from those of the all-reduce that is named."""
    name, seconds = pair(attempt.came[0])
    true = attempt.case.facts["seconds"].get(name, 1)
    return abs(seconds - true) / (true or seconds or 1)


SECONDS = Requirement(
    "seconds are off by", off, lambda case: 0.05, exactly=False, show="{:.1%}".format
)


def as_if(change):
    """All seconds are those of what it names at change(alpha, beta); some are wrong."""

    def fits(a):
        S, n, *speed = a.case.inputs[0]
        name, seconds = pair(a.came[0])
        changed = times(S, n, *change(*speed)).get(name, 0)
        return math.isclose(seconds, changed, rel_tol=0.03)

    ended = lambda a: [other for other in a.attempts if other.came]
    return both(violates(SECONDS), lambda a: all(map(fits, ended(a))))


def no_fold(attempt):
    """A doubling that is too fast, by two rounds at most; n is no power of two."""
    S, _, alpha, beta = attempt.case.inputs[0]
    name, seconds = pair(attempt.came[0])
    saved = attempt.case.facts["seconds"][name] - seconds
    few = 0 < saved < 2.01 * (alpha + beta * S)
    return "doubling" in name and few and not attempt.case.facts["power"]


def picks(cut, instead_of):
    """Does every wrong choice cut the tensor, and does the fastest one here?"""
    alike = both(wrong, lambda a: (named(a) in CHUNKED) == cut)
    here = lambda a: (a.case.facts["best"] in CHUNKED) == instead_of
    return both(signs.always(alike), here)


exercise = Exercise(
    "06.4",
    cases,
    [SECONDS],
    {
        "no pair": both(wrong, lambda a: named(a) is None),
        "no alpha": as_if(lambda alpha, beta: (0, beta)),
        "no beta": as_if(lambda alpha, beta: (alpha, 0)),
        "bits": as_if(lambda alpha, beta: (alpha, 8 * beta)),
        "fold": signs.always(no_fold, violates(SECONDS)),
        "seconds": violates(SECONDS),
        "large": picks(False, instead_of=True),
        "small": picks(True, instead_of=False),
        "chunks": picks(True, instead_of=True),
    },
    agrees=fast_enough,
)
