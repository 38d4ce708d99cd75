"""Rows of `d2lpar bench`: our FSDP against PyTorch's `fully_shard`.

Same model, same ranks, same optimizer.  For time they take turns in one run.  For
memory each has a run of its own: a process does not give back all that it had.
"""

import re
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ... import sharding
from ...show.units import show_seconds
from ...world import launch
from .bench import MB, ON_CPU, colour, durations, new_table, ratio, take_turns

OURS, TORCHS = "FSDP", "fully_shard"
SHAPES = {"quick": (512, 6, 64), "usual": (2048, 8, 64)}  # width, layers, rows


def plan(ranks=None, quick=False):
    """A list of (name, function that returns figures), as of `bench.plan`."""
    numbers = sorted({int(n) for n in re.findall(r"\d+", ranks or "2")})
    shape = SHAPES["quick" if quick else "usual"]
    seconds = 0.8 if quick else 20.0
    return [
        (f"sharded training, {n} ranks", partial(compare, n, shape, seconds))
        for n in numbers
    ]


def compare(n, shape, seconds):
    """Both trainers on n ranks: seconds of a step, and peak resident memory."""
    at = {"world_size": n, **ON_CPU}
    times = durations(launch.run(_race, shape, seconds, **at).results)
    rows = []
    for name, each in times.items():
        memory = launch.run(_peak, name, shape, **at).results
        rows.append(
            {
                "ranks": n,
                "trainer": name,
                "parameters": shape[1] * (shape[0] + 1) * shape[0],
                "seconds": statistics.median(each),
                "ratio": ratio(times[TORCHS], each),
                "rounds": len(each),
                "peak": max(peak for peak, _ in memory),
                "grown": max(grown for _, grown in memory),
            }
        )
    return {"sharding": rows}


def make_net(width, layers):
    """So many square layers; the same weights on every rank."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*blocks)


def our_step(shape):
    """A function that trains one step with our FSDP, and gives its loss."""
    width, layers, rows = shape
    model = sharding.FSDP(make_net(width, layers))
    optimizer = torch.optim.Adam(model.shards)
    x = torch.full((rows, width), 0.1 * (1 + dist.get_rank()))

    def step():
        loss = model(x).square().mean()
        loss.backward()
        model.finish()
        model.step(optimizer)
        return loss.item()

    return step


def torchs_step(shape):
    """The same by `fully_shard`."""
    from torch.distributed.fsdp import fully_shard

    width, layers, rows = shape
    net = make_net(width, layers)
    for block in net:
        fully_shard(block)
    fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.full((rows, width), 0.1 * (1 + dist.get_rank()))

    def step():
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


TRAINERS = {TORCHS: torchs_step, OURS: our_step}


def _race(shape, seconds):
    losses = {name: [] for name in TRAINERS}

    def program(name, step):
        losses[name].append(step())

    programs = {name: partial(program, name, f(shape)) for name, f in TRAINERS.items()}
    times = take_turns(programs, lambda: None, lambda name: None, seconds)
    gap = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
    if gap > 1e-3 * abs(losses[TORCHS][0]):
        raise AssertionError(f"The losses of {' and '.join(losses)} differ by {gap:g}.")
    return times


def _peak(name, shape):
    """(peak resident bytes, growth since before the model) of this process."""
    small = TRAINERS[name]((8, 1, 1))  # all modules are loaded now
    small()
    before = resident("VmRSS")
    step = TRAINERS[name](shape)
    for _ in range(3):
        step()
    peak = resident("VmHWM")
    return peak, peak - before


def resident(field):
    """Bytes in memory of this process, now ("VmRSS") or at most ("VmHWM").

    0 where the system does not say: it is a file of Linux.
    """
    status = Path("/proc/self/status")
    text = status.read_text(encoding="utf-8") if status.exists() else ""
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def tables(results):
    """The results as rich tables."""
    rows = results.get("sharding", ())
    for n in sorted({row["ranks"] for row in rows}):
        heads = "a step", "times as fast", "peak memory", "of it since the start"
        table = new_table(f"Sharded training on {n} Gloo ranks", "", *heads)
        for row in rows:
            if row["ranks"] == n:
                seconds = show_seconds(float(f"{row['seconds']:.3g}"))
                memory = [f"{row[key] / MB:,.0f} MB" for key in ("peak", "grown")]
                table.add_row(row["trainer"], seconds, colour(row["ratio"]), *memory)
        yield table
