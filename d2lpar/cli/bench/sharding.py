"""Our FSDP against PyTorch's `fully_shard`, in time and in memory.

Same model, same ranks, same optimizer.  For memory each has a run of its own: a process
does not give back all that it had.
"""

import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ... import sharding
from ...launch import run as launch
from .race import ON_CPU, LineUp, Race, new_table

OURS, TORCHS = "FSDP", "fully_shard"
SHAPES = {"6 layers of 512": (512, 6, 64), "8 layers of 2048": (2048, 8, 64)}
MB = 2**20


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


def line_up(*shape):
    """Both trainers; their losses must agree, step by step."""
    losses, steps = {name: [] for name in TRAINERS}, {}
    for name, make in TRAINERS.items():
        step = make(shape)
        steps[name] = lambda step=step, name=name: losses[name].append(step())

    def compare():
        gap = max(abs(a - b) for a, b in zip(*losses.values(), strict=True))
        if gap > 1e-3 * abs(losses[TORCHS][0]):
            raise AssertionError(f"{OURS} does not train as {TORCHS} does: {gap:g}")

    return LineUp(steps, compare=compare)


RACE = Race("Sharded training", line_up, SHAPES, seconds=(20.0, 0.8))


def memory(ranks, quick=False):
    """Bytes of a rank: the most resident, and how much it grew from the start."""
    rows, shape = [], list(SHAPES.values())[0 if quick else -1]
    for name in TRAINERS:
        found = launch.run(_peak, name, shape, world_size=ranks, **ON_CPU).results
        peak, grown = map(max, zip(*found, strict=True))
        rows.append({"ranks": ranks, "rival": name, "peak": peak, "grown": grown})
    return {"memory": rows}


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


def tables(rows):
    """A rich table of memory per number of ranks."""
    for n in sorted({row["ranks"] for row in rows}):
        heads = "peak memory", "of it since the start"
        table = new_table(f"Sharded training on {n} Gloo ranks", "", *heads)
        for row in rows:
            if row["ranks"] == n:
                sizes = [f"{row[key] / MB:,.0f} MB" for key in ("peak", "grown")]
                table.add_row(row["rival"], *sizes)
        yield table
