"""10.4 All ranks step, or none: unscale_and_clip(grads, scale, limit), in place."""

import math
from functools import partial
from itertools import product

import torch

from d2lpar.checks.equality import comparable, near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_views, ranks
from d2lpar.checks.signs import both, only, wrong
from d2lpar.checks.solutions import chapter_10 as shared
from d2lpar.checks.solutions.chapter_10 import RANKS, SHARDS, copies, norm_and_grads

BAD = {"an infinity": math.inf, "a minus infinity": -math.inf, "a NaN": math.nan}


def agrees(came, wanted, case):
    """None or a norm to five digits, and gradients to five digits, NaN where it was."""
    (said, grads), (norm, exact) = came, wanted
    alike = partial(torch.allclose, rtol=1e-5, atol=1e-30, equal_nan=True)
    pairs = zip(grads, exact, strict=True)
    right = all(x is y or comparable(x, y) and alike(x, y) for x, y in pairs)
    return right and (said is norm or near(said, norm, 1e-5))


form = {"outcome": norm_and_grads, "agrees": agrees, "perform": on_views}
ex = Exercise("10.4", "reference", **form)


@ex.cases
def cases(rng, reference):
    """Long and short gradients, with one number that is not finite, or none."""
    for n, (kind, shards), factor in product(RANKS, SHARDS.items(), (0.5, 2.0)):
        text = f"{kind}, {factor:g} x the limit"
        yield draw(rng, reference, n, text, shards, factor)
    for n, kind in product((1, 2, 5), BAD):
        text = f"{kind} on rank {n // 2}"
        yield draw(rng, reference, n, text, [4, 3], 0.5, bad=kind)
    for n, rank in (2, 0), (3, 0), (5, 3):
        text = f"rank {rank} has only empty shards"
        yield draw(rng, reference, n, text, [4, 3], 2.0, bare=rank)
        text += f", and rank {n // 2} an infinity"
        yield draw(rng, reference, n, text, [4, 3], 2.0, "an infinity", bare=rank)
    yield draw(rng, reference, 3, "large numbers", [4, 3], 2.0, scale=2.0**100)
    yield draw(rng, reference, 4, "all zero", [3, 2], 0.0)
    yield draw(rng, reference, 3, "some gradients are None", [4, None, 3], 3.0)
    yield draw(rng, reference, 4, "larger shards", [3000, 1000], 2.0)


def draw(rng, reference, n, kind, shards, factor, bad=None, scale=2.0**8, bare=None):
    """One case; `factor`: the norm in limits, without the scale."""
    grads = shared.drawn(rng, n, shards, scale * (factor > 0), bare)
    grads = [[g if g is None else g.float() for g in mine] for mine in grads]
    limit = reference(copies(grads), scale, math.inf) / factor if factor else 1.0
    if bad:
        grads[n // 2][-1][0] = BAD[bad]
    inputs = [(mine, scale, limit) for mine in copies(grads)]
    norm = reference(grads, scale, limit)
    facts = {"shards": shards, "factor": factor, "bad": bad, "scale": scale}
    told = [(norm, mine) for mine in grads]
    return Case(n, f"{ranks(n)}, {kind}", inputs, told, facts)


bad = lambda case: case.facts["bad"]
large = lambda case: case.facts["scale"] > 2.0**64
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    empty_shard=lambda case: 0 in case.facts["shards"],
    only_empty_shards=shared.some_rank_is_bare,
    empty_beside_infinity=lambda case: bad(case) and shared.some_rank_is_bare(case),
    frozen=lambda case: None in case.facts["shards"],
    zero=lambda case: case.expected[0][0] == 0,
    no_number=lambda case: bad(case) == "a NaN",
    infinite=lambda case: bad(case) == "an infinity",
    no_float32=large,
    short_enough=lambda case: 0 < case.facts["factor"] < 1 and not bad(case),
)
ex.at_most(messages=lambda case: 2 * case.n * (case.n - 1), bytes=shared.sixteen)

# Texts of the answer, for edits

START, ADD = "total = torch.zeros(1, dtype=torch.float64)", "g.double().square().sum()"
REDUCE, FINITE, NORM = "dist.all_reduce(total)  #", "total.isfinite()", "item() / scale"
SCALE, RETURN = "g.mul_(limit / max(norm, limit) / scale)", "return norm"

# Mistakes of its own

silent = lambda attempt: [value is None for value, _ in attempt.came]
disagree = both(wrong, lambda attempt: len({*silent(attempt)}) == 2)
own = "fine = all(g.isfinite().all() for g in grads if g is not None)"
alone = {START: f"{own}\n    {START}", FINITE: "fine"}
ex.mistake("own decision", disagree, alone).says("""
    Some ranks step and others do not.
    Hint: Whose numbers decide? The sum over all ranks tells what any of them has seen,
    because an infinity or a NaN stays in it.
""")
goes_on = both(wrong, lambda attempt: not any(silent(attempt)))
ex.mistake("goes on", only(bad, goes_on), {FINITE: "True"}).says("""
    It does not return None wherever a gradient is infinite or NaN.
    Hint: What does the sum of the squares look like then? It is not finite if any
    gradient on any rank is not. `isfinite` is false for an infinity and for a NaN, and
    `isinf` is false for a NaN.
""")
ex.wrong("goes on", {f"not {FINITE}": "total.isinf()"})
ex.wrong("goes on", {f"not {FINITE}": "total.isnan()"})
lost = lambda value: value is None or near(value, math.inf, 0)
gives_up = both(wrong, lambda attempt: all(lost(value) for value, _ in attempt.came))
single = {START: START.replace("64", "32"), ADD: "g.square().sum()"}
ex.mistake("float32", only(large, gives_up), single).says("""
    Large gradients, all of them finite, count as an overflow.
    Hint: How large may a float32 be, and how large is the square of yours? Convert to
    float64 before you square.
""")
ex.wrong("float32", {ADD: "g.square().sum()"})
early = {ADD: "g.div_(scale).double().square().sum()"}
early |= {NORM: "item()", SCALE: SCALE.replace(" / scale", "")}
ex.slip("touched", early).says("""
    The gradients of a step that is left out have changed.
    Hint: In which order do you decide and divide? Change the gradients only after the
    decision. The norm can be divided by the scale as well.
""")
ex.slip("scaled norm", {NORM: "item()"}).says("""
    It compares the limit with the norm of the gradients before they are divided by the
    scale.
    Hint: For which gradient is the limit meant? For that of the loss itself, so divide
    the norm by the scale first.
""")
ex.slip("scaled norm", {NORM: "item()", RETURN: "return norm / scale"})
long_ones = {SCALE: "g.mul_(limit / norm / scale if norm > limit else 1)"}
ex.slip("not divided", long_ones).says("""
    Gradients that are short enough are not divided by the scale.
    Hint: Which gradients carry the scale? All, so all are divided by it, and long ones
    are clipped as well.
""")
ex.slip("not clipped", {SCALE: "g.div_(scale)"}).says("""
    The gradients are divided by the scale, but whether they are clipped does not depend
    on their norm.
    Hint: Which gradients are too long? If the norm is above the limit, multiply by the
    limit and divide by the norm, and otherwise do not.
""")
ex.slip("not clipped", {SCALE: "g.mul_(limit / norm / scale if norm else 0)"})

# Answers to which the general sentences apply

ex.wrong("wrong", {NORM: "item() / scale + 1e-4"})
ex.wrong("not in place", {SCALE: SCALE.replace("g.mul_(", "g.data = g * (")})
leaves = "if not any(g is not None and len(g) for g in grads): return 0.0"
ex.wrong("hangs", {START: f"{leaves}\n    {START}"})
flag = "flag = torch.zeros(1); dist.all_reduce(flag); "
ex.wrong("costly", {REDUCE: f"{flag}{REDUCE}"})
ex.right({NORM: "item() / scale", RETURN: "return torch.tensor(norm)"})
seen = "total.fill_(math.nan) if not total.isfinite() else 0; "
ex.right({REDUCE: f"import math; {seen}{REDUCE}"})
