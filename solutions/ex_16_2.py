"""16.2 The largest micro-batch: largest(model, plan, batch, memory)."""

from dataclasses import replace

from d2lpar.checks.equality import whole_or_none
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, wrong
from d2lpar.planning.memory import stages
from d2lpar.planning.model import Model, Plan

ex = Exercise("16.2", agrees=whole_or_none, processes=())
# data, tensor, pipeline, interleave, zero, recompute, rows of a data rank
PLANS = [(1, 1, 1, 1, 0, "none", 12), (2, 1, 4, 1, 1, "none", 24)]
PLANS += [(1, 2, 4, 2, 0, "selective", 16), (4, 2, 2, 1, 1, "full", 30)]
PLANS += [(2, 1, 8, 1, 0, "none", 6), (1, 1, 8, 1, 1, "none", 8)]
PLANS += [(2, 4, 2, 1, 3, "full", 12), (1, 1, 4, 2, 0, "none", 20)]
PLANS += [(3, 1, 2, 1, 2, "none", 1), (2, 1, 3, 1, 0, "none", 49)]


@ex.cases
def cases(rng):
    """Memory for some sizes, for all of them, for the smallest, and for none."""
    for number, sizes in enumerate(PLANS):
        for room in ("some", ("none", "all", "least")[number % 3]):
            yield draw(rng, sizes, room, 1 + number // 2 % 2, 1 + number % 2)
    yield draw(rng, PLANS[-1], "least", 1, 1)


def draw(rng, sizes, room, micro_batch, context):
    """One case: the memory lies between two of the sizes, above all, or below."""
    d, t, p, v, zero, how, rows = sizes
    heads, words = 4 * t, 64 * int(rng.integers(4, 60))
    model = Model(2 * p * v, 16 * heads, heads, words, 64)
    plan = Plan(d, t, p, micro_batch, v, context, zero, False, how)
    needs = {}  # of each size, the bytes of the GPU that holds the most
    for b in (b for b in range(1, rows + 1) if rows % b == 0):
        each = stages(model, replace(plan, micro_batch=b), d * rows)
        needs[b] = max(map(sum, each))
    order = sorted(needs.values())
    at = int(rng.integers(1, max(2, len(order) - 1)))
    memory = {"some": sum(order[at - 1 : at + 1]) // 2, "all": order[-1]}
    memory |= {"least": order[0], "none": order[0] - 1}
    given = model, plan, d * rows, memory[room]
    best = max((b for b in needs if needs[b] <= memory[room]), default=None)
    text = f"data {d}, tensor {t}, pipeline {p}, context {context}, {rows} rows each, "
    facts = {"rows": rows, "needs": needs}
    return Case(1, f"{text}memory for {room}", [given], [best], facts)


nothing = lambda case: case.expected == [None]
exactly = lambda case: case.inputs[0][3] in case.facts["needs"].values()
power_of_two = lambda number: number and not number & (number - 1)
ex.boundaries(
    nothing_fits=nothing,
    one_row=lambda case: case.facts["rows"] == 1,
    one_fits_of_several=lambda case: case.expected == [1] and case.facts["rows"] > 1,
    all_fit=lambda case: case.expected == [case.facts["rows"]],
    filled_exactly=exactly,
    no_power_of_two=lambda case: not power_of_two(case.expected[0] or 1),
    one_data_rank=lambda case: case.inputs[0][1].data == 1,
    context=lambda case: case.inputs[0][1].context > 1,
    another_size_first=lambda case: case.inputs[0][1].micro_batch > 1,
)

# Texts of the answer, for edits

ROWS, SIZES, MOST = "batch // plan.data", "if rows % b == 0:", "max(map(sum, held))"
NONE, FITS = "plan.data, None", "<= memory"

# Mistakes of its own

ex.slip("not the most", {MOST: "sum(held[0])"}).says("""
    It looks at one stage only, or at the mean of them, and not at the fullest one.
    Hint: Which GPU decides? One with too little memory fails, however much room the
    others have. It can be the one that has the scores of all words, and it can be the
    one that has the most micro-batches at a time.
""")
ex.slip("not the most", {MOST: "sum(held[-1])"})
ex.slip("not the most", {MOST: "sum(map(sum, held)) / len(held)"})
ex.slip("powers of two", {SIZES: "if rows % b == b & (b - 1) == 0:"}).says("""
    It tries powers of two only.
    Hint: Which sizes are allowed? Every number that divides the rows of a data rank is
    a micro-batch.
""")
ex.slip("does not divide", {SIZES: "if True:"}).says("""
    It returns sizes that do not divide the rows of a data rank.
    Hint: What does a data rank run in a step? Whole micro-batches, all of the same
    size. Divide the rows of the batch by the data ranks first.
""")
ex.slip("does not divide", {ROWS: "batch"})
ex.slip("less than all", {FITS: "< memory"}).says("""
    It leaves out a micro-batch that fills the memory exactly.
    Hint: When does a plan fit? If it needs no more bytes than there are.
""")
number = lambda attempt: isinstance(attempt.came[0], int)
always = both(wrong, only(nothing), number)
ex.mistake("no None", always, {NONE: NONE.replace("None", "0")}).says("""
    It returns a number although no size fits.
    Hint: What do you return before any size was tried? Where even a micro-batch of one
    row is too large, None is wanted, and 0 or 1 is no answer.
""")
ex.wrong("no None", {NONE: NONE.replace("None", "1")})

# Answers to which the general sentences apply

ex.wrong("raises", {MOST: "max(held, key=sum)"})
ex.wrong("wrong", {"found = b\n": "return b\n"})
ex.right({"range(1, rows + 1)": "range(rows, 0, -1)", "found = b\n": "return b\n"})

ex.variation(
    "b",
    varied="how much of the memory has to stay free",
    differs="It fills the memory completely, as in the public exercise, but here an "
    "eighth has to stay free.",
    given=lambda n, *given: (*given[:-1], -(-8 * given[-1] // 7)),
)
