"""A training step with the DDPs of chapter 08, against torch's.

Each rival has a copy of the same model and optimizer and the same share of the data. A
step is the whole of it: gradients cleared, forward, backward, all-reduce, update.
"""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ... import overlap
from ...allreduce.shared_memory import shared_memory_allreduce
from .race import Race, step_of, trained

MB = 2**20
BUCKET = MB  # bytes; torch's own counts in MB of this size
LAYERS, ROWS = 6, 64


def rivals():
    """Name to function that wraps a model: torch's DDP, then the course's."""
    from torch.nn.parallel import DistributedDataParallel

    theirs = partial(DistributedDataParallel, bucket_cap_mb=BUCKET / MB)
    overlapped = partial(overlap.OverlappedDDP, bucket_bytes=BUCKET)
    return {
        "torch DDP": theirs,
        "torch DDP, gradients as views": partial(theirs, gradient_as_bucket_view=True),
        "naive": overlap.NaiveDDP,
        "flat": overlap.FlatDDP,
        "bucketed": partial(overlap.BucketedDDP, bucket_bytes=BUCKET),
        "overlapped": overlapped,
        "overlapped, shared memory": partial(
            overlapped, allreduce=shared_memory_allreduce
        ),
    }


def network(width):
    """An MLP of equal layers."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())])


def line_up(width):
    """Every rival with a copy of one network."""
    x, first = torch.randn(ROWS, width) + dist.get_rank(), network(width)
    models = {name: wrap(copy.deepcopy(first)) for name, wrap in rivals().items()}
    return trained(models, {name: _step(model, x) for name, model in models.items()})


def _step(model, x):
    def backward():
        model(x).square().mean().backward()
        if isinstance(model, overlap.NaiveDDP):
            model.finish()

    return step_of(model, backward)


RACE = Race("A training step", line_up, {f"width {w}": (w,) for w in (256, 512, 1024)})
