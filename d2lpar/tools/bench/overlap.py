"""`d2lpar bench`: a training step with the DDPs of chapter 08, against torch's.

Each rival has a copy of the same model and optimizer and the same share of the data.
They take turns in one run, and a step is the whole of it: gradients cleared, forward,
backward, all-reduce, update.  Afterwards all copies have the same weights.
"""

import copy
import statistics
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ... import overlap
from ...shared_memory import shared_memory_allreduce
from ...world import launch
from . import bench

TORCH = "torch DDP"
MB = 2**20
BUCKET = MB  # bytes; torch's own counts in MB of this size
LAYERS, ROWS = 6, 64


def rivals():
    """Name to function that wraps a model: torch's DDP, then the course's."""
    from torch.nn.parallel import DistributedDataParallel

    theirs = partial(DistributedDataParallel, bucket_cap_mb=BUCKET / MB)
    sized = {"bucket_bytes": BUCKET}
    return {
        TORCH: theirs,
        "torch DDP, gradients as views": partial(theirs, gradient_as_bucket_view=True),
        "naive": overlap.NaiveDDP,
        "flat": overlap.FlatDDP,
        "bucketed": partial(overlap.BucketedDDP, **sized),
        "overlapped": partial(overlap.OverlappedDDP, **sized),
        "overlapped, shared memory": partial(
            overlap.OverlappedDDP, allreduce=shared_memory_allreduce, **sized
        ),
    }


def plan(ranks=None, quick=False):
    """A list of (name, function that returns figures), as `bench.plan` makes."""
    widths = (256,) if quick else (256, 512, 1024)
    found, seconds = [], 1.0 if quick else 8.0
    for n in bench._ranks(ranks or "2"):
        for width in widths:
            name = f"a training step, {n} ranks, width {width}"
            found.append((name, partial(race, n, width, seconds)))
    return found


def race(n, width, seconds):
    """Training steps of an MLP of this width, side by side on n ranks."""
    options = {"world_size": n, **bench.ON_CPU}
    run = launch.run(_race, width, seconds, **options)
    times = bench.durations(run.results)
    rows = []
    for name, each in times.items():
        rows.append(
            {
                "ranks": n,
                "width": width,
                "ddp": name,
                "seconds": statistics.median(each),
                "fastest": min(each),
                "ratio": bench.ratio(times[TORCH], each),
                "rounds": len(each),
            }
        )
    return {"ddp": rows}


def network(width):
    """An MLP of equal layers."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())])


def _race(width, seconds):
    x = torch.randn(ROWS, width) + dist.get_rank()
    first, models, programs = network(width), {}, {}
    for name, wrap in rivals().items():
        models[name] = wrap(copy.deepcopy(first))
        optimizer = torch.optim.SGD(models[name].parameters(), lr=1e-3)
        programs[name] = partial(_step, models[name], optimizer, x)
    nothing = lambda *_: None
    times = bench.take_turns(programs, nothing, nothing, seconds)
    for name, model in models.items():
        pairs = zip(model.parameters(), models[TORCH].parameters(), strict=True)
        if not all(bench.near(a.grad, b.grad) and bench.near(a, b) for a, b in pairs):
            raise AssertionError(f"{name} does not train as {TORCH} does")
    return times


def _step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if isinstance(model, overlap.NaiveDDP):
        model.finish()
    optimizer.step()


def tables(results):
    """The results as rich tables."""
    for n in sorted({row["ranks"] for row in results.get("ddp", ())}):
        rows = [row for row in results["ddp"] if row["ranks"] == n]
        title = f"A training step on {n} Gloo ranks: time, and how many times as fast"
        yield bench.table_by_width(title, rows, "ddp", TORCH)
