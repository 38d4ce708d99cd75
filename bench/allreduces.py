"""The course's all-reduces against `dist.all_reduce`."""

import re
from functools import partial

import torch
import torch.distributed as dist

from d2lpar import allreduce
from d2lpar.allreduce import fastest
from d2lpar.allreduce.shared_memory import shared_memory_allreduce

from .race import LineUp, Race

UNITS = {"": 1, "k": 2**10, "m": 2**20}
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


def race(sizes):
    """The Race over tensors of so many bytes."""
    courses = {size_name(size): (size,) for size in sizes}
    return Race("All-reduce", line_up, courses, len(courses), (5.0, 0.8))


def size_of(text):
    """Bytes of "64K", "1M" or "4096", in powers of two; ValueError for others."""
    match = re.fullmatch(r"(\d+)([km]?)", text.lower())
    return int(match[1]) * UNITS[match[2]] if match else int(text)


def size_name(size):
    """`64 KB`, `1 MB`: bytes in powers of two."""
    unit = next((u for u in "mk" if size >= UNITS[u]), "")
    return f"{size / UNITS[unit]:g} {unit.upper()}B"
