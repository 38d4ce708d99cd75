"""06.2 Where is the maximum?: where_max(value)."""

import operator

import numpy as np
import torch
import torch.distributed as dist

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import NO_NUMBER, Case, ranks, same
from d2lpar.checks.signs import both, breaks, only, says, wrong
from d2lpar.checks.varying import mirror
from d2lpar.messages import exchange


def pair(came):
    """(value, rank) as Python's own integers; None where it is no such pair."""
    try:
        value, rank = came
        return operator.index(value), operator.index(rank)
    except NO_NUMBER:
        return None


ex = Exercise(
    "06.2",
    "Where is the maximum?",
    agrees=lambda came, wanted, case: same(pair(came), wanted),
)


@ex.cases
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
                [(max(values), values.index(max(values)))] * n,
                facts={"values": values},
            )


def in_words(values):
    """The first of some whole numbers, in a line."""
    first = (f"2^62+{x - 2**62}" if x >= 2**62 else str(x) for x in values[:8])
    return ", ".join(first) + ", ..." * (len(values) > 8)


def most(case):
    """The largest value."""
    return max(case.facts["values"])


def levels(case):
    """ceil(log2 n)."""
    return (case.n - 1).bit_length()


def fewest(case):
    """Messages: one from each rank in each round."""
    return case.n * levels(case)


ROUNDS = rows.rounds(levels, exactly=False)
MESSAGES = rows.messages(fewest, exactly=False)
BYTES = rows.bytes_sent(lambda case: 16 * levels(case), exactly=False)
ex.require(rows.from_messages(), rows.all_waited(), ROUNDS, MESSAGES, BYTES)

# Texts of the answer, for edits

START, BEST = "torch.tensor([value, r])", "largest, rank = best.tolist()"
PEERS = "(r + 2**k) % n, incoming, (r - 2**k) % n"
BETTER, RETURN = "(theirs, -other) > (mine, -rank)", "return largest, rank"
STEPS = "range((n - 1).bit_length())"

# Mistakes

no_pair = lambda attempt: None in map(pair, attempt.came or [])
tied = lambda case: case.facts["values"].count(most(case)) > 1
value_only = lambda pair: (pair[0], ...)

ex.mistake("no pair", no_pair, {RETURN: "if r == 0: " + RETURN}).says("""
    Some rank does not return a pair of two whole numbers.
    Hint: Every rank returns (value, rank), not only rank 0, and both are integers.
""")
ex.mistake("ties", both(wrong, only(tied)), {BETTER: "theirs > mine"}).says("""
    When several ranks have the maximum, it does not always return the lowest of them.
    Hint: Where two values are equal, compare the ranks too, in the same way on every
    rank.
""")
ex.wrong("ties", {BETTER: "(theirs, other) > (mine, rank)"})
floats = {START: "torch.tensor([value, r]).double()", RETURN: "return int(largest), r"}
ex.slip("rounded", floats, about=value_only).says("""
    Large values come back slightly wrong, because a float cannot hold all their digits.
    Hint: A float64 has 53 binary digits and a float32 has 24, but an int64 has 63.
""")
ex.slip(
    "starts at zero",
    {START: "torch.tensor([max(value, 0), r])"},
    about=value_only,
    somewhere=True,
    also=only(lambda case: most(case) < 0),
).says("""
    It returns a maximum of 0, a value that no rank has.
    Hint: Start from your own value, not from zero.
""")
powers = only(lambda case: case.n & (case.n - 1))
ex.mistake("powers of two", powers, {PEERS: "r ^ 2**k, incoming, r ^ 2**k"}).says("""
    It works only when the number of ranks is a power of two.
    Hint: Send to one rank and receive from a different one. Modulo n, both exist for
    any number of ranks.
""")
partner = "r ^ 2**k, incoming, r ^ 2**k) if r ^ 2**k < n else incoming.copy_(best"
ex.wrong("powers of two", {PEERS: partner})
too_small = both(says("verflow"), only(lambda case: most(case) < -(2**62)))
smallest = {
    START: "torch.tensor([-value, r])",
    BETTER: "(theirs, other) < (mine, rank)",
    RETURN: "return -largest, rank",
}
ex.mistake("negated", too_small, smallest).says("""
    It negates the values, and -(-2**63) does not fit into an int64.
    Hint: `~value` reverses the order as well, and it always fits.
""")


def overflows(attempt):
    """A value is refused, or what comes is a value that no rank has."""
    values = {*attempt.case.facts["values"]}
    strange = {pair(came)[0] for came in attempt.came or []} - values
    large = most(attempt.case) >= 2**62
    return large and ("verflow" in str(attempt.cause) or strange)


packed = both(overflows, only(lambda case: not -(2**62) < most(case) < 2**62))
ex.mistake("packed", packed, {START: "torch.tensor([value, r]).int()"}).says("""
    Large values overflow, because the number that travels has too few bits for them.
    Hint: Such a value needs a whole int64. Send the rank as a second number in the same
    message.
""")
twice = lambda a: sum(a.run.messages) == 2 * fewest(a.case)
by_one = {
    "exchange(best": "for i in (0, 1): exchange(best[i]",
    PEERS: "(r + 2**k) % n, incoming[i], (r - 2**k) % n",
}
ex.mistake("two messages", both(breaks(MESSAGES), BYTES.holds, twice), by_one).says("""
    The value and the rank travel in two separate messages.
    Hint: Put both numbers into one tensor, and send it as one message.
""")


def slow(messages):
    """Too many rounds, and so many messages in every call, whatever n is."""
    fits = lambda a: not a.right or sum(a.run.messages) == messages(a.case.n)
    return both(breaks(ROUNDS), lambda a: all(map(fits, a.attempts)))


def folded(n):
    """Messages where ranks beyond the power of two give before, and get after."""
    k = n.bit_length() - 1
    return k * 2**k + 2 * (n - 2**k)


round_it = {STEPS: "range(n - 1)", PEERS: "(r + 1) % n, incoming, (r - 1) % n"}
ex.mistake("ring", slow(lambda n: n * (n - 1)), round_it).says("""
    In each round a rank learns the value of only one more rank, so it takes n-1 rounds.
    Hint: After one round a rank knows the larger of two values. Let it pass this on to
    a rank twice as far away.
""")


def better(a, b):
    """The larger value, of equal ones the lower rank."""
    return max(a, b, key=lambda pair: (pair[0].item(), -pair[1].item()))


@ex.mistake("there and back", slow(lambda n: 2 * (n - 1)))
def up_a_tree_and_down(value):
    """It gathers everything on one rank and sends the result back, which takes twice as
    long.
    Hint: Every rank can learn something new in each round. In a tree only half of them
    or fewer do.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    best, levels = torch.tensor([value, r]), range((n - 1).bit_length())
    for d in [2**k for k in levels]:
        if r % (2 * d) == d:
            dist.send(best, r - d)
        elif r % (2 * d) == 0 and r + d < n:
            incoming = torch.empty_like(best)
            dist.recv(incoming, r + d)
            best = better(best, incoming)
    for d in [2**k for k in reversed(levels)]:
        if r % (2 * d) == d:
            dist.recv(best, r - d)
        elif r % (2 * d) == 0 and r + d < n:
            dist.send(best, r + d)
    return tuple(best.tolist())


@ex.mistake("fold", slow(folded))
def recursive_doubling_with_a_fold(value):
    """The ranks beyond the power of two cost an extra round before and another after.
    Hint: A sum must not count a term twice, but a maximum does not change if a value
    counts twice.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    p, best = 2 ** (n.bit_length() - 1), torch.tensor([value, r])
    if r >= p:
        dist.send(best, r - p)
        dist.recv(best, r - p)
        return tuple(best.tolist())
    incoming, d = torch.empty_like(best), 1
    if r + p < n:
        dist.recv(incoming, r + p)
        best = better(best, incoming)
    while d < p:
        incoming = torch.empty_like(best)
        exchange(best, r ^ d, incoming, r ^ d)
        best = better(best, incoming)
        d *= 2
    if r + p < n:
        dist.send(best, r + p)
    return tuple(best.tolist())


@ex.wrong("native collective")
def all_gather_and_look(value):
    found = [torch.zeros(1).long() for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.tensor([value]))
    values = [x.item() for x in found]
    return max(values), values.index(max(values))


ex.wrong("wrong", {START: f"torch.tensor(max([value, r], [{-(2**62)}, 0]))"})
ex.wrong("pattern", {RETURN: "return largest, (rank + 1) % n"})
ex.wrong("raises", {PEERS: "r + 2**k, incoming, r - 2**k"})
farthest_first = {
    STEPS: "reversed(range((n - 1).bit_length()))",
    PEERS: "(r - 2**k) % n, incoming, (r + 2**k) % n",
    BEST: "largest, rank = best",
}
ex.right(farthest_first)

# Variations


def called(turn):
    """A case in words, with its values as they are in the variation."""
    return lambda case: f"{ranks(case.n)} with {in_words(turn(case.facts['values']))}"


def rank_mirrored(pair, n):
    value, rank = pair
    return value, n - 1 - rank


def negated(pair, n):
    value, rank = pair
    return ~value, rank


TIES = "When several ranks have the {}, it does not always return the {} of them."
ex.variation(
    "b",
    varied="operation: of equal values that of the highest rank",
    differs="Of equal values it takes the lowest rank, but this exercise asks for the "
    "highest.",
    part=mirror,
    back=rank_mirrored,
    shows=rank_mirrored,
    call=called(lambda values: values[::-1]),
    says={"ties": TIES.format("maximum", "highest")},
)
ex.variation(
    "c",
    varied="operation: the minimum",
    differs="It finds the largest value, but this exercise asks for the smallest.",
    given=lambda n, value: (~value,),
    back=negated,
    shows=negated,
    call=called(lambda values: [~value for value in values]),
    says={"ties": TIES.format("minimum", "lowest")},
)
