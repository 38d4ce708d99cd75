"""Chapter 12: what a part of a product takes, and an MLP split over all GPUs."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ..tensor_parallel import parallel_mlp
from .measuring import Case, experiment, half


@experiment(small={"tokens": 32, "width": 64})
def shards(tokens=8192, width=8192, ways=(1, 2, 4, 8)):
    """One of n parts of an MLP's first product, forward and backward."""

    def prepare(n):
        x = torch.randn(tokens, width, dtype=half(), requires_grad=True)
        part = 4 * width // n
        w = torch.randn(width, part, dtype=half(), requires_grad=True)
        dy = torch.randn(tokens, part, dtype=half())
        return lambda: torch.autograd.grad(x @ w, (x, w), dy)

    return {f"1/{n}": partial(prepare, n) for n in ways}


@experiment(small={"tokens": 16, "width": 64}, ranks=None)
def split_mlp(tokens=8192, width=8192):
    """A step of an MLP that all GPUs share, ours and PyTorch's."""

    def prepare(split):
        torch.manual_seed(0)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        model = split(nn.Sequential(up, nn.GELU(), down).to(dtype=half()))
        x = torch.randn(tokens, width, dtype=half(), requires_grad=True)
        return lambda: model(x).sum().backward()

    ours = lambda model: parallel_mlp(*model)
    return {
        "every GPU the whole": partial(prepare, lambda model: model),
        "ours": partial(prepare, ours),
        "torch's": Case(partial(prepare, split_by_torch), simulated=False),
    }


def split_by_torch(model):
    """Split two layers and what is between them: columns, then rows."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    device = next(model.parameters()).device.type
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)
