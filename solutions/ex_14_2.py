"""14.2 Which split?: choose(n, N, D, outputs)."""

import math
from contextlib import suppress

from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case

# ranks, rows, inputs, outputs: ordinary layers, ties, and what does not divide
LAYERS = ((4, 32, 1024, 64), (4, 32, 64, 1024), (8, 16, 4096, 4096), (2, 6, 12, 8))
LAYERS += ((8, 4096, 512, 256), (4, 8, 30, 512), (4, 64, 512, 30), (3, 27, 81, 54))
LAYERS += ((4, 16, 30, 30), (1, 64, 10, 10), (2, 32, 64, 64), (4, 8, 16, 16))
LAYERS += ((2, 8, 24, 12), (8, 64, 9216, 4096), (5, 100, 1000, 10), (2, 5, 4, 10))
LAYERS += ((4, 40, 64, 100), (4, 40, 100, 64), (8, 40, 72, 640), (8, 40, 640, 72))
LAYERS += ((3, 2, 900, 600), (6, 35, 42, 210), (64, 2**17, 2**16, 2**14))


def agrees(came, wanted, case):
    """The same split, and the elements to six digits."""
    with suppress(*NO_NUMBER):
        split, count = came
        near = math.isclose(float(count), wanted[1], rel_tol=1e-6, abs_tol=1e-6)
        return split == wanted[0] and near
    return False


ex = Exercise("14.2", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Layers of which each split is the cheapest, and some drawn ones without ties."""
    drawn = rng.integers(1, 20, size=(40, 4)).tolist()
    layers = [(n % 8 + 1, 8 * N, 8 * D, 8 * out) for n, N, D, out in drawn]
    clear = [layer for layer in layers if layer[0] == 1 or not tied(*layer)]
    for layer in [*LAYERS, *clear[:12]]:
        text = "{} ranks, {} rows, {} inputs, {} outputs".format(*layer)
        split, sent = min(every(*layer).items(), key=lambda way: way[1])
        yield Case(1, text, [layer], [(split, sent / layer[0] ** 2)])


def every(n, N, D, outputs):
    """{split: n^2 times the elements that a rank sends}, whole numbers, in order."""
    a_gather, an_all_to_all = n * (n - 1), n - 1
    moves = {"data": [(2 * a_gather, D * outputs)]}
    if outputs % n == 0:  # x and dx, y and dy
        moves["out"] = [(a_gather, N * D)] * 2 + [(an_all_to_all, N * outputs)] * 2
    if D % n == 0:
        moves["in"] = [(an_all_to_all, N * D)] * 2 + [(a_gather, N * outputs)] * 2
    return {split: sum(k * E for k, E in each) for split, each in moves.items()}


def tied(*layer):
    """Two splits are the cheapest."""
    sent = sorted(every(*layer).values())
    return sent[:1] == sent[1:2]


given = lambda question: lambda case: question(*case.inputs[0])
ex.boundaries(
    one_rank=given(lambda n, *layer: n == 1),
    two_ranks=given(lambda n, *layer: n == 2),
    no_power_of_two=given(lambda n, *layer: n & (n - 1)),
    fewer_rows_than_ranks=given(lambda n, N, D, out: n > N),
    odd_rows=given(lambda n, N, D, out: N % n),
    inputs_do_not_divide=given(lambda n, N, D, out: D % n and out % n == 0),
    outputs_do_not_divide=given(lambda n, N, D, out: out % n and D % n == 0),
    neither_divides=given(lambda n, N, D, out: D % n and out % n),
    tied=given(lambda n, *layer: n > 1 and tied(n, *layer)),
    all_three_tied=given(lambda *x: x[0] > 1 and len({*every(*x).values()}) == 1),
)

# Texts of the answer, for edits

SHARE, PART, WEIGHTS = "Fraction(n - 1, n)", "share / n", "2 * share * D * outputs"
X, Y = "2 * share * N * D +", "2 * swap * N * outputs\n    if D"  # those of "out"
IN_X, IN_Y = "2 * swap * N * D +", "2 * share * N * outputs"
OUT_FITS, IN_FITS, BEST = "outputs % n == 0", "D % n == 0", "min(ways,"

# Mistakes of its own

there = {X: X[4:], Y: Y[4:], IN_X: IN_X[4:], IN_Y: IN_Y[4:]}
ex.slip("left out", there).says("""
    It leaves out changes of layout, perhaps those on the way back.
    Hint: Both neighbours of the layer want rows of the batch. Which layout have y and
    dx when they are computed, and what brings each of them back? Each change of a
    tensor's layout has its counterpart in the gradient of that tensor.
""")
ex.slip("left out", {X: X[4:], IN_X: IN_X[4:]})
ex.slip("left out", {Y: "0\n    if D"})
ex.slip("too much", {PART: "share"}).says("""
    It sends more than is needed: it gathers where an all-to-all is enough, or takes an
    all-reduce where a reduce-scatter is.
    Hint: Which part of a tensor does each other rank need? From rows of the batch to
    channels it is 1/n, and the next layer wants only its own rows of a sum.
""")
ex.slip("too much", {X: "3" + X[1:], IN_Y: "3" + IN_Y[1:]})
ex.slip("once", {WEIGHTS: WEIGHTS[4:]}).says("""
    It counts an all-reduce as if it sent as much as a gather.
    Hint: An all-reduce is a reduce-scatter and a gather.
""")
ex.slip("widths", {OUT_FITS: "True", IN_FITS: "True"}).says("""
    It chooses splits that the ranks cannot share.
    Hint: Which width does `out` split, and which does `in`? n must divide this one, and
    the other may be any number.
""")
ex.slip("widths", {IN_FITS: OUT_FITS, f"if {OUT_FITS}:  # g": f"if {IN_FITS}:  # g"})
fewer = "N % n and len(ways) > 1 and ways.pop('data')\n    split = "
ex.slip("whole rows", {"split = ": fewer}).says("""
    It refuses data parallelism where n does not divide the rows.
    Hint: Some ranks may have a row more than others.
""")
ex.slip("later", {BEST: "min(reversed(ways),"}).says("""
    Of equally cheap splits it does not take the first, perhaps because floats round.
    Hint: The order is data, out, in, and not that of the alphabet. `min` takes the
    first of equal numbers; a `Fraction` is exact.
""")
ex.slip("later", {BEST: "min(sorted(ways),"})
ex.slip("all ranks", {SHARE: "Fraction(n - 1)"}).says("""
    It counts what all ranks send together.
    Hint: One rank is wanted: how much of a tensor does it send in a gather?
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {"return split, ": "return split, 4 * "})
ex.wrong("wrong", {"return split, float(ways[split])": "return split"})
ex.right({"return split, float(ways[split])": "return [split, ways[split]]"})
ex.right({SHARE: "1 - Fraction(1, n)", BEST: "min(list(ways),"})
