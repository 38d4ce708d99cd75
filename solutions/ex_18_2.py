"""18.2 Which sum was it?: which_sum(before, after, row)."""

import torch

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import only

KINDS = "copies", "row", "all", "mean", "nothing"
GRIDS = (4, 2), (6, 3), (6, 2), (8, 4), (3, 1), (4, 4), (1, 1), (2, 1), (2, 2)

ex = Exercise("18.2", agrees=lambda came, wanted, case: came == wanted, processes=())


@ex.cases
def cases(rng):
    """All kinds on all grids; experts without tokens, small gradients, close ones."""
    for n, row in GRIDS:
        for number, kind in enumerate(KINDS):
            before = [*torch.from_numpy(rng.uniform(1, 9, size=(n, 4)))]
            if n > 4 and number > 0:  # no rank alone shows every kind
                for idle in before[: n - 2] if number % 2 else before[2:]:
                    idle.zero_()
            yield draw(rng, before, row, kind)
    for kind in KINDS:
        drawn = torch.from_numpy(rng.uniform(1, 9, size=(4, 4)))
        yield draw(rng, [*(1e-9 * drawn)], 2, kind, "of 1e-9")
        yield draw(rng, [*(drawn[:1] + 1e-7 * drawn)], 2, kind, "nearly alike")


def draw(rng, before, row, kind, values=""):
    """One case."""
    n, after = len(before), [changed(before, r, row, kind) for r in range(len(before))]
    if row < n or kind not in ("copies", "nothing"):  # else it is unchanged
        after = [g * (1 + 1e-13 * rng.uniform(-1, 1)) for g in after]
    fits = [each for each in KINDS if explains(each, before, after, row)]
    text = f"{n} ranks, {row} in a copy" + f", values {values}" * bool(values)
    given, facts = (before, after, row), {"fits": fits, "values": values}
    return Case(1, text, [given], fits[:1], facts)


def changed(before, r, row, kind):
    """What rank r has after this sum."""
    ranks = range(len(before))
    over = {"row": [s for s in ranks if s // row == r // row]}
    over |= {"all": ranks, "nothing": [r]}
    members = over.get(kind, [s for s in ranks if s % row == r % row])
    total = sum(before[s] for s in reversed(members))
    return total / len(members) if kind == "mean" else total


def explains(kind, before, after, row):
    """Does every rank have this sum, up to rounding?"""
    made = [changed(before, r, row, kind) for r in range(len(before))]
    pairs = zip(made, after, strict=True)
    return all(bool(((a - b).abs() <= 1e-11 * b).all()) for a, b in pairs)


row = lambda case: case.inputs[0][2]
count = lambda case: len(case.inputs[0][0])
values = lambda case: case.facts["values"]
ex.boundaries(
    one_rank=lambda case: count(case) == 1,
    two_ranks=lambda case: count(case) == 2,
    one_copy=lambda case: row(case) == count(case) > 1,
    copies_of_one_rank=lambda case: row(case) == 1 < count(case),
    no_power_of_two=lambda case: count(case) == 6,
    more_copies_than_ranks_in_one=lambda case: 1 < row(case) ** 2 < count(case),
    several_fit=lambda case: len(case.facts["fits"]) > 1,
    rank_0_idle=lambda case: not case.inputs[0][0][0].any(),
    last_rank_idle=lambda case: not case.inputs[0][0][-1].any(),
    small=lambda case: values(case) == "of 1e-9",
    alike=lambda case: values(case) == "nearly alike",
)

# Texts of the answer, for edits

SUMS, BOTH = "torch.allclose(sums.expand_as(found), found", ", rtol=1e-11, atol=0)"
COLUMN, ROW = '"copies": column', '"row": grid.sum(1, keepdim=True)'
LOOP, MEAN = "in made.items()", '"mean": column / copies,'
ELSE = {"return name": 'return name\n    return "nothing"'}
LOOSE = {BOTH: ")"}  # the tolerances that `allclose` has by default


def slips(name, *forms, more=({}, LOOSE)):
    """Add a slip: each of its forms alone, and with each of these further edits."""
    return [ex.slip(name, edits | others) for edits in forms for others in more][-1]


# Mistakes of its own

parts = "[:1, :1]", "[:1]", "[-1:, -1:]"
seen = [{SUMS: SUMS.replace("found)", f"found){p}") + p} for p in parts]
slips("some ranks", *seen).says("""
    It looks at some ranks only, where several sums may give the same numbers.
    Hint: What does an expert without a token show? Its gradient is 0, and 0 explains
    nothing. All ranks have to agree.
""")
turned = {COLUMN: f'"copies"{ROW[5:]}', ROW: '"row": column'}
named = {COLUMN: '"row": column', ROW: f'"copies"{ROW[5:]}'}
by_row = {MEAN: '"mean": grid.mean(1, keepdim=True),'}
slips("row and column", turned, named, turned | by_row).says("""
    It takes the ranks of one copy for the copies of one expert, and the reverse.
    Hint: Which ranks have the same expert? Of 4 ranks in rows of 2, ranks 0 and 2
    have one, and ranks 0 and 1 are in the same copy.
""")
nothing = {"made = {": 'made = {"nothing": grid,'}
slips("order", {LOOP: "in [*made.items()][::-1]"}, nothing).says("""
    Where several names explain the gradients, it does not return the first of them.
    Hint: In which order do you ask, and when do you stop? An unchanged gradient, too,
    may be what an earlier name of the list explains.
""")
exact = {SUMS: "torch.equal(sums.expand_as(found), found", BOTH: ")"}
slips("no rounding", exact, more=({}, ELSE)).says("""
    It expects sums to agree in every bit.
    Hint: What does the order of the terms change in a sum? The last digits, so compare
    up to a small part of each value.
""")
means = [{MEAN: text} for text in ("", MEAN.replace("copies", "row"))]
slips("mean", *means, more=({}, LOOSE, ELSE, LOOSE | ELSE)).says("""
    It does not recognise the mean over the ranks with the same expert.
    Hint: How many ranks have the same expert, if a copy has `row` of n ranks? Add up
    these, and divide by their number.
""")
ex.mistake("loose", only(values), LOOSE).says("""
    It takes values for equal that differ by more than rounding.
    Hint: By how much may two numbers differ for your function, if both are about 1e-9?
    `torch.allclose` allows 1e-8 and a part of 1e-5, unless you give `atol` and `rtol`.
""")
ex.wrong("loose", {BOTH: ", rtol=1e-11)"})

# Answers to which the general sentences apply

ex.wrong("wrong", {'"all": grid.sum((0, 1), keepdim=True),': ""})
ex.right({BOTH: ", rtol=1e-9, atol=1e-15)"})
ex.right({"column / copies": "grid.mean(0, keepdim=True)"})


def neighbours(n, before, after, row):
    """Rank r of the public exercise is in place r % row * copies + r // row."""
    order = sorted(range(len(before)), key=lambda r: (r % row, r // row))
    return [before[r] for r in order], [after[r] for r in order], row


ex.variation(
    "b",
    varied="the ranks that have the same expert are neighbours",
    differs="It takes ranks with r % row for copies of one expert, as in the public "
    "exercise, but here neighbours have the same expert.",
    given=neighbours,
    says={
        "row and column": "It takes the ranks of one copy for the copies of one "
        "expert, and the reverse. Hint: Which ranks have the same expert? Of 4 ranks "
        "in rows of 2, ranks 0 and 1 have one, and ranks 0 and 2 are in the same copy."
    },
)
