"""Chapter 06: a ring's additions on one GPU, and all-reduces on all GPUs."""

from functools import partial

import torch
import torch.distributed as dist

from ..allreduce import recursive_doubling_allreduce, ring_allreduce
from ..report.units import short_bytes
from .measuring import Case, experiment


@experiment(small={"sizes": (1000, 4000)})
def additions(sizes=(10**5, 10**6, 10**7, 10**8, 10**9)):
    """Add a chunk of so many bytes to another, as each step of a ring does."""

    def prepare(size):
        chunk, incoming = torch.zeros(size // 4), torch.ones(size // 4)
        return lambda: chunk.add_(incoming)

    return {
        short_bytes(size): Case(partial(prepare, size), moved=3 * size)
        for size in sizes  # two chunks are read, and one is written
    }


@experiment(small={"sizes": (1000, 4000)}, ranks=None)
def allreduce_sweep(sizes=(10**5, 10**6, 10**7, 10**9)):
    """All-reduces from small to large: PyTorch's and ours."""

    def prepare(way, size):
        x = torch.zeros(size // 4)
        return lambda: way(x)

    case = lambda way, size: Case(partial(prepare, way, size), moved=size)
    ways = {"all_reduce": dist.all_reduce, "ring": ring_allreduce}
    ways["doubling"] = recursive_doubling_allreduce
    return {
        f"{name}, {short_bytes(size)}": case(way, size)
        for size in sizes
        for name, way in ways.items()
    }
