"""Rows of `d2lpar bench`: our tensor parallel MLP and block against DTensor's.

The same weights, the same ranks, the same plan: columns, then rows, with one all-reduce
each way.  The rivals take turns in one run, and a step is the whole of it: gradients
cleared, forward, backward, update.  Afterwards all have the same weights.
"""

import contextlib
import copy
import statistics
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ... import tensor_parallel
from ...tensor_parallel import ParallelAttention, SelfAttention, parallel_mlp
from ...world import launch
from . import bench

TORCH, OURS = "parallelize_module", "tensor parallel"
NATIVE = "tensor parallel, dist.all_reduce"
MODELS = ("MLP", "block")
HEADS, TEXTS, TOKENS = 8, 4, 64  # of attention; of a batch


def plan(ranks=None, quick=False):
    """A list of (name, function that returns figures), as `bench.plan` makes."""
    widths = (256,) if quick else (256, 512, 1024)
    found, seconds = [], 1.0 if quick else 8.0
    for n in bench._ranks(ranks or "2"):
        for model in MODELS:
            for width in widths:
                name = f"a split {model}, {n} ranks, width {width}"
                found.append((name, partial(race, n, model, width, seconds)))
    return found


def race(n, model, width, seconds):
    """Training steps of a model of this width, side by side on n ranks."""
    options = {"world_size": n, **bench.ON_CPU}
    run = launch.run(_race, model, width, seconds, **options)
    times = bench.durations(run.results)
    rows = []
    for name, each in times.items():
        rows.append(
            {
                "ranks": n,
                "width": width,
                "model": model,
                "trainer": name,
                "seconds": statistics.median(each),
                "fastest": min(each),
                "ratio": bench.ratio(times[TORCH], each),
                "rounds": len(each),
            }
        )
    return {"tensor_parallel": rows}


# The models, whole


class Block(nn.Module):
    """A block of a transformer: attention and an MLP, each after a norm."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = SelfAttention(width, HEADS), make_mlp(width)

    def forward(self, x):
        """x [texts, tokens, width] -> the same shape."""
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


def make_mlp(width):
    """Two layers with four times as many features between them."""
    up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    return nn.Sequential(up, nn.GELU(), down)


def make(model, width):
    """The model on one device; the same weights on every rank."""
    torch.manual_seed(0)
    return make_mlp(width) if model == "MLP" else Block(width)


# The models, split


def ours(model):
    """Split by chapter 12's modules."""
    if isinstance(model, nn.Sequential):
        return parallel_mlp(*model)
    model.attention = ParallelAttention(model.attention)
    model.mlp = parallel_mlp(*model.mlp)
    return model


def torchs(model):
    """Split by `parallelize_module`, in the same way.

    x becomes a DTensor once for queries, keys and values, so that its gradient is
    added up once, too.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(launch.device().type, (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if isinstance(model, Block):
        plan = {f"mlp.{name}": style for name, style in plan.items()}
        whole = (Replicate(),)
        plan["attention"] = PrepareModuleInput(
            input_layouts=whole, desired_input_layouts=whole
        )
        for name in ("queries", "keys", "values"):
            plan[f"attention.{name}"] = ColwiseParallel()
        plan["attention.out"] = RowwiseParallel()
    return parallelize_module(model, mesh, plan)


@contextlib.contextmanager
def native_allreduce():
    """In this process our layers add up by `dist.all_reduce`, as DTensor does."""
    usual = tensor_parallel.allreduce
    tensor_parallel.allreduce = lambda x, group: dist.all_reduce(x, group=group)
    try:
        yield
    finally:
        tensor_parallel.allreduce = usual


RIVALS = {TORCH: torchs, OURS: ours, NATIVE: ours}


# Measuring


def _race(model, width, seconds):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TEXTS, TOKENS, width, generator=generator)
    first, models, programs = make(model, width), {}, {}
    for name, split in RIVALS.items():
        models[name] = split(copy.deepcopy(first))
        optimizer = torch.optim.SGD(models[name].parameters(), lr=1e-3)
        around = native_allreduce if name == NATIVE else contextlib.nullcontext
        programs[name] = partial(_step, models[name], optimizer, x, around)
    nothing = lambda *_: None
    times = bench.take_turns(programs, nothing, nothing, seconds)
    theirs = dict(models[TORCH].named_parameters())
    for name, split in models.items():
        for key, p in split.named_parameters():
            if not (_near(p, theirs[key]) and _near(p.grad, theirs[key].grad)):
                raise AssertionError(f"{name} does not train {key} as {TORCH} does.")
    return times


def _near(a, b):
    """This rank's parts are equal, but for rounding in single precision."""
    a, b = (x.to_local() if hasattr(x, "to_local") else x for x in (a, b))
    return a.shape == b.shape and (a - b).abs().max() <= 1e-3 * b.abs().max() + 1e-9


def _step(model, optimizer, x, around):
    with around():
        optimizer.zero_grad()
        model(x.requires_grad_()).square().mean().backward()
        optimizer.step()
        x.grad = None


def tables(results):
    """The results as rich tables."""
    rows = results.get("tensor_parallel", ())
    for n, model in dict.fromkeys((row["ranks"], row["model"]) for row in rows):
        some = [row for row in rows if (row["ranks"], row["model"]) == (n, model)]
        title = f"A split {model} on {n} Gloo ranks: time, and how many times as fast"
        yield bench.table_by_width(title, some, "trainer", TORCH)
