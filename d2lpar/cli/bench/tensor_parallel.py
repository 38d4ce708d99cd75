"""Our tensor parallel MLP and block against DTensor's.

The same weights, the same ranks, the same plan: columns, then rows, with one all-reduce
each way.  A step is the whole of it: gradients cleared, forward, backward, update.
"""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import nn

from ...launch import run as launch
from ...sim.patching import patched
from ...tensor_parallel import parallel_mlp, products
from ...tensor_parallel.attention import ParallelAttention, SelfAttention
from .race import Race, step_of, trained

TORCH, OURS = "parallelize_module", "tensor parallel"
NATIVE = "tensor parallel, dist.all_reduce"
HEADS, TEXTS, TOKENS = 8, 4, 64  # of attention; of a batch


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
    native = lambda x, group: dist.all_reduce(x, group=group)
    with patched((products, "allreduce", lambda _: native)):
        yield


RIVALS = {TORCH: torchs, OURS: ours, NATIVE: ours}


# Measuring


def line_up(model, width):
    """Every rival with a copy of one model."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(TEXTS, TOKENS, width, generator=generator)
    first = make(model, width)
    models = {name: split(copy.deepcopy(first)) for name, split in RIVALS.items()}
    return trained(models, {name: _step(name, models[name], x) for name in models})


def _step(name, model, x):
    around = native_allreduce if name == NATIVE else contextlib.nullcontext

    def backward():
        with around():
            model(x.requires_grad_()).square().mean().backward()
            x.grad = None

    return step_of(model, backward)


COURSES = {
    m: {f"width {w}": (m, w) for w in (256, 512, 1024)} for m in ("MLP", "block")
}
RACES = [Race(f"A split {model}", line_up, COURSES[model]) for model in COURSES]
