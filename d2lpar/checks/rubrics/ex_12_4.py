"""12.4 Dropout."""

from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, wrong
from . import chapter_12 as split

SIZES = ((1, 5, 4, 6, 0.5), (2, 6, 4, 8, 0.0), (2, 8, 6, 12, 0.5))
SIZES += ((3, 8, 6, 12, 0.25), (4, 8, 8, 16, 0.75), (4, 12, 4, 24, 0.1))


def cases(rng):
    """Rates from 0 to 0.75; numbers that are p exactly."""
    yield dropout_case(np.random.default_rng(1), 1, 4, 3, 4, 0.25, steps=4)
    for size in SIZES:
        yield dropout_case(rng, *size)


def dropout_case(rng, n, N, D, H, p, steps=None):
    """One MLP, its gradients, and the random numbers of its dropout."""
    x, up, down, bias, dy = split.drawn(rng, (N, D), (H, D), (D, H), D, (N, D))
    draw = partial(uniform, int(rng.integers(10**6)), steps)
    parts = zip(up.chunk(n), down.chunk(n, 1), strict=True)
    leaves = [(x, *own, bias) for own in parts]
    return Case(
        n,
        f"{ranks(n)}, x {N} x {D}, {H} hidden features, p = {p:g}",
        [(own, (p, draw), dy) for own in leaves],
        facts={"p": p, "steps": steps},
        options=split.FREE_START,
        truth=partial(dropped_mlp, p, draw, leaves, dy),
    )


def uniform(seed, steps, k, shape):
    """Numbers from 0 to 1 for dropout k, the same on all ranks; or so many values."""
    generator = torch.Generator().manual_seed(1000 * seed + k)
    noise = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    return (noise * steps).floor() / steps if steps else noise


def dropped_mlp(p, draw, leaves, dy, slip=""):
    """Per rank, y and the gradients of x, its own parts and the bias."""
    n = len(leaves)

    def kept(x, noise):
        """What dropout leaves of x."""
        return x * (noise >= p) / (1 - p)

    def term(r, x, up, down, bias):
        """What rank r adds to y, with its share of the bias."""
        h = F.gelu(x @ up.T)
        noise = draw(0, (len(x), n * len(up))).chunk(n, 1)[r]
        if slip == "same pattern":
            noise = draw(0, h.shape)
        y, noise = kept(h, noise) @ down.T, draw(1, x.shape)
        if slip == "bias after":
            return kept(y, noise) + bias / n
        return kept(y + bias / n, noise)

    return split.summed(term, leaves, dy, whole_dx=slip != "dx")


def same_zeros(outcome, other):
    """The same places of both y are zero."""
    return torch.equal(outcome[0] == 0, other[0] == 0)


def ends_alike(attempt):
    """Where p is 0 all is right; elsewhere y has the right zeros, and is far off."""
    y, true = (x[0][0] for x in (attempt.came, attempt.case.expected))
    return (
        signs.only(lambda case: case.facts["p"] > 0, wrong)(attempt)
        and all(map(same_zeros, attempt.came, attempt.case.expected))
        and not split.near(y, true, 1e-5)
    )


def likeness(attempt):
    """Of the gradients of `down` to the right ones: 1 where a factor makes the rest."""
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    pairs = [(a[1][2].flatten(), b[1][2].flatten()) for a, b in pairs]
    return min(abs(F.cosine_similarity(a, b, 0)) for a, b in pairs)


def ends_right(attempt):
    """The gradient of the bias knows the last dropout only."""
    return split.near(attempt.came[0][1][3], attempt.case.expected[0][1][3])


exercise = Exercise(
    "12.4",
    cases,
    [split.ONE_EACH_WAY],
    {
        "no way back": split.NO_WAY_BACK,
        **signs.slips("same pattern", "dx"),
        **signs.slips_somewhere("bias after"),  # on one rank, where others hide it
        "at p": both(wrong, signs.only(lambda case: case.facts["steps"])),
        "ranks differ": lambda a: (
            wrong(a) and not all(same_zeros(x, a.came[0]) for x in a.came)
        ),
        "not scaled": both(wrong, ends_alike, lambda a: likeness(a) > 1 - 1e-9),
        "another pattern": both(
            wrong, ends_alike, ends_right, lambda a: likeness(a) < 1 - 1e-9
        ),
        "too much": breaks(split.ONE_EACH_WAY),
    },
    agrees=split.agrees,
    perform=split.both_ways,
    shows=split.by_name("y", "x.grad", "up.grad", "down.grad", "bias.grad"),
)
