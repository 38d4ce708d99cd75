"""09.3 The fair mean: average(values, rows), in place."""

from dataclasses import replace

import torch

from d2lpar.allreduce.costs import ring_cost
from d2lpar.checks import requirements as shared
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, on_views, ranks
from d2lpar.checks.signs import both, only, wrong

ex = Exercise("09.3", outcome=argument(0), perform=on_views)
# Counts that float32 rounds, some in the sum alone, and that are no int32
LARGE = [2**24, 1, 0], [2**40, 3 * 2**38, 0, 2**39 + 1], [2**24 + 1, 2**24, 0]


@ex.cases
def cases(rng, reference):
    """Different numbers of rows; some ranks have none, twice all; large numbers."""
    for n in (1, 2, 3, 4, 5, 8):
        for D in (1, 7, 16):
            counts = rng.integers(1, 9, size=n).tolist()
            if D == 7:  # every second rank has none; from four ranks on, all
                counts = [0 if n > 3 or r % 2 else counts[r] for r in range(n)]
            yield draw(rng, reference, D, counts)
    for counts in [0, 0, 0], [0, 1, 0], *LARGE:
        yield draw(rng, reference, 7, counts)


def draw(rng, reference, D, counts):
    """One case."""
    n = len(counts)
    values = torch.from_numpy(rng.normal(size=(n, D)))
    means = [reference(list(values), counts)] * n if sum(counts) else list(values)
    text = f"{ranks(n)}, {D} element{'s' * (D > 1)}, rows {counts}"
    inputs = [(x.clone(), count) for x, count in zip(values, counts, strict=True)]
    return Case(n, text, inputs, means, facts={"S": D})


given = lambda case: [count for _, count in case.inputs]
ex.boundaries(
    "one rank", "two ranks", "no power of two", "does not divide", "empty share"
)
ex.boundaries(
    rank_without_rows=lambda case: 0 in given(case) and any(given(case)),
    no_rows=lambda case: not any(given(case)),
    one_row=lambda case: sum(given(case)) == 1,
    no_float32=lambda case: 2**24 + 1 in given(case),
    largest=lambda case: 2**40 in given(case),
)
ex.at_most(
    bytes=lambda case: ring_cost(case.facts["S"] + 1, case.n, 8).busiest,
    rounds=lambda case: 2 * (case.n - 1),
)
SAME = shared.same_bits()
measured = lambda a: SAME.measured(a) if any(given(a.case)) else 0
ex.require(replace(SAME, measured=measured), shared.from_messages())

# Texts of the answer, for edits

WEIGHTED, COUNT, RING = "values * rows", "values.new_tensor([rows])", "ring_allreduce"
IF, MEAN, WRITE = "both[-1] > 0", "both[:-1] / both[-1]", "values.copy_("
START = "both = torch.cat(["
BY_N = "both[:-1] / dist.get_world_size()"

# Mistakes of its own

ones = {WEIGHTED: "values", COUNT: "values.new_tensor([1])"}
ex.slip("plain mean", ones).says("""
    Every rank has the same weight, however many rows it has.
    Hint: If one rank has 1 row and another 9, how much of the mean is theirs? Multiply
    by the rows before the sum, and divide by all rows after it.
""")
ex.slip("plain mean", {WEIGHTED: "values", MEAN: BY_N})
ex.slip("over n", {MEAN: BY_N}).says("""
    It weights by rows, but divides by the number of ranks.
    Hint: If each rank has 10 rows, what do the weights add up to? To 10 n, not to n.
""")
ex.slip("over n", {MEAN: BY_N, IF: "True"})
ex.slip("own rows", {IF: "rows > 0"}).says("""
    A rank that has no rows itself keeps its old values.
    Hint: Which number of rows decides whether there is a mean? That of all ranks,
    because a rank without rows gets the mean of the others.
""")
few = only(lambda case: sum(given(case)) < 2)
ex.mistake("nobody", both(wrong, few), {IF: "True"}).says("""
    It is wrong only where no rank has any rows, or where there is a single row in all.
    Hint: By what do you divide there? Where the sum of rows is 0, and nowhere else,
    the values have to stay, so look at this sum before you write.
""")
ex.wrong("nobody", {IF: "True", MEAN: f"{MEAN}.clamp(min=1)"})
ex.wrong("nobody", {IF: "both[-1] > 1"})
large = only(lambda case: max(given(case)) >= 2**24)
ex.mistake("digits", large, {COUNT: "torch.tensor([float(rows)])"}).says("""
    A large number of rows does not survive its way, perhaps in a tensor that has too
    few bits for it.
    Hint: Which dtype has the tensor in which the number travels? A float32, such as
    `torch.tensor([float(rows)])`, rounds whole numbers above 2^24, and an int32 ends at
    2^31. Give it the dtype of the values.
""")
ex.wrong("digits", {WEIGHTED: "values * torch.tensor([float(rows)])"})
ex.wrong("digits", {COUNT: "torch.tensor([rows], dtype=torch.int32)"})
ex.wrong("digits", {IF: "both[-1].float() > 0", MEAN: f"{MEAN}.float()"})
alone = {f"{WEIGHTED}, {COUNT}": WEIGHTED, IF: "total > 0", MEAN: "both / total"}
alone[f"{RING}("] = f"total = {COUNT}; {RING}(total); {RING}("

# Answers to which the general sentences apply

ex.wrong("not in place", {WRITE: "values = ("})
ex.wrong("not in place", {WRITE: "values.data = ("})
handed_in = f"return average_handed_in(values, rows)\n    {START}"
ex.wrong("not in place", {START: handed_in})
ex.wrong("hangs", {START: f"if rows == 0:\n        return\n    {START}"})
ex.wrong("costly", alone)
ex.wrong("costly", {RING: "d2lpar.allreduce.naive_allreduce"})
ex.wrong("native collective", {RING: "dist.all_reduce"})
chunks = "chunks = both.tensor_split(dist.get_world_size()); d2lpar.scatter."
halves = f"{chunks}ring_reduce_scatter(chunks); d2lpar.scatter.ring_all_gather(chunks)"
ex.right({f"{RING}(both)": halves})
scaled = {IF: "True", MEAN: f"{MEAN} if both[-1] else before"}
before = "before = values.clone()\n    values *= rows"
scaled[START + WEIGHTED] = f"{before}\n    {START}values"
ex.right(scaled)
