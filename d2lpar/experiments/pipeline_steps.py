"""Chapter 13: micro-batches of one stage, recomputation, and schedules on all GPUs."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..launch import run as launch
from ..pipeline import Pipeline
from ..pipeline.schedule import make
from .measuring import Case, experiment, half


def stage_and_rows(layers, tokens, width, m):
    """Return a GPT's MLPs, m micro-batches and the gradient after one."""
    made = []
    for _ in range(layers):
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        made += [nn.Sequential(up, nn.GELU(), down)]
    x = torch.randn(tokens, width, dtype=half()).chunk(m)
    stage, dy = nn.Sequential(*made).to(dtype=half()), torch.randn_like(x[0])
    return stage, [part.requires_grad_() for part in x], dy


@experiment(small={"tokens": 32, "width": 16})
def stage_micro_batches(tokens=8192, width=2048, counts=(1, 2, 4, 8, 16, 32)):
    """A batch through one stage, forward and backward, in m micro-batches."""

    def prepare(m):
        stage, x, dy = stage_and_rows(2, tokens, width, m)

        def step():
            stage.zero_grad()
            for part in x:
                part.grad = None
                stage(part).backward(dy)

        return step

    return {f"m={m}": partial(prepare, m) for m in counts}


def kept(stage, x):
    """Run the stage; it keeps all activations for the backward pass."""
    return stage(x)


def recomputed(stage, x):
    """Run the stage; it keeps x, and runs again in the backward pass."""
    return checkpoint(stage, x, use_reentrant=False)


def recomputed_by_layer(stage, x):
    """Run the stage; each of its layers keeps its input alone."""
    for layer in stage:
        x = checkpoint(layer, x, use_reentrant=False)
    return x


@experiment(small={"tokens": 32, "width": 16})
def recomputation(tokens=8192, width=2048, m=8):
    """All micro-batches forward and then all backward, as in GPipe."""

    def prepare(run):
        stage, x, dy = stage_and_rows(4, tokens, width, m)

        def step():
            stage.zero_grad()
            outs = [run(stage, part) for part in x]
            while outs:
                outs.pop(0).backward(dy)
            for part in x:
                part.grad = None

        return step

    runs = kept, recomputed, recomputed_by_layer
    return {run.__name__: partial(prepare, run) for run in runs}


# A race of schedules: two layers on each rank, and eight micro-batches.
LAYERS, MICRO = 2, 8
TORCHS = "torch Schedule1F1B"


def tanh_layers(rank, width, layers=LAYERS):
    """Return a rank's layers; their values depend on the rank alone."""
    torch.manual_seed(rank)
    pairs = [(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*[layer for pair in pairs for layer in pair])


def squares(out, y):
    """Return the sum of the squares of the differences."""
    return (out - y).float().square().sum()


def our_step(name, stage, x, y, micro=MICRO):
    """Make a function of all gradients, with a schedule of that name."""
    made = make(name, dist.get_world_size(), micro)
    return partial(Pipeline(made, [stage], squares).step, x, y)


def torchs_step(stage, x, y, micro=MICRO):
    """Make the same with PyTorch's stage and schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    r, last = dist.get_rank(), dist.get_world_size() - 1
    part = PipelineStage(stage, r, last + 1, launch.device())
    mean = lambda out, y: squares(out, y) / len(x)
    made = Schedule1F1B(part, micro, loss_fn=mean, scale_grads=False)
    given, wanted = [x] if r == 0 else [], {"target": y} if r == last else {}
    return partial(made.step, *given, **wanted)


@experiment(small={"rows": 4, "width": 16}, ranks=None)
def schedules(rows=1024, width=8192, micro=12):
    """A step of a pipeline through all GPUs, without the optimizer."""

    def prepare(name):
        stage = tanh_layers(dist.get_rank(), width, 1).to(dtype=half())
        x = torch.randn(micro * rows, width, dtype=half())
        given = stage, x, torch.zeros_like(x), micro
        ours = partial(our_step, name)
        step = (torchs_step if name == TORCHS else ours)(*given)

        def cleared():
            stage.zero_grad()
            step()

        return cleared

    names = "gpipe", "1f1b", "zb-h1"
    ours = {name: partial(prepare, name) for name in names}
    return ours | {TORCHS: Case(partial(prepare, TORCHS), simulated=False)}
