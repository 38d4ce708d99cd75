"""What exercise 12.4 asks for: dropout that does not depend on the number of ranks."""

from functools import partial

import torch
from torch.nn import functional as F

from ..judging import Case, Exercise, Mistake, ranks
from ..signs import right
from .split_layers import (
    FREE_START,
    agrees,
    all_reduces,
    both_ways,
    drawn,
    gradients,
    near,
    no_way_back,
    one_each_way,
    outcomes_are,
)


def cases(rng):
    """Rates from 0 to 0.75."""
    for n, N, D, H, p in [
        (1, 5, 4, 6, 0.5),
        (2, 6, 4, 8, 0.0),
        (2, 8, 6, 12, 0.5),
        (3, 8, 6, 12, 0.25),
        (4, 8, 8, 16, 0.75),
        (4, 12, 4, 24, 0.1),
    ]:
        yield _case(rng, n, N, D, H, p)


def uniform(seed, k, shape):
    """Numbers from 0 to 1 for dropout k, the same on all ranks."""
    generator = torch.Generator().manual_seed(1000 * seed + k)
    return torch.rand(tuple(shape), generator=generator, dtype=torch.float64)


def dropped(x, p, noise, scaled=True):
    """What is left of x, where `noise` is p or more."""
    return x * (noise >= p) / (1 - p if scaled else 1)


def mlp(p, draw, x, up, down, bias, middle=None, scaled=True, bias_last=False):
    """On one device; the other arguments make one of the usual mistakes."""
    h = F.gelu(x @ up.T)
    noise = draw(0, h.shape) if middle is None else middle(h.shape)
    y = dropped(h, p, noise, scaled) @ down.T
    noise = draw(1, y.shape)
    if bias_last:
        return dropped(y, p, noise, scaled) + bias
    return dropped(y + bias, p, noise, scaled)


def _case(rng, n, N, D, H, p):
    leaves = drawn(rng, N, D), drawn(rng, H, D), drawn(rng, D, H), drawn(rng, D)
    dy, draw = drawn(rng, N, D), partial(uniform, int(rng.integers(10**6)))
    y, (dx, dup, ddown, dbias) = gradients(partial(mlp, p, draw), leaves, dy)
    x, up, down, bias = leaves
    inputs, expected = [], []
    for r in range(n):
        mine = x, up.chunk(n)[r], down.chunk(n, 1)[r], bias
        inputs.append(([leaf.clone() for leaf in mine], (p, draw), dy))
        own = [dx, dup.chunk(n)[r], ddown.chunk(n, 1)[r], dbias]
        expected.append((y, own))
    return Case(
        n,
        f"{ranks(n)}, x {N} x {D}, {H} hidden features, p = {p:g}",
        inputs,
        expected,
        facts={"leaves": leaves, "p": p, "draw": draw, "one": N * D},
        options={"cluster": FREE_START},
    )


# What the usual mistakes give


def _y_is(p_over=0.0, **changes):
    """y is what these changes give, on every rank."""

    def fake(case):
        facts = dict(case.facts)
        made = {name: change(case) for name, change in changes.items()}
        y = mlp(facts["p"], facts["draw"], *facts["leaves"], **made)
        return [(y, [None] * 4)] * case.n

    return lambda a: a.case.facts["p"] > p_over and outcomes_are(fake)(a)


def _repeated(case):
    """Each rank draws [N, H/n], and gets what the others get."""
    draw, n = case.facts["draw"], case.n
    return lambda shape: draw(0, (shape[0], shape[1] // n)).repeat(1, n)


def _ranks_differ(attempt):
    if attempt.error is not None or attempt.right:
        return False
    ys = [y for y, _ in attempt.came]
    return all(map(torch.is_tensor, ys)) and any(not near(y, ys[0]) for y in ys)


def _other_middle(attempt):
    """The ranks agree, and only the pattern in the middle is another."""
    if attempt.error is not None or attempt.right or _ranks_differ(attempt):
        return False
    (y, _), (true, _) = attempt.came[0], attempt.case.expected[0]
    return (
        attempt.case.facts["p"] > 0
        and torch.is_tensor(y)
        and y.shape == true.shape
        and bool(((y == 0) == (true == 0)).all())
    )


def _dx_differs(attempt):
    """y is right, and dx is not."""
    if attempt.error is not None or attempt.right:
        return False
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return all(
        near(y, true) and not near(grads[0], wanted[0])
        for (y, grads), (true, wanted) in pairs
    )


exercise = Exercise(
    "12.4",
    "Dropout",
    cases,
    [one_each_way],
    [
        no_way_back,
        Mistake(
            "same pattern",
            _y_is(middle=_repeated),
            "All ranks drop the same places among their hidden features.",
            "On one device each feature has a pattern of its own. Draw for all of "
            "them, and take this rank's part.",
        ),
        Mistake(
            "not scaled",
            _y_is(scaled=lambda case: False),
            "What is left is not made larger by 1 / (1 - p).",
        ),
        Mistake(
            "bias after",
            _y_is(bias_last=lambda case: True),
            "The bias is added after the last dropout, and should be dropped with it.",
        ),
        Mistake(
            "ranks differ",
            _ranks_differ,
            "The ranks end with different y.",
            "y is whole on all ranks. What is whole is dropped alike on all of them.",
        ),
        Mistake(
            "dx",
            _dx_differs,
            "y is right, and dx is not.",
            "The mask belongs to the way back as well, and dx is a sum over ranks.",
        ),
        Mistake(
            "another pattern",
            _other_middle,
            "In the middle it drops others than one device does.",
            "`draw(0, ...)` is asked for the shape that one device asks for: [N, H].",
        ),
        Mistake(
            "too much",
            lambda a: right(a) and all_reduces(a) > 2.01,
            "It is right, and more is sent than one all-reduce each way.",
            "Masks need not travel: every rank can draw them.",
        ),
    ],
    agrees=agrees,
    perform=both_ways,
)
