"""Draws the README's picture anew: `python pictures/gather_ring.py` from the clone.

Four ranks average one megabyte each, in two ways.  Both runs are simulated, so their
events are the same on every machine, and so is the picture.
"""

from pathlib import Path

import torch
import torch.distributed as dist

import d2lpar
from d2lpar.allreduce import naive_allreduce, ring_allreduce
from d2lpar.report.plots import compare_timelines

PICTURE = Path(__file__).with_suffix(".png")
WAYS = {
    "Gather, by way of rank 0": naive_allreduce,
    "Ring, a quarter at a time": ring_allreduce,
}


def average(allreduce):
    """The mean over ranks of one megabyte on each."""
    x = torch.full((250_000,), float(dist.get_rank()))
    allreduce(x)
    return x / dist.get_world_size()


def runs():
    """Name to run of both ways."""
    return {
        name: d2lpar.run(average, allreduce, world_size=4, backend="sim")
        for name, allreduce in WAYS.items()
    }


def draw(path=PICTURE):
    """The picture of new runs is at `path`, with its description inside."""
    figure = compare_timelines({name: run.timeline for name, run in runs().items()})
    figure.savefig(path, dpi=120, metadata={"Description": figure.alt})


if __name__ == "__main__":
    draw()
