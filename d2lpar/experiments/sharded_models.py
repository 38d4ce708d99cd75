"""Chapter 10: what one of n ranks holds in each stage, and the stages on all GPUs."""

import contextlib
from functools import partial

import torch
from torch import nn

from ..sharding import zero as sharding
from .measuring import Case, experiment, half


@experiment(small={"width": 32, "depth": 2, "tokens": 4})
def one_of_many(n=8, width=3072, depth=6, tokens=128):
    """A training step of one of n ranks, alone on its GPU, in each stage."""

    def prepare(kind, n):
        with as_one_of(n):
            model = kind(stack(transformer, width, depth, lighten))
        adam = torch.optim.Adam(model.shards, foreach=False)
        x = torch.randn(1, tokens, width)

        def step():
            with as_one_of(n):
                one_step(model, adam, x)

        return step

    kinds = (sharding.ZeRO1, 1), (sharding.ZeRO1, n)
    kinds += (sharding.ZeRO2, n), (sharding.FSDP, n)
    numbered = enumerate(kinds)
    return {f"stage {k}": partial(prepare, *kind) for k, kind in numbered}


def one_step(model, adam, x):
    """Make a step of a sharded model."""
    model(x).sum().backward()
    model.finish()
    with torch.device("cpu"):  # Adam counts its steps on the host
        model.step(adam)


def stack(make, width, depth, then):
    """Return blocks in a row; `then(block)` follows each of them."""
    blocks = []
    for _ in range(depth):
        blocks.append(make(width))
        then(blocks[-1])
    return nn.Sequential(*blocks)


def transformer(width):
    """Return a block with 12 width^2 weights, and a few more."""
    options = {"dropout": 0.0, "batch_first": True}
    heads = max(1, width // 128)
    return nn.TransformerEncoderLayer(width, heads, 4 * width, **options)


def lighten(block):
    """Replace each parameter by its mean, expanded: a view of one number."""
    for module in block.modules():
        for name, p in [*module.named_parameters(recurse=False)]:
            one = p.detach().mean().expand(p.shape)
            setattr(module, name, nn.Parameter(one))


class Alone:
    """What `sharding` needs of torch.distributed, for rank 0 of n alone."""

    def __init__(self, n):
        self.n = n

    def get_world_size(self, group=None):
        return self.n

    def get_rank(self, group=None):
        return 0

    def all_gather_into_tensor(self, full, own, **options):
        for shard in full.chunk(self.n):  # in place of the other ranks'
            shard.copy_(own)
        return self

    def reduce_scatter_tensor(self, own, full, **options):
        own.copy_(full[: len(own)])
        return self

    def wait(self):
        """Nothing is on its way."""


@contextlib.contextmanager
def as_one_of(n):
    """Let `sharding` see `Alone(n)` in place of torch.distributed."""
    before, sharding.dist = sharding.dist, Alone(n)
    try:
        yield
    finally:
        sharding.dist = before


@experiment(small={"width": 32, "depth": 2, "rows": 4}, ranks=None)
def stages_together(width=8192, depth=12, rows=4096):
    """A training step in 16 bits on all GPUs, in our stages and PyTorch's."""

    def ours(kind, **options):
        model = stack(square, width, depth, lighten)
        model = kind(model, dtype=half(), **options)
        adam = torch.optim.Adam(model.shards, foreach=False)
        x = torch.randn(rows, width, dtype=half())
        return lambda: one_step(model, adam, x)

    return {
        "stage 1": partial(ours, sharding.ZeRO1),
        "stage 2": partial(ours, sharding.ZeRO2),
        "stage 3, late": partial(ours, sharding.FSDP, prefetch=False),
        "stage 3": partial(ours, sharding.FSDP),
        "fully_shard": Case(
            partial(fully_sharded, width, depth, rows), simulated=False
        ),
    }


def square(width):
    """Return a layer with width^2 weights."""
    return nn.Linear(width, width, bias=False)


def fully_sharded(width, depth, rows):
    """Return the same step by `fully_shard`."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half_wide = MixedPrecisionPolicy(param_dtype=half(), reduce_dtype=half())
    shard = partial(fully_shard, mp_policy=half_wide)
    model = shard(stack(square, width, depth, shard))
    adam = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(rows, width, dtype=half())

    def step():
        model(x).sum().backward()
        with torch.device("cpu"):
            adam.step()
        adam.zero_grad()

    return step
