"""A training step of a pipeline, ours against PyTorch's.

Same stages, same micro-batches, same optimizer, on the same ranks. A step is the whole
of it: gradients cleared, all actions, update.
"""

import torch
import torch.distributed as dist

from ...experiments.pipeline_steps import (
    MICRO,
    TORCHS,
    our_step,
    tanh_layers,
    torchs_step,
)
from .race import Race, step_of, trained

TORCH = TORCHS
OURS = ("1f1b", "gpipe", "zb-h1")
ROWS = 64  # of a micro-batch


def line_up(width):
    """Every rival with stages of the same weights."""
    x = torch.randn(MICRO * ROWS, width)
    y, r = torch.zeros_like(x), dist.get_rank()
    stages = {name: tanh_layers(r, width) for name in (TORCH, *OURS)}
    steps = {TORCH: torchs_step(stages[TORCH], x, y)}
    steps |= {name: our_step(name, stages[name], x, y) for name in OURS}
    return trained(stages, {name: step_of(stages[name], steps[name]) for name in steps})


RACE = Race("A pipeline", line_up, {f"width {w}": (w,) for w in (256, 512, 1024)})
