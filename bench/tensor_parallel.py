"""Our tensor parallel MLP and block against DTensor's.

The same weights, the same ranks, the same plan: columns, then rows, with one all-reduce
each way.  A step is the whole of it: gradients cleared, forward, backward, update.
"""

import contextlib
import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from d2lpar.launch import run as launch
from d2lpar.sim.patching import patched
from d2lpar.tensor_parallel import parallel_mlp, products
from d2lpar.tensor_parallel.attention import ParallelAttention, SelfAttention

from .race import LineUp, Race, step_of


class Block(nn.Module):
    """A block of a transformer: attention and an MLP, each after a norm."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = SelfAttention(width, 8), make("MLP", width)

    def forward(self, x):
        """x [texts, tokens, width] -> the same shape."""
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


def make(model, width):
    """The model on one device; the same weights on every rank."""
    torch.manual_seed(0)
    if model == "block":
        return Block(width)
    up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    return nn.Sequential(up, nn.GELU(), down)


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
    from torch.distributed.tensor import parallel as tp

    mesh = init_device_mesh(launch.device().type, (dist.get_world_size(),))
    columns, rows, whole = tp.ColwiseParallel(), tp.RowwiseParallel(), (Replicate(),)
    plan = {"0": columns, "2": rows}
    if isinstance(model, Block):
        plan = {"mlp.0": columns, "mlp.2": rows, "attention.out": rows}
        plan |= {f"attention.{x}": columns for x in ("queries", "keys", "values")}
        given = dict(input_layouts=whole, desired_input_layouts=whole)
        plan["attention"] = tp.PrepareModuleInput(**given)
    return tp.parallelize_module(model, mesh, plan)


NATIVE = "tensor parallel, dist.all_reduce"
RIVALS = {"parallelize_module": torchs, "tensor parallel": ours, NATIVE: ours}


def native_allreduce():
    """In this process our layers add up by `dist.all_reduce`, as DTensor does."""
    native = lambda x, group: dist.all_reduce(x, group=group)
    return patched((products, "allreduce", lambda _: native))


def line_up(model, width):
    """Every rival with a copy of one model."""
    x = torch.randn(4, 64, width, generator=torch.Generator().manual_seed(1))
    first = make(model, width)
    models = {name: split(copy.deepcopy(first)) for name, split in RIVALS.items()}

    def backward(name):
        with native_allreduce() if name == NATIVE else contextlib.nullcontext():
            models[name](x.requires_grad_()).square().mean().backward()
            x.grad = None

    steps = {name: step_of(models[name], partial(backward, name)) for name in models}
    return LineUp(steps)


COURSES = {
    m: {f"width {w}": (m, w) for w in (256, 512, 1024)} for m in ("MLP", "block")
}
RACES = [Race(f"A split {model}", line_up, COURSES[model]) for model in COURSES]
