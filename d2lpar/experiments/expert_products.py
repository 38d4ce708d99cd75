"""Chapter 18: the products of many experts on one GPU, and a layer on all of them."""

from functools import partial

import torch
import torch.distributed as dist

from ..experts import ExpertParallel, MoE
from .measuring import Case, experiment, half


def loads(rows, experts, popular=0.0):
    """Return the rows of each expert; the first one gets a part more."""
    first = int(popular * rows)
    each, more = divmod(rows - first, experts)
    return [first * (e == 0) + each + (e < more) for e in range(experts)]


@experiment(small={"rows": 512, "D": 16, "H": 8})
def expert_products(rows=16384, D=4096, H=2048):
    """Products of the same rows with one matrix, or with one per expert."""

    def prepare(experts, popular):
        sizes = loads(rows, experts, popular)
        x = torch.randn(rows, D, dtype=half(), requires_grad=True)
        dys = torch.randn(rows, H, dtype=half()).split(sizes)
        how = {"dtype": half(), "requires_grad": True}
        weights = [torch.randn(D, H, **how) for _ in sizes]

        def step():
            pairs = zip(x.split(sizes), weights, strict=True)
            ys = [part @ weight for part, weight in pairs]
            return torch.autograd.grad(ys, (x, *weights), dys)

        return step

    found = {f"{E} even": partial(prepare, E, 0.0) for E in (1, 8, 64, 256)}
    return found | {"64, popular": partial(prepare, 64, 0.5)}


@experiment(small={"tokens": 16, "D": 16, "H": 32}, ranks=None)
def expert_layer(tokens=4096, D=2048, H=8192):
    """A layer with two experts on each GPU and two for each token."""

    def prepare(favour):
        torch.manual_seed(0)
        moe = MoE(D, H, 2 * dist.get_world_size(), 2)
        moe.bias[0] = favour
        layer = ExpertParallel(moe).to(dtype=half())
        x = torch.randn(tokens, D, dtype=half(), requires_grad=True)
        return lambda: layer(x).sum().backward()

    even = partial(layer_seconds, tokens, D, H, lambda n: 1.0)
    uneven = partial(layer_seconds, tokens, D, H, popular_load)
    return {
        "balanced": Case(partial(prepare, 0.0), even),
        "popular": Case(partial(prepare, 10.0), uneven),
    }


def popular_load(n):
    """Return the rows of the popular expert's GPU, over the mean of n GPUs."""
    others = 1 / (2 * n - 1)  # of the second choices, for its other expert
    return n * (1 + others) / 2


def layer_seconds(tokens, D, H, load, cluster):
    """Return the seconds of the busiest GPU, forward and backward."""
    n, rows = cluster.n, 2 * tokens * load(cluster.n)
    flops = 3 * 2 * rows * 2 * D * H  # two products, once and twice
    products = cluster.compute_seconds(0, flops, 0, half())
    sent = 2 * rows * D * (n - 1) / n  # there; back, and both backward
    return products + 4 * sent / cluster.rate
