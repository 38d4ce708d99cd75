"""10.1 Clip by the global norm: clip(grads, limit), in place."""

import math
from itertools import product

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_views, ranks
from d2lpar.checks.solutions import chapter_10 as shared
from d2lpar.checks.solutions.chapter_10 import RANKS, SHARDS, copies, norm_and_grads

SPARE = 512  # bytes that nobody counts
ex = Exercise("10.1", outcome=norm_and_grads, perform=on_views)


@ex.cases
def cases(rng, reference):
    """Long, short, tiny and no gradients; empty shards, on some rank nothing else."""
    for n, (kind, shards), factor in product(RANKS, SHARDS.items(), (0.5, 2.0)):
        text = f"{kind}, {factor:g} x the limit"
        yield draw(rng, reference, n, text, shards, factor)
    for n, bare in (2, 1), (3, 0), (5, 2):
        text = f"rank {bare} has only empty shards"
        yield draw(rng, reference, n, text, [4, 3], 2.0, bare=bare)
    for n in (1, 4):
        yield draw(rng, reference, n, "all zero", [3, 2], 0.0)
    yield draw(rng, reference, 2, "tiny numbers", [4, 3], 2.0, size=1e-7)
    yield draw(rng, reference, 3, "some gradients are None", [4, None, 3], 3.0)
    yield draw(rng, reference, 4, "larger shards", [30_000, 1000], 2.0)
    yield draw(rng, reference, 4, "large shards", [3000, 1000], 2.0)


def draw(rng, reference, n, kind, shards, factor, size=1.0, bare=None):
    """One case; `factor`: the global norm, in limits."""
    grads = shared.drawn(rng, n, shards, size * (factor > 0), bare)
    limit = reference(grads, math.inf) / factor if factor else 1.0
    inputs = [(mine, limit) for mine in copies(grads)]
    norm = reference(grads, limit)
    told = [(norm, mine) for mine in grads]
    facts, traced = {"shards": shards, "factor": factor}, 30_000 in shards
    return Case(n, f"{ranks(n)}, {kind}", inputs, told, facts, traced=traced)


largest = lambda case: max(filter(None, case.facts["shards"]))
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    empty_shard=lambda case: 0 in case.facts["shards"],
    only_empty_shards=shared.some_rank_is_bare,
    frozen=lambda case: None in case.facts["shards"],
    zero=lambda case: case.expected[0][0] == 0,
    tiny=lambda case: 0 < case.expected[0][0] < 1e-6,
    short_enough=lambda case: 0 < case.facts["factor"] < 1,
)
ex.at_most(
    bytes=shared.sixteen,
    messages=lambda case: 2 * case.n * (case.n - 1),
    memory=lambda case: 8 * largest(case) + SPARE + case.noise,
)

# Texts of the answer, for edits

START, ADD, REDUCE = "torch.zeros(1, dtype=torch.float64)", "g @ g", "(total)  #"
ROOT, IF, SCALE = "total.sqrt().item()", "norm > limit", "g.mul_(limit / norm)"
ALL_REDUCE = f"dist.all_reduce{REDUCE}"

# Mistakes of its own

ex.slip("own norm", {ALL_REDUCE: "#"}).says("""
    Each rank clips by the norm of its own shards.
    Hint: All ranks must scale by the same factor. What does one rank have to know of
    the others? The sum of the squares of their shards.
""")
norms = f"total.sqrt_(); dist.all_reduce(total); total.square_()  {REDUCE[-1]}"
ex.slip("sum of norms", {ALL_REDUCE: norms}).says("""
    It adds up the norms of the ranks, but norms do not add.
    Hint: Which power of the numbers does add up over shards? Squares do, so take the
    root of their sum at the end.
""")
mean = f"dist.all_reduce(total); total /= dist.get_world_size()  {REDUCE[-1]}"
ex.slip("mean", {ALL_REDUCE: mean}).says("""
    It averages the squares over the ranks instead of adding them.
    Hint: Shards are different parts of one vector and not copies of it, so their
    squares add up.
""")
ex.slip("no root", {ROOT: "total.item()"}).says("""
    It uses the sum of the squares as the norm.
    Hint: Try it with one gradient that is [3, 4]: its norm is 5. What turns 25 into 5?
""")
ex.slip("stretched", {IF: "norm > 0"}).says("""
    It also scales gradients that are short enough, which makes them longer.
    Hint: Which factors may occur? None above 1.
""")
ex.slip("epsilon", {SCALE: "g.mul_(limit / (norm + 1e-6))"}).says("""
    The norm ends a little below the limit, as if 1e-6 were added to it before the
    division.
    Hint: `torch.nn.utils.clip_grad_norm_` adds it because the norm may be 0. Here the
    norm must be exactly the limit.
""")
own = {ALL_REDUCE: f"own = {ROOT}; {ALL_REDUCE}", IF: "own > limit"}
ex.slip("own decision", own).says("""
    A rank scales only if the norm of its own shards is above the limit.
    Hint: Which norm tells whether the gradient is too long? The global one, and every
    rank knows it after the all-reduce.
""")

# Answers to which the general sentences apply

ex.wrong("not in place", {SCALE: "g.data = g * (limit / norm)"})
listed = "grads[[x is g for x in grads].index(True)] = g * (limit / norm)"
ex.wrong("not in place", {SCALE: listed})
first = "if not any(g is not None and len(g) for g in grads):\n        return 0.0\n    "
ex.wrong("hangs", {f"total = {START}": f"{first}total = {START}"})
ex.wrong("raises", {IF: "limit / norm < 1"})
ex.wrong("wrong", {START: "torch.zeros(1)"})
ex.wrong("wrong", {SCALE: "g.mul_(limit / (norm + 1e-12))"})
each = "(s := g @ g, dist.all_reduce(s))[0]"
ex.wrong("costly", {ADD: each, ALL_REDUCE: "#"})
flat = "flat = torch.cat([g for g in grads if g is not None]); total += flat @ flat"
ex.wrong("costly", {ADD: "0", ALL_REDUCE: f"{flat}; {ALL_REDUCE}"})
ex.right({START: "torch.zeros((), dtype=torch.float64)", ROOT: "total.sqrt()"})
ex.right({IF: "True", SCALE: "g.copy_(g * (limit / max(norm, limit)))"})
