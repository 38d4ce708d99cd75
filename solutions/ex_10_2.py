"""10.2 Accumulate without extra traffic: accumulate(w, micro_batches, rows)."""

from functools import partial
from itertools import product

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, on_ranks, ranks
from d2lpar.checks.signs import always, breaks, only
from d2lpar.checks.solutions.chapter_10 import RANKS
from d2lpar.checks.varying import mirror

PLANS = {  # rows of the micro-batches of rank r
    "equal micro-batches": lambda r: [2, 2],
    "unequal micro-batches": lambda r: [1, 3 + r, 2],
    "rank 0 has no micro-batch": lambda r: [2, 1] if r else [],
    "different numbers of micro-batches": lambda r: [2, 1, 4, 1][: 1 + r % 4],
}


def watched(fn, w, micro_batches, count):
    """What `fn` returns, and whether autograd knows of an argument afterwards."""
    value = fn(w, micro_batches, count)
    tensors = [x for x in (w, *micro_batches) if torch.is_tensor(x)]
    return value, any(x.requires_grad or x.grad is not None for x in tensors)


perform = lambda fn, case, **options: on_ranks(partial(watched, fn), case, **options)
ex = Exercise("10.2", outcome=lambda a, rank: a.values[rank][0], perform=perform)


@ex.cases
def cases(rng):
    """Micro-batches of unequal sizes; ranks may have fewer of them, or none."""
    for k, n, (kind, plan) in product((3, 1), RANKS, PLANS.items()):
        if k == 1 and n not in (1, 4) or not any(map(plan, range(n))):
            continue
        draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
        w = draw(n * k)
        batches = [[draw(count, n * k) for count in plan(r)] for r in range(n)]
        every = torch.cat([x for mine in batches for x in mine])
        mean = 2 * every.T @ (every @ w) / len(every)  # of (x w)^2 over all rows
        inputs = [(w.clone(), mine, len(every)) for mine in batches]
        text = f"{ranks(n)}, k = {k}, {kind}, {len(every)} rows in all"
        yield Case(n, text, inputs, [*mean.split(k)], facts={"k": k})


counts = lambda case: [len(x[1]) for x in case.inputs]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    no_micro_batch=lambda case: 0 in counts(case),
    one_micro_batch=lambda case: 1 in counts(case),
    other_numbers=lambda case: len({*counts(case)} - {0}) > 1,
    one_row=lambda case: 1 in [len(x) for _, some, _ in case.inputs for x in some],
    one_element=lambda case: case.facts["k"] == 1 < case.n,
)


def changed(attempt):
    """Ranks with an argument that is not what it was, or that autograd now knows."""
    pairs = zip(attempt.args, attempt.case.inputs, attempt.values, strict=True)
    return sum(told or not same(x, y) for x, y, (_, told) in pairs)


MESSAGES = rows.messages(lambda case: case.n * (case.n - 1), exactly=False)
ex.at_most(bytes=lambda case: [(case.n - 1) * case.facts["k"] * 8] * case.n)
ex.require(MESSAGES, Requirement(rows.UNTOUCHED, changed, lambda case: 0))

# Texts of the answer, for edits

START, ZERO = "w = w.detach().requires_grad_()", "w.grad = torch.zeros_like(w)"
LOOP, LOSS, SUM = "for x in micro_batches:", "((x @ w).square()", "sum() / rows"
REDUCE, RETURN = "dist.reduce_scatter_tensor(shard, w.grad)", "return shard"
BACKWARD = "rows).backward()"

# Mistakes of its own
reduced = lambda a: sum("reduce" in name for name in rows.collectives(a.run)) / a.case.n
each_one = lambda attempt: reduced(attempt) >= max(counts(attempt.case))
inside = {BACKWARD: f"{BACKWARD}\n        part = torch.empty_like(shard)"}
inside[BACKWARD] += "; dist.reduce_scatter_tensor(part, v.grad); shard += part"
inside |= {START: "n = dist.get_world_size()", ZERO: "shard = w.new_zeros(len(w) // n)"}
inside |= {"shard = w.grad.new_empty(": "n == (", "@ w).sq": "@ v).sq", REDUCE: ""}
inside[LOOP] = f"{LOOP}\n        v = w.detach().requires_grad_()"
ex.mistake("each time", always(each_one, breaks(MESSAGES)), inside).says("""
    It reduces every micro-batch by itself, so m micro-batches cause m times the
    traffic.
    Hint: How many gradients does a rank have to send? One, because it can add up those
    of its micro-batches before. Then it does not matter that other ranks have more.
""")
without = only(lambda case: 0 in counts(case), lambda attempt: bool(attempt.error))
ex.mistake("absent", without, {ZERO: "w.grad = None"}).says("""
    It fails when a rank has no micro-batches.
    Hint: Which ranks have to call the collective? All, including one whose gradient is
    zero, and that has to be a tensor, too.
""")
leaves = "if not micro_batches: return w[: len(w) // dist.get_world_size()] * 0"
ex.wrong("absent", {START: f"{leaves}\n    {START}"})
means = "mean() / len(micro_batches) / dist.get_world_size()"
ex.slip("means", {SUM: means}).says("""
    It divides by the rows of a micro-batch or of one rank, although these differ.
    Hint: Which weight has a row of a small micro-batch then? Sum over rows, and divide
    once by `rows`, the number of all rows on all ranks.
""")
own = "sum() / sum(map(len, micro_batches))"
ex.slip("means", {SUM: own})
ex.slip("means", {SUM: f"{own} / dist.get_world_size()"})
ex.slip("last only", {LOSS: f"w.grad.zero_(); {LOSS}"}).says("""
    Only the last micro-batch of each rank counts.
    Hint: What happens to the gradient of the micro-batch before? `backward` adds to
    what is there, so something must overwrite or reset it in each micro-batch.
""")
dealt = "w.grad.view(-1, dist.get_world_size()).T.flatten()"
ex.slip("order", {REDUCE: f"dist.reduce_scatter_tensor(shard, {dealt})"}).says("""
    The elements of a shard are not side by side in the gradient, but n places apart.
    Hint: Write down the shards of a gradient of 6 elements on 2 ranks. The k elements
    of a shard lie side by side.
""")

# Answers to which the general sentences apply

mine = "w.grad.view(dist.get_world_size(), -1)[dist.get_rank()]"
ex.wrong("costly", {REDUCE: f"dist.all_reduce(w.grad); shard.copy_({mine})"})
keeps = "w.requires_grad_()"
ex.wrong("costly", {START: keeps, RETURN: f"w.requires_grad_(False)\n    {RETURN}"})
ex.wrong("costly", {LOOP: "while micro_batches:\n        x = micro_batches.pop()"})
ex.wrong("costly", {LOOP: f"{LOOP}\n        x.requires_grad_()"})
ex.wrong("raises", {START: "w = w.clone()"})
ex.wrong("wrong", {RETURN: f"{RETURN}.float()"})
ex.wrong("pattern", {SUM: f"{SUM} / dist.get_world_size()"})
ex.wrong("wrong", {REDUCE: REDUCE.replace("w.grad)", "w.grad.flip(0))")})
back = f"w.requires_grad_(False)\n    w.grad = None\n    {RETURN}"
ex.right({START: keeps, RETURN: back})
messages = "from d2lpar.scatter import reduce_scatter as reduce; "
ex.right({REDUCE: f"{messages}reduce(shard, [*w.grad.split(len(shard))])"})

ex.variation(
    "b",
    varied="who holds what: rank r has shard n-1-r",
    differs="Rank r returns shard r, but here it has to return shard n-1-r.",
    part=mirror,
    call=lambda case: case.call.replace("rank 0 has", f"rank {case.n - 1} has"),
)
