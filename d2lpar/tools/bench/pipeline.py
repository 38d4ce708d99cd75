"""`d2lpar bench`: a training step of a pipeline, ours against PyTorch's.

Same stages, same micro-batches, same optimizer, on the same ranks.  They take turns in
one run, and a step is the whole of it: gradients cleared, all actions, update.
Afterwards all copies have the same weights.
"""

import statistics
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ...pipeline import Pipeline
from ...schedule import make
from ...world import launch
from . import bench

TORCH = "torch Schedule1F1B"
OURS = ("1f1b", "gpipe", "zb-h1")
LAYERS, MICRO, ROWS = 2, 8, 64  # of a stage, of a batch, of a micro-batch


def plan(ranks=None, quick=False):
    """A list of (name, function that returns figures), as of `bench.plan`."""
    widths = (256,) if quick else (256, 512, 1024)
    found, seconds = [], 1.0 if quick else 8.0
    for n in bench._ranks(ranks or "2"):
        for width in widths:
            name = f"a pipeline, {n} ranks, width {width}"
            found.append((name, partial(race, n, width, seconds)))
    return found


def race(n, width, seconds, backend="gloo"):
    """Training steps of an MLP of n stages, side by side on n ranks."""
    options = {"world_size": n, "backend": backend, "timeout": bench.TIMEOUT}
    run = launch.run(_race, width, seconds, **options)
    times = bench.durations(run.results)
    rows = []
    for name, each in times.items():
        rows.append(
            {
                "ranks": n,
                "width": width,
                "schedule": name,
                "seconds": statistics.median(each),
                "fastest": min(each),
                "ratio": bench.ratio(times[TORCH], each),
                "rounds": len(each),
            }
        )
    return {"pipeline": rows}


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


def _race(width, seconds):
    x = torch.randn(MICRO * ROWS, width)
    y, r = torch.zeros_like(x), dist.get_rank()
    stages = {name: stage_of(r, width) for name in (TORCH, *OURS)}
    steps = {TORCH: torchs_step(stages[TORCH], x, y)}
    for name in OURS:
        steps[name] = our_step(name, stages[name], x, y)
    programs = {}
    for name, stage in stages.items():
        optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
        programs[name] = partial(_whole_step, steps[name], optimizer)
    nothing = lambda *_: None
    times = bench.take_turns(programs, nothing, nothing, seconds)
    for name, stage in stages.items():
        pairs = zip(stage.parameters(), stages[TORCH].parameters(), strict=True)
        if not all(bench.near(a.grad, b.grad) and bench.near(a, b) for a, b in pairs):
            raise AssertionError(f"{name} does not train as {TORCH} does")
    return times


def _whole_step(step, optimizer):
    optimizer.zero_grad()
    step()
    optimizer.step()


def tables(results):
    """The results as rich tables."""
    for n in sorted({row["ranks"] for row in results.get("pipeline", ())}):
        rows = [row for row in results["pipeline"] if row["ranks"] == n]
        title = f"A pipeline on {n} Gloo ranks: time, and how many times as fast"
        yield bench.table_by_width(title, rows, "schedule", TORCH)
