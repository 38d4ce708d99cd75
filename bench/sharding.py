"""Our FSDP against PyTorch's `fully_shard`, in time and in memory.

For memory each has a run of its own: a process does not give back all that it had.
"""

import re
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from d2lpar.launch import run as launch
from d2lpar.sharding import FSDP

from .race import ON_CPU, LineUp, Race, row

OURS, TORCHS = "FSDP", "fully_shard"
SHAPES = {"6 layers of 512": (512, 6, 64), "8 layers of 2048": (2048, 8, 64)}


def make_step(name, width, layers, rows):
    """A function that trains one step with one of the two, and returns [its loss]."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    net = nn.Sequential(*blocks)
    if name == OURS:
        net = FSDP(net)
    else:
        for module in (*blocks, net):
            fully_shard(module)
    optimizer = torch.optim.Adam(net.shards if name == OURS else net.parameters())
    x = torch.full((rows, width), 0.1 * (1 + dist.get_rank()))
    update = partial(net.step, optimizer) if name == OURS else optimizer.step

    def step():
        loss = net(x).square().mean()
        loss.backward()
        if name == OURS:
            net.finish()
        update()
        optimizer.zero_grad()
        return [loss]

    return step


def line_up(*shape):
    """Both trainers, from the same weights."""
    return LineUp({name: make_step(name, *shape) for name in (TORCHS, OURS)})


RACE = Race("Sharded training", line_up, SHAPES, seconds=(20.0, 0.8))


def memory(ranks, quick=False):
    """Bytes of a rank: the most resident, and how much it grew from the start."""
    rows, shape = [], list(SHAPES.values())[0 if quick else -1]
    for name in (TORCHS, OURS):
        run = launch.run(_peak, name, shape, world_size=ranks, **ON_CPU)
        about = row(f"Sharded training on {ranks} Gloo ranks", name)
        heads = "peak memory", "of it since the start"
        for head, size in zip(heads, map(max, *run.results), strict=True):
            rows.append(about(head, f"{size / 2**20:,.0f} MB", bytes=size))
    return rows


def _peak(name, shape):
    """(peak resident bytes, growth since before the model) of this process."""
    make_step(name, 8, 1, 1)()  # all modules are loaded now
    before, step = resident("VmRSS"), make_step(name, *shape)
    for _ in range(3):
        step()
    return resident("VmHWM"), resident("VmHWM") - before


def resident(field):
    """Bytes of this process, now ("VmRSS") or at most ("VmHWM"); 0 if not known."""
    status = Path("/proc/self/status")  # a file of Linux
    text = status.read_text(encoding="utf-8") if status.exists() else ""
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0
