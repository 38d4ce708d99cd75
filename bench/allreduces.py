"""The course's all-reduces against `dist.all_reduce`."""

import re
from functools import partial

import torch
import torch.distributed as dist

from d2lpar import allreduce
from d2lpar.allreduce import fastest
from d2lpar.allreduce.shared_memory import shared_memory_allreduce

from .race import LineUp, Race

UNITS = {"": 1, "K": 2**10, "M": 2**20}
NAMES = "naive tree direct ring segmented_ring recursive_doubling halving_doubling"


def rivals():
    """Name to function: PyTorch's all-reduce, then the course's."""
    found = {"dist.all_reduce": dist.all_reduce}
    found |= {name: getattr(allreduce, f"{name}_allreduce") for name in NAMES.split()}
    found["shared_memory"] = shared_memory_allreduce
    return found | {"allreduce": fastest.allreduce}


def line_up(size):
    """All of them on `size` bytes, from the same values."""
    x = torch.empty(size // 4)

    def program(add_up):
        add_up(x)
        return [x]

    programs = {name: partial(program, add_up) for name, add_up in rivals().items()}
    return LineUp(programs, lambda: x.fill_(dist.get_rank() + 1))


def race(name, size):
    """The Race with tensors of so many bytes."""
    return Race("All-reduce", line_up, {name: (size,)}, (5.0, 0.8))


def size_of(text):
    """("64 KB", 65536) for "64K", in powers of two, as "1M" and "4096"."""
    match = re.fullmatch(r"(\d+)([KM]?)", text.upper())
    if not match:
        raise ValueError(f"{text} is no size")
    number, unit = match.groups()
    return f"{number} {unit}B", int(number) * UNITS[unit]
