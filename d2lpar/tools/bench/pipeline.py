"""A training step of a pipeline, ours against PyTorch's.

Same stages, same micro-batches, same optimizer, on the same ranks. A step is the whole
of it: gradients cleared, all actions, update.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ...pipeline import Pipeline
from ...schedule import make
from ...world import launch
from .race import Race, step_of, trained

TORCH = "torch Schedule1F1B"
OURS = ("1f1b", "gpipe", "zb-h1")
LAYERS, MICRO, ROWS = 2, 8, 64  # of a stage, of a batch, of a micro-batch


def stage_of(rank, width):
    """A rank's layers; their values depend on the rank alone."""
    torch.manual_seed(rank)
    pairs = [(nn.Linear(width, width), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*[layer for pair in pairs for layer in pair])


def squares(out, y):
    """The sum of the squares of the differences."""
    return (out - y).square().sum()


def our_step(name, stage, x, y):
    """A function that makes all gradients, with a schedule of that name."""
    made = make(name, dist.get_world_size(), MICRO)
    return partial(Pipeline(made, [stage], squares).step, x, y)


def torchs_step(stage, x, y):
    """The same with PyTorch's stage and schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    r, last = dist.get_rank(), dist.get_world_size() - 1
    part = PipelineStage(stage, r, last + 1, launch.device())
    mean = lambda out, y: squares(out, y) / len(x)
    made = Schedule1F1B(part, MICRO, loss_fn=mean, scale_grads=False)
    given, wanted = [x] if r == 0 else [], {"target": y} if r == last else {}
    return partial(made.step, *given, **wanted)


def line_up(width):
    """Every rival with stages of the same weights."""
    x = torch.randn(MICRO * ROWS, width)
    y, r = torch.zeros_like(x), dist.get_rank()
    stages = {name: stage_of(r, width) for name in (TORCH, *OURS)}
    steps = {TORCH: torchs_step(stages[TORCH], x, y)}
    steps |= {name: our_step(name, stages[name], x, y) for name in OURS}
    return trained(stages, {name: step_of(stages[name], steps[name]) for name in steps})


RACE = Race("A pipeline", line_up, {f"width {w}": (w,) for w in (256, 512, 1024)})
