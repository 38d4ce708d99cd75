"""19.1 The odd bit out: odd_bit(x)."""

import math

import torch

from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, wrong

# ranks, numbers, odd rank, index, bit; None: nothing is flipped
FLIPS = [(3, 10, 1, 4, 3), (4, 1, 2, 0, 0), (4, 50, 0, 49, 31), (3, 7, None, 0, 0)]
FLIPS += [(5, 33, 4, 0, 12), (8, 100, 0, 63, 30), (8, 64, 7, 1, 31), (3, 9, 0, 8, 22)]
FLIPS += [(4, 2, None, 0, 0), (3, 999, 2, 998, 20), (7, 999, 6, 500, 31)]
# The same, and what is at some places before
STRANGE = [((4, 6, 2, 3, 2), {1: math.nan}), ((3, 5, None, 0, 0), {1: math.nan})]
STRANGE += [((5, 7, 3, 2, 4), {2: math.nan}), ((4, 8, 1, 5, 31), {5: 0.0})]
STRANGE += [((3, 9, 2, 4, 0), {0: 1e30, 4: 1.0}), ((6, 9, 0, 8, 7), {2: math.inf})]
STRANGE += [((4, 6, 3, 1, 30), {1: 1.0}), ((3, 4, 0, 2, 0), {0: 0.0, 2: 0.0})]


def agrees(came, wanted, case):
    """None, or two whole numbers."""
    if came is None or wanted is None:
        return came is wanted
    return near(came, wanted, 0.0)


ex = Exercise("19.1", reference="odd_reference", agrees=agrees)


@ex.cases
def cases(rng, reference):
    """Any rank may be the odd one, any bit of any number; NaN, 0.0, 1e30; or none."""
    drawn = [(int(rng.integers(3, 7)), int(rng.integers(2, 90))) for _ in range(3)]
    more = [(n, size, *map(int, rng.integers([n, size, 32]))) for n, size in drawn]
    usual = [(flip, {}) for flip in FLIPS + more]
    for (n, size, odd, index, bit), values in usual + STRANGE:
        x = torch.from_numpy(rng.normal(size=size)).float()
        for place, value in values.items():
            x[place] = value
        held = [x.clone() for _ in range(n)]
        text = f"{size} numbers, "
        text += "nothing flipped" if odd is None else f"bit {bit} of {index} on {odd}"
        text += "".join(f", [{place}] is {value}" for place, value in values.items())
        if odd is not None:
            word = held[odd].view(torch.int32)
            word[index] ^= -(2**31) if bit == 31 else 1 << bit
        facts = {"flip": (odd, index, bit), "values": values}
        yield Case(n, text, [(x,) for x in held], [reference(held)] * n, facts)


flip = lambda case: case.facts["flip"]
before = lambda case: case.facts["values"].get(flip(case)[1])  # it is flipped
size = lambda case: len(case.inputs[0][0])
same_bits = lambda case: flip(case)[0] is None


def strange(case):
    """Some rank has NaN, an infinity, 0.0 or a very large number."""
    return not all(0 < y < 1e20 for (x,) in case.inputs for y in x.abs().tolist())


ex.boundaries(
    "no power of two",
    three_ranks=lambda case: case.n == 3,
    nothing_flipped=same_bits,
    nothing_flipped_beside_nan=lambda case: same_bits(case) and strange(case),
    one_number=lambda case: size(case) == 1,
    most_numbers=lambda case: size(case) == 999,
    rank_0_is_odd=lambda case: flip(case)[0] == 0,
    last_rank_is_odd=lambda case: flip(case)[0] == case.n - 1,
    first_number=lambda case: not same_bits(case) and flip(case)[1] == 0,
    last_number=lambda case: flip(case)[1] == size(case) - 1,
    lowest_bit=lambda case: flip(case)[2] == 0,
    sign_of_zero=lambda case: before(case) == 0 and flip(case)[2] == 31,
    bit_of_nan=lambda case: before(case) != before(case),
    beside_1e30=lambda case: 1e30 in case.facts["values"].values(),
    becomes_infinite=lambda case: before(case) == 1.0 and flip(case)[2] == 30,
)
ex.at_most(bytes=lambda case: 16 * case.n)

# Texts of the answer, for edits

USUAL, NONE = "max(sums, key=sums.count)", "return None"
WORDS, ODD = "x.view(torch.int32).long()", "if plain != usual[0]:"
INDEX, GATHER = "(weighted - usual[1]) // (plain - usual[0])", "dist.all_gather(every"

# Mistakes of its own

ex.slip("trusts rank 0", {USUAL: "sums[0]"}).says("""
    It takes rank 0 for right, but rank 0 may be the odd one.
    Hint: What do most of the ranks have? Compare all of them, also with rank 0.
""")
alone = {ODD: "if plain != usual[0] and rank == dist.get_rank():"}
ex.slip("only the odd", alone).says("""
    Only the odd rank returns what was found.
    Hint: What does every rank know? All have all sums, so all can find out the same.
""")
ex.slip("other way", {f"rank, {INDEX}": f"{INDEX}, rank"}).says("""
    It returns the index first and the rank second.
    Hint: The specification wants (rank, index).
""")
names = both(wrong, only(same_bits), lambda attempt: None not in attempt.came)
ex.mistake("always one", names, {NONE: "return 0, 0"}).says("""
    It names a rank although all ranks hold the same bits.
    Hint: What are your sums if nothing is flipped?
""")
floats = {WORDS: "x.double()", INDEX: f"round({INDEX.replace('//', '/')})"}
ex.mistake("floats", only(strange), floats).says("""
    It fails only where a vector has NaN, an infinity, 0.0 or a very large number,
    perhaps because it adds or compares numbers, not their bits.
    Hint: What can you still see in a sum of floats? NaN makes it NaN, beside 1e30 it
    loses small numbers, and -0.0 equals 0.0. Add the bits as integers.
""")

# Answers to which the general sentences apply

whole = f"dist.all_gather([torch.empty_like(x) for _ in every], x); {GATHER}"
ex.wrong("costly", {GATHER: whole})
ex.wrong("wrong", {"torch.arange(len(x))": "torch.arange(1, len(x) + 1)"})
ex.wrong("raises", {ODD: "if plain != usual[0] or rank == len(sums) - 1:"})
ex.right({USUAL: "sorted(sums)[len(sums) // 2]"})
ex.right({f"rank, {INDEX}": f"torch.tensor([rank, {INDEX}])"})

ex.variation(
    "b",
    varied="from which end the index counts",
    differs="It counts the index from the first number, as in the public exercise, but "
    "here the last number has index 0.",
    given=lambda n, x: (x.flip(0),),
)
