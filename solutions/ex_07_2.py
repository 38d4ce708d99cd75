"""07.2 The last batches: train(model, batches, lr)."""

import copy
from itertools import product

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import both, hangs, not_a_number, only, raises, wrong
from d2lpar.checks.solutions import chapter_07 as nets
from d2lpar.checks.solutions.chapter_07 import idle, uneven, weights

RATE = 0.5
COUNTS = [[2], [2, 2], [1, 2], [3, 1], [2, 0], [2, 1, 3], [1, 4, 0, 2], [1, 1, 2, 3, 1]]

outcome = lambda attempt, rank: weights(attempt.args[rank][0])
ex = Exercise("07.2", outcome=outcome, agrees=nets.near)


@ex.cases
def cases(rng, reference):
    """Ranks with other numbers of batches, of other numbers of rows."""
    for counts in COUNTS:
        n, rows = len(counts), lambda: int(rng.integers(1, 6))
        data = [[nets.batch(rng, rows()) for _ in range(m)] for m in counts]
        equal = nets.equal_nets(rng, n)
        net = copy.deepcopy(equal[0])
        reference(net, data, RATE)
        inputs = [(*pair, RATE) for pair in zip(equal, data, strict=True)]
        text = f"{ranks(n)} with {counts} batches"
        yield Case(n, text, inputs, [weights(net)] * n, {"counts": counts})


def rings(case):
    """Elements of each all-reduce: a step's gradients, n numbers a step and once."""
    steps = max(counts(case))
    return steps * nets.sizes(case) + (steps + 1) * [case.n]


counts = lambda case: case.facts["counts"]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    no_batch=idle,
    equal=lambda case: case.n > 1 and not uneven(case),
    rank_0_has_most=lambda case: counts(case)[0] == max(counts(case)) and uneven(case),
    rank_0_has_fewer=lambda case: counts(case)[0] < max(counts(case)),
)
ex.at_most(
    bytes=lambda case: nets.ring_bytes(rings(case), case.n),
    messages=lambda case: len(rings(case)) * 2 * (case.n - 1) * case.n,
)
ex.require(rows.from_messages())

# Texts of the answer, for edits

LEFT, ROWS = "k < len(batches)", "[float(len(y))]"
TAKE = f"batches[k] if {LEFT} else (None, ())"
END, ZERO = "if rows == 0:", "torch.zeros_like(p)"
SUM, DIVIDE, THERE = 'reduction="sum"', " / rows.item()", "x is not None"
REDUCE, STEP = "ring_allreduce(p.grad)", "p -= lr * p.grad"


def ends_with(condition, takes=TAKE):
    """Edits: it ends where this is true on no rank, and takes this batch."""
    sums = {ROWS: f"[float(len(y)), float({condition})]", DIVIDE: " / rows[0]"}
    return sums | {TAKE: takes, END: "if rows[1] == 0:"}


# Mistakes of its own

missing = both(only(uneven), raises(BaseException))
ex.mistake("no batch", missing, {ZERO: f"None if {THERE} else p.grad.zero_()"}).says("""
    It fails on a rank that has no batch for a step, or none at all.
    Hint: Such a rank has no gradient yet, and the other ranks wait for its zeros.
""")
ex.wrong("no batch", {ZERO: "None"})


def stops_early(attempt):
    """A rank that has fewer batches than others has returned, and they wait for it."""
    gone = hangs(attempt) and "has returned" in str(attempt.error)
    return gone and counts(attempt.case)[attempt.error.rank] < max(counts(attempt.case))


ex.mistake("runs out", stops_early, {END: f"if rows == 0 or not {THERE}:"}).says("""
    A rank stops when it runs out of batches, and the others wait for it.
    Hint: It must take part with zeros until no rank has a batch left. Let the ranks
    exchange a number that tells them when this is so.
""")
ex.wrong("runs out", {END: "if k >= len(batches):"})
by_first = ends_with(f"{THERE} and dist.get_rank() == 0")
ex.slip("too few steps", by_first).says("""
    Training ends while some rank still has batches.
    Hint: Which rank decides on the number of steps? It is the one with the most
    batches, and not always the same rank.
""")
everyone = {END: "if rows[1] < dist.get_world_size():"}
ex.slip("too few steps", ends_with(THERE) | everyone)
again = "(batches[-1] if batches else (None, ()))"
ex.slip("again", ends_with(LEFT, TAKE.replace("(None, ())", again))).says("""
    A rank that runs out of batches trains on batches again that it has had.
    Hint: The rows of such a batch then count twice, but the rank should add nothing to
    the gradients.
""")
cycled = TAKE.replace(f"[k] if {LEFT}", "[k % len(batches)] if batches")
ex.slip("again", ends_with(LEFT, cycled))
mean = {SUM: 'reduction="mean"'}
ex.slip("weights", mean | {DIVIDE: " / dist.get_world_size()"}).says("""
    The loss of a step is not the mean over its rows, but over ranks, or it counts the
    rows of another step.
    Hint: Batches have different numbers of rows. Sum the losses, and divide by the
    number of rows that all ranks have in this step.
""")
ex.slip("weights", mean | {ROWS: f"[float({THERE})]"})
usual = {ROWS: f"[float(len(batches[0][1]) if {THERE} else 0)]"}
ex.slip("weights", mean | usual | {DIVIDE: " * len(batches[0][1]) / rows.item()"})
kept = (f"{ZERO} if {THERE} or p.grad is None else p.grad",)
kept += (f"{ZERO} if p.grad is None else p.grad",)
later = {DIVIDE: "", STEP: f"{STEP} / rows"}
in_place = {DIVIDE: "", STEP: f"p.grad /= rows; {STEP}"}
own = {REDUCE: "g = p.grad.clone(); ring_allreduce(g)", STEP: "p -= lr * g"}
for left, over in product(kept, ({}, later, in_place, own)):
    ex.slip("stale", {ZERO: left} | over).says("""
        A gradient still contains that of the step before.
        Hint: `zero_grad` belongs to every step of every rank, even of one that has no
        batch for the step.
    """)
differ = lambda a: (
    wrong(a) and not not_a_number(a) and not a.gives([a.came[0]] * a.case.n)
)
active = {STEP: f"{STEP} * ({THERE})"}
ex.mistake("replicas differ", differ, active).says("""
    The ranks no longer have the same weights after the last step.
    Hint: Every rank has to make every step, even when it has no rows for it.
""")

# Answers to which the general sentences apply

ex.wrong("costly", {REDUCE: f"{REDUCE}; ring_allreduce(rows.clone())"})
ex.wrong("native collective", {REDUCE: "dist.all_reduce(p.grad)"})
ex.wrong("wrong", {STEP: "p.zero_()"})
ex.right(later)
every = "[float(len(y) * (i == r)) for i in range(n)]"
n_and_r = "n, r, k = dist.get_world_size(), dist.get_rank(), 0"
per_rank = {"k = 0": n_and_r, ROWS: every, END: "if rows.sum() == 0:"}
ex.right(per_rank | {DIVIDE: " / rows.sum()"})
