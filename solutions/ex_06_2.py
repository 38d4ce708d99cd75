"""06.2 Where is the maximum?: where_max(value)."""

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, says, wrong
from d2lpar.checks.varying import mirror

ex = Exercise("06.2")
LEAST = [k - 2**63 for k in (0, 2, 3, 1)]


@ex.cases
def cases(rng, reference):
    """Negative values, the maximum on several ranks, values near the limits."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 16):
        tied = rng.integers(-9, -4, n)
        tied[rng.permutation(n)[: max(1, n - 2)]] = -3
        large = 2**62 + rng.integers(0, 99, n)
        for drawn in (rng.permutation(n) - n, tied, large, *[LEAST] * (n == 4)):
            values = [int(value) for value in drawn]
            inputs = [(value,) for value in values]
            yield Case.of(n, inputs, [reference(values)] * n)


given = lambda case: [value for (value,) in case.inputs]
tied = lambda case: given(case).count(max(given(case))) > 1
huge = lambda case: abs(max(given(case))) >= 2**62
levels = lambda case: (case.n - 1).bit_length()  # ceil(log2 n)
ex.boundaries("one rank", "two ranks", "no power of two", tied=tied, huge=huge)
ex.require(rows.from_messages(), rows.all_waited())
ex.at_most(
    rounds=levels,
    messages=lambda case: case.n * levels(case),
    bytes=lambda case: 16 * levels(case),
)

# Texts of the answer, for edits

START, STEPS = "torch.tensor([value, r])", "range((n - 1).bit_length())"
BETTER, RETURN = "(theirs, -other) > (mine, -rank)", "return largest, rank"
PEERS = "(r + 2**k) % n, incoming, (r - 2**k) % n"

# Mistakes of its own

ex.mistake("ties", both(wrong, only(tied)), {BETTER: "theirs > mine"}).says("""
    When several ranks have the maximum, it does not always return the lowest of them.
    Hint: Where two values are equal, compare the ranks too, in the same way on every
    rank.
""")


alone = {PEERS: "r ^ 2**k, incoming, r ^ 2**k", "empty_like(best)": "clone(best)"}
alone["exchange(best"] = "r ^ 2**k < n and exchange(best"
ex.slip("alone", alone).says("""
    A rank whose partner does not exist leaves a round out, so some hear of few ranks.
    Hint: Nobody needs to send to the rank from which it receives. Think of a circle.
""")


def overflows(attempt):
    """A value is refused, one comes that no rank has, or often nearly the largest."""
    came = {value for value, _ in attempt.came or []}
    often = sum(map(wrong, attempt.attempts)) > 4
    nearly = often and {*map(float, came)} == {float(max(given(attempt.case)))}
    return says("verflow")(attempt) or not came <= {*given(attempt.case)} or nearly


ex.mistake("digits", both(overflows, only(huge)), {START: f"{START}.int()"}).says("""
    A large value does not survive its way or a comparison: a number has too few bits.
    Hint: It needs a whole int64, and no float. So send the rank as a second number in
    the same message. `~value` reverses the order and always fits, `-value` does not.
""")
less = {BETTER: "(theirs, other) < (mine, rank)", RETURN: "return -largest, rank"}
ex.wrong("digits", {START: "torch.tensor([-value, r])", **less})
floats = {START: f"{START}.double()", RETURN: "return int(largest), int(rank)"}
ex.wrong("digits", floats)
more = ex.costs("rounds", "messages", "bytes")
many = only(lambda case: case.n & (case.n - 1), more)
fold = {STEPS: STEPS[:-1] + " + (n & (n - 1) > 0))"}
ex.mistake("fold", many, fold).says("""
    It takes more rounds where the number of ranks is no power of two.
    Hint: A sum must not count a term twice, but a maximum does not change if a value
    counts twice. So no rank has to give its value away before, and wait behind.
""")

# Answers to which the general sentences apply

ex.wrong("costly", {STEPS: "range(n - 1)", PEERS: "(r + 1) % n, incoming, (r - 1) % n"})
by_one = {"exchange(best": "for i in (0, 1): exchange(best[i]"}
by_one[PEERS] = "(r + 2**k) % n, incoming[i], (r - 2**k) % n"
ex.wrong("costly", by_one)
ex.wrong("returns None", {RETURN: "return None"})
ex.right({STEPS: f"reversed({STEPS})"})
ex.right({PEERS: "(r - 2**k) % n, incoming, (r + 2**k) % n"})

ex.variation(
    "b",
    varied="operation: of equal values that of the highest rank",
    differs="Of equal values it takes the lowest rank, but here the highest is wanted.",
    part=mirror,
    turned=lambda pair, n: (pair[0], n - 1 - pair[1]),
    reads={"lowest": "highest"},
)
ex.variation(
    "c",
    varied="operation: the minimum",
    differs="It finds the largest value, but this exercise asks for the smallest.",
    given=lambda n, value: (~value,),
    turned=lambda pair, n: (~pair[0], pair[1]),
    reads={"maximum": "minimum"},
)
