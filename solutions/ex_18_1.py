"""18.1 Once is enough: once(x, experts, count)."""

from functools import partial

import numpy as np
import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.backward import NO_WAY_BACK, agrees, by_name, drawn
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_ranks, ranks

# tokens of each rank, experts of all, experts per token, choices that are dropped
WORLDS = (((5,), 4, 2, 0.0), ((4, 3), 4, 1, 0.0), ((2, 5), 6, 3, 0.3))
WORLDS += (((0, 1, 0), 3, 1, 0.0), ((0, 4), 4, 2, 0.0), ((3, 1, 4), 6, 2, 0.2))
WORLDS += (((4, 0, 3, 5), 8, 4, 0.3), ((2, 3, 1, 4), 12, 6, 0.0), ((0, 0), 4, 2, 0.0))
WORLDS += (((3, 2), 4, 2, 1.0), ((1, 2, 3, 1, 2, 0, 1, 3), 16, 4, 0.2))
WORLDS += (((2, 2, 2), 3, 3, 0.0),)
D = 3


def there_and_back(fn, tensors, count, dy):
    """(rows, gradients); with a wrong number of rows, zeros go back instead of dy.

    So all ranks go back, where only some have the right number.
    """
    x, experts = tensors
    y = fn(x.requires_grad_(), experts, count)
    if torch.is_tensor(y) and y.requires_grad:
        y.backward(dy if y.shape == dy.shape else torch.zeros_like(y))
        y = y.detach()
    return y, [x.grad]


both_ways = lambda fn, case, **how: on_ranks(partial(there_and_back, fn), case, **how)
ex = Exercise("18.1", agrees=agrees, perform=both_ways, shows=by_name("rows", "x.grad"))


@ex.cases
def cases(rng):
    """Ranks without tokens, all experts dropped, one expert and many per rank."""
    for heights, count, k, dropped in WORLDS:
        n, N = len(heights), sum(heights)
        chosen = [rng.permutation(count)[:k] for _ in range(N)]
        experts = torch.from_numpy(np.array(chosen, dtype=int).reshape(N, k))
        experts[torch.from_numpy(rng.random((N, k)) < dropped)] = -1
        xs, parts = drawn(rng, (N, D))[0].split(heights), experts.split(heights)
        visits = [needed(e, count, n) for e in parts]
        dys = drawn(rng, *[(sum(len(v[r]) for v in visits), D) for r in range(n)])
        text = f"{ranks(n)} with {list(heights)} tokens, {count} experts, k = {k}"
        given = zip(xs, parts, dys, strict=True)
        inputs = [((x.clone(), e.clone()), count, dy) for x, e, dy in given]
        yield Case(n, text, inputs, there(xs, visits, dys), {"visits": visits, "k": k})


def needed(experts, count, n):
    """Numbers of the tokens that travel to each rank."""
    here = lambda row, r: any(r * count <= e * n < (r + 1) * count for e in row)
    every = experts.tolist()
    visits = [[t for t, row in enumerate(every) if here(row, r)] for r in range(n)]
    return [torch.tensor(each).long() for each in visits]


def there(xs, visits, dys):
    """Per rank, (the rows that came, the gradient of its tokens)."""
    leaves = [x.clone().requires_grad_() for x in xs]
    from_all = lambda r: [x[v[r]] for x, v in zip(leaves, visits, strict=True)]
    ys = [torch.cat(from_all(r)) for r in range(len(xs))]
    grads = torch.autograd.grad(ys, leaves, dys)
    return [(y.detach(), [dx]) for y, dx in zip(ys, grads, strict=True)]


def fewest(case):
    """Bytes of each rank: counts, rows there, and gradients back."""
    visits, every = case.facts["visits"], range(case.n)
    away = lambda r, s: len(visits[r][s]) * D * 8 if r != s else 0
    both = [sum(away(r, s) + away(s, r) for s in every) for r in every]
    return [8 * (case.n - 1) + size for size in both]


tokens = lambda case: [len(x) for (x, _), *_ in case.inputs]
chosen = lambda case: torch.cat([experts for (_, experts), *_ in case.inputs])
came = lambda case: [len(dy) for *_, dy in case.inputs]
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    no_tokens=lambda case: not any(tokens(case)),
    a_rank_without_tokens=lambda case: 0 in tokens(case) and any(tokens(case)),
    all_dropped=lambda case: any(tokens(case)) and bool((chosen(case) < 0).all()),
    a_rank_to_which_nothing_comes=lambda case: 0 in came(case) and any(came(case)),
    one_choice=lambda case: case.facts["k"] == 1,
    one_expert_of_a_rank=lambda case: case.inputs[0][1] == case.n > 1,
    more_experts_than_n_times_n=lambda case: case.inputs[0][1] > case.n**2 > 1,
)
ex.at_most(bytes=fewest)
ex.require(rows.untouched())

# Texts of the answer, for edits

HOME, DROPPED = "(experts // (count // n))", ".masked_fill(experts < 0, -1)"
VISITS, ANY, RETURN = "ranks.where(needed, -1)", ".any(-1)", "return rows"
rows_alone = lambda outcome: (outcome[0], ...)

# Mistakes of its own

ex.mistake("no way back", NO_WAY_BACK, {"dispatch(x,": "dispatch(x.detach(),"}).says("""
    The rows arrive, but no gradient comes back to the tokens.
    Hint: Which of the chapter's functions has a backward pass? `start` moves numbers
    only, and the class `Exchange` knows the way back, too.
""")
ex.wrong("no way back", {RETURN: "return rows.detach().requires_grad_()"})
copies = {f"{VISITS}, n": "experts, count"}
ex.slip("several", copies, about=rows_alone).says("""
    A token travels several times to a rank that has several of its experts.
    Hint: Which question has one answer for each token and rank? Whether any of its
    choices lives there. What if ranks took the place of experts in `dispatch`?
""")
ex.slip("several", {VISITS: "home"})
beside = "torch.cat((home[:, :1] < -1, home[:, 1:] == home[:, :-1]), 1)"
ex.slip("several", {VISITS: f"home.masked_fill({beside}, -1)"})
ex.slip("home", {HOME: "(experts % n)"}, about=rows_alone).says("""
    It looks for experts on ranks that do not have them.
    Hint: How many experts has a rank, and which are those of rank 1? Divide by this
    number, and not by the number of ranks.
""")
ex.slip("home", {HOME: "(experts // n)"})
ex.slip("dropped", {DROPPED: " % n"}, about=rows_alone).says("""
    It sends tokens for dropped choices, whose number -1 has become that of a rank.
    Hint: What do your divisions make of -1? A dropped choice needs no rank.
""")
ex.slip("dropped", {DROPPED: ".clamp(min=0)"})
ex.slip("first choice", {ANY: "[..., 0]"}, about=rows_alone).says("""
    It looks only at the first choice of each token.
    Hint: When does a token need a rank? If any of its k experts lives there.
""")
others = VISITS.replace("needed", "needed & (ranks != dist.get_rank())")
ex.slip("not its own", {VISITS: others}, about=rows_alone).says("""
    The tokens that stay on their own rank are missing.
    Hint: Which rows does a rank have that no message brings? Its own tokens belong to
    the rows, at the place of this rank.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {RETURN: "return rows, _"})
every = "all = needed.sum(0); dist.all_gather([*all.new_empty(n, n)], all)"
ex.wrong("costly", {RETURN: f"{every}; {RETURN}"})
ex.wrong("costly", {RETURN: f"experts.clamp_(min=0); {RETURN}"})
ex.wrong("costly", {RETURN: f"x.data.zero_(); {RETURN}"})
ex.right({DROPPED: ""})
