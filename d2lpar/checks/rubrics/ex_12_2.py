"""12.2 One all-reduce each way."""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from ...sim.cluster import find_gpu
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, ranks
from ..signs import both, breaks
from . import chapter_12 as split

SIZES = ((1, (3,), 4, 5), (2, (4,), 6, 4), (2, (2, 4), 6, 8), (3, (4,), 6, 9))
SIZES += ((4, (4,), 8, 12), (4, (2, 4), 8, 4))
# Messages cost their bytes, and operations are written down.
COUNTED = {"cluster": replace(split.FREE_START["cluster"], gpu=find_gpu("A100"))}
Y_ONLY = ("cut as one", "wrong half", "many biases")


def cases(rng):
    """Hidden features that the ranks divide, for a batch and for tokens."""
    for n, shape, D, H in SIZES:
        x, weights, down = split.drawn(rng, (*shape, D), (2 * H, D), (D, H))
        bias, dy = split.drawn(rng, D, (*shape, D))
        leaves = (x, weights, down, bias)
        yield Case(
            n,
            f"{ranks(n)}, x {list(x.shape)}, {H} hidden features",
            [(leaves, (), dy)] * n,
            facts={"share": 18 * (x.numel() // D) * D * (H // n)},
            options=COUNTED,
            truth=partial(gated_mlp, n, leaves, dy),
        )


def gated_mlp(n, leaves, dy, slip=""):
    """Per rank, y and the gradients: each works on 1/n of the hidden features."""

    def term(r, x, weights, down, bias):
        """What rank r adds to y, with its share of the bias."""
        numbers = torch.arange(len(weights))
        gates, ups = (half.chunk(n)[r] for half in numbers.chunk(2))
        if slip == "cut as one":
            gates, ups = numbers.chunk(n)[r].chunk(2)
        if slip == "wrong half":
            gates, ups = ups, gates
        hidden = F.silu(x @ weights[gates].T) * (x @ weights[ups].T)
        share = bias if slip == "many biases" else bias / n
        return hidden @ down.chunk(n, 1)[r].T + share

    found = split.summed(term, [leaves] * n, dy, whole_dx=slip != "partial dx")
    if slip in Y_ONLY:
        return [(y, ...) for y, _ in found]
    if slip == "other gradients":
        whole = sum(grads[1] for _, grads in found)
        return [(y, [dx, whole, ..., dbias]) for y, (dx, _, _, dbias) in found]
    return found


# Nine products, three of them forward, and those may be made once more on the way back.
SHARE = Requirement(
    "FLOPs of a rank's products",
    rows.products,
    lambda case: case.facts["share"] * 4 // 3,
    exactly=False,
    vital=True,
    least=lambda case: case.facts["share"],
)


def beside_its_share(attempt):
    """FLOPs that the busiest rank makes too many, or the laziest too few (negative)."""
    made, share = rows.products(attempt), attempt.case.facts["share"]
    return min(0, min(made) - share) or max(0, max(made) - SHARE.allowed(attempt.case))


exercise = Exercise(
    "12.2",
    cases,
    [SHARE, split.ONE_EACH_WAY],
    {
        "no way back": split.NO_WAY_BACK,
        **signs.slips(*Y_ONLY),
        **signs.slips("partial dx", "other gradients"),
        "enters twice": both(signs.right, lambda a: split.all_reduces(a) == 3),
        "whole work": both(signs.right, lambda a: beside_its_share(a) > 0),
        "no products": both(signs.right, lambda a: beside_its_share(a) < 0),
        "too much": breaks(split.ONE_EACH_WAY),
    },
    agrees=split.agrees,
    perform=split.both_ways,
    shows=split.by_name("y", "x.grad", "weights.grad", "down.grad", "bias.grad"),
)
