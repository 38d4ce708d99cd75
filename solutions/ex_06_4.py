"""06.4 Which one, when: fastest(S, n, alpha, beta)."""

import math
from contextlib import suppress

import numpy as np

from d2lpar.allreduce import costs
from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, ranks
from d2lpar.checks.signs import always, both, either, violates, wrong
from d2lpar.report.units import show_bytes, show_seconds

COSTS = {
    "naive": costs.naive_cost,
    "tree": costs.tree_cost,
    "direct": costs.direct_cost,
    "ring": costs.ring_cost,
    "recursive doubling": costs.recursive_doubling_cost,
    "halving-doubling": costs.halving_doubling_cost,
}
CHUNKED = {"ring", "halving-doubling"}
# ranks: how many times alpha the tensor's bytes take
RATIOS = {1: [3.0], 2: [0.1], 3: [0.2, 50.0], 4: [0.1, 30.0], 5: [0.3], 6: [20.0]}
RATIOS |= {7: [0.2], 8: [0.5, 100.0], 12: [0.3, 4.0, 200.0], 64: [0.5, 1000.0]}
RATIOS |= {100: [1e4]}


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


ex = Exercise("06.4", agrees=fast_enough)


@ex.cases
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
            facts={"seconds": seconds, "best": best},
        )


def times(S, n, alpha, beta):
    """{name: seconds} of all six."""
    return {w: cost(S // 8, n, 8).seconds(alpha, beta) for w, cost in COSTS.items()}


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


def picks(cut, instead_of):
    """Does every wrong choice cut the tensor, and does the fastest one here?"""
    alike = both(wrong, lambda a: (named(a) in CHUNKED) == cut)
    here = lambda a: (a.case.facts["best"] in CHUNKED) == instead_of
    return both(always(alike), here)


ex.require(SECONDS)

# Texts of the answer, for edits

K, P, FOLD = "k = n.bit_length() - 1", "p, levels = 2**k", "if n > p"
MIN, RETURN = "min(seconds, key=seconds.get)", "return name, seconds[name]"
HALVING = "2 * (k * alpha + (p - 1) / p * beta * S) + fold"

no_pair = both(wrong, lambda a: named(a) is None)
ex.mistake("no pair", no_pair, {RETURN: "return name"}).says("""
    It does not return a pair of one of the six names and a number of seconds.
    Hint: Return a pair such as ("ring", 0.003). The six names are in the text of the
    exercise.
""")
ex.wrong("no pair", {RETURN: "return name + '_allreduce', seconds[name]"})
speeds = [lambda alpha, beta: (0, beta), lambda alpha, beta: (alpha, 0)]
speeds += [lambda alpha, beta: (alpha, 8 * beta)]  # a byte counts as 8
other_speed = either(*map(as_if, speeds))
ex.mistake("units", other_speed, {K: K + "; alpha = 0"}).says("""
    The seconds leave out alpha or beta, or count a byte eight times.
    Hint: A message of b bytes takes alpha + beta b, which is at least alpha however
    small it is. S is in bytes, and beta in seconds per byte.
""")
ex.wrong("units", {K: K + "; beta = 0"})
ex.wrong("units", {K: K + "; S *= 8"})
ex.mistake("seconds", violates(SECONDS), {"(p - 1) / p * beta": "beta"}).says("""
    The seconds are not those of the algorithm that it names.
    Hint: Count the rounds and find the longest message b of each. Then add up alpha +
    beta b. Beyond a power of two, ranks cost a doubling one round of S bytes before and
    one after.
""")
ex.wrong("seconds", {FOLD: "if False"})
ex.wrong("seconds", {K: "k = (n - 1).bit_length()", P: "p, levels = n"})
ex.wrong("seconds", {RETURN: "return name, max(seconds[name], alpha)"})
no_chunks = {MIN: "min(list(seconds)[:3] + ['recursive doubling'], key=seconds.get)"}
ex.mistake("large", picks(False, instead_of=True), no_chunks).says("""
    For a tensor this large, an algorithm that cuts it into chunks is faster.
    Hint: In a round of the ring a rank sends only S/n bytes, and not S.
""")
of_all_ranks = "2 * math.log2(n) * alpha + 2 * (n - 1) * beta * S"
ex.wrong("large", {"(n - 1) * chunk": "(n - 1) * whole", HALVING: of_all_ranks})
ex.mistake("small", picks(True, instead_of=False), {MIN: "'ring'"}).says("""
    For a tensor this small, an algorithm with fewer rounds is faster.
    Hint: Compute the seconds of all six, and then take the smallest.
""")
ex.wrong("small", {MIN: "'ring' if S > 10_000 else 'recursive doubling'"})
only_the_ring = {MIN: MIN + ".replace('halving-doubling', 'ring')"}
ex.mistake("chunks", picks(True, instead_of=True), only_the_ring).says("""
    It picks the wrong one of the two algorithms that cut the tensor into chunks.
    Hint: Halving-doubling sends as many bytes as the ring in fewer rounds, but ranks
    beyond a power of two cost it two rounds of S bytes more.
""")
last = {MIN: "min(reversed(seconds), key=seconds.get)"}
ex.right({**last, RETURN: "return [name, seconds[name] * 1.02]"})
ex.right({MIN: "min(list(seconds)[2:], key=seconds.get)"})  # of those that can be
