"""17.1 Merge what ranks have seen: merge_ranks(out, lse)."""

import math

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import not_a_number

ex = Exercise("17.1", "merged_reference")
HEADS, QUERIES, D = 2, 3, 4


@ex.cases
def cases(rng, reference):
    """Small scores, very large and very small ones; ranks without keys, also most."""
    for n in (1, 2, 3, 4, 8):
        keys = rng.integers(1, 4, size=n).tolist()
        one = [3 * (r == n // 2) for r in range(n)]
        yield draw(rng, reference, keys, "small")
        yield draw(rng, reference, keys, "up to 10,000")
        for some in [[0, *keys[1:]], [*keys[:-1], 0], one] if n > 1 else ():
            yield draw(rng, reference, some, "small", without_keys=some.count(0))


def draw(rng, reference, keys, scores, **facts):
    """One case, with so many keys on each rank."""
    shift = [0, 0, 0] if scores == "small" else [0, 10_000, -10_000]  # per query
    shift = torch.tensor(shift).double()[:, None]
    normal = 2 * rng.normal(size=(HEADS, QUERIES, sum(keys)))
    mine = torch.from_numpy(normal) + shift
    values = torch.from_numpy(rng.uniform(1, 9, size=(HEADS, sum(keys), D)))
    parts = zip(mine.split(keys, 2), values.split(keys, 1), strict=True)
    inputs = [(reference(s, v), s.logsumexp(-1)) for s, v in parts]
    expected, facts = [reference(mine, values)] * len(keys), facts | {"keys": keys}
    return Case.of(len(keys), inputs, expected, scores=scores, **facts)


keys = lambda case: case.facts["keys"]
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    large=lambda case: max(lse.max() for _, lse in case.inputs) > 9e3,
    small=lambda case: any(
        (lse.nan_to_num(0, 0, 0) < -9e3).any() for _, lse in case.inputs
    ),
    first_without_keys=lambda case: keys(case)[0] == 0 < keys(case)[-1],
    last_without_keys=lambda case: keys(case)[-1] == 0 < keys(case)[0],
    one_with_keys=lambda case: case.n > 2 and keys(case).count(0) == case.n - 1,
)
# Twice the averages, and the log-sum-exps of n ranks.
ex.at_most(bytes=lambda case: 8 * HEADS * QUERIES * (2 * D + case.n))
ex.require(rows.from_messages(), rows.untouched(0), rows.untouched(1))

# Texts of the answer, for edits

ALL, WEIGHTS = "torch.stack(every)", "torch.stack(every).softmax(0)"
SHARE, REDUCE = "out * weights[dist.get_rank()][..., None]", "ring_allreduce(share)"
BEST = "torch.stack(every).amax(0)"

# Mistakes of its own

plain = f"{ALL}.exp() / {ALL}.exp().sum(0)"
ex.mistake("not a number", not_a_number, {WEIGHTS: plain}).says("""
    The result contains NaN, although all averages are finite.
    Hint: What is the exponential of 10,000, and what is minus infinity less minus
    infinity? Subtract something first, and choose it for each query.
""")
one = f"({ALL} - {ALL}.max()).exp(); weights = weights / weights.sum(0)"
ex.wrong("not a number", {WEIGHTS: one})
ex.slip("no weights", {SHARE: "out / dist.get_world_size()"}).says("""
    All ranks count the same, however much their keys weigh.
    Hint: A rank's weight is the exponential of its log-sum-exp, and the weights of all
    ranks must add up to 1.
""")
ex.slip("no weights", {SHARE: "out.clone()"})
ex.slip("largest", {WEIGHTS: f"({ALL} == {BEST}).double()"}).says("""
    It takes the average of the rank with the largest log-sum-exp and drops the others.
    Hint: A smaller weight is still a weight.
""")
ex.slip("not divided", {WEIGHTS: f"({ALL} - {BEST}).exp()"}).says("""
    It subtracts the largest log-sum-exp, but does not divide by the sum of the weights.
    Hint: The weights of all ranks must add up to 1. With the log-sum-exp of all keys in
    the place of the largest one, they do.
""")
gathers = "outs = [torch.empty_like(out) for _ in every]; all_gather(outs, out)"
in_turn = f"""{gathers}; share, total = outs[0], every[0]
    for more, its in zip(outs[1:], every[1:]):
        both = torch.logaddexp(total, its)
        scale = [(x - both).exp().nan_to_num()[..., None] for x in (total, its)]
        share, total = share * scale[0] + more * scale[1], both"""
first = in_turn.replace("share, total = share", "share = share")[: -len(", both")]
ex.slip("old sum", {REDUCE: first}).says("""
    It merges one rank after the other, but keeps the first log-sum-exp.
    Hint: After a merge, the average covers more keys. What is their log-sum-exp?
""")

# Answers to which the general sentences apply

ex.wrong("costly", {REDUCE: in_turn})
ex.wrong("pattern", {REDUCE: "return out"})
ex.wrong("wrong", {WEIGHTS: f"({ALL} * torch.tensor(2.0).log()).softmax(0)"})
ex.wrong("costly", {SHARE: "out.mul_(weights[dist.get_rank()][..., None])"})
ex.wrong("costly", {f"{WEIGHTS}  #": f"{WEIGHTS}; lse.zero_()  #"})
ex.wrong("native collective", {"ring_allreduce": "dist.all_reduce"})
ex.wrong("hangs", {"all_gather(": "dist.get_rank() == 1 or all_gather("})
ex.right({WEIGHTS: f"({ALL} - {BEST}).exp(); weights = weights / weights.sum(0)"})
ex.right({WEIGHTS: f"({ALL} - {ALL}.logsumexp(0)).exp()"})

ex.variation(
    "b",
    varied="the log-sum-exps are to the base 2",
    differs="Logarithms are natural, as in the public exercise; here their base is 2.",
    given=lambda n, out, lse: (out, lse / math.log(2)),
)
