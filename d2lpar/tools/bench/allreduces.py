"""The course's all-reduces against `dist.all_reduce`, and a ring predicted."""

import re
import statistics

import numpy as np
import torch
import torch.distributed as dist

from ... import allreduce, costs, fastest
from ...messages import exchange, fit_alpha_beta, ping_pong
from ...shared_memory import shared_memory_allreduce
from ...world import launch
from .race import ON_CPU, LineUp, Race, durations, new_table, show_time, take_turns

KB, MB = 2**10, 2**20
NAMES = "naive tree direct ring segmented_ring recursive_doubling halving_doubling"


def rivals():
    """Name to function: PyTorch's all-reduce, then the course's."""
    found = {"dist.all_reduce": dist.all_reduce}
    for name in NAMES.split():
        found[name] = getattr(allreduce, f"{name}_allreduce")
    found["shared_memory"] = shared_memory_allreduce
    return found | {"allreduce": fastest.allreduce}


def line_up(size):
    """All of them on `size` bytes, each with the sum as its truth."""
    n, r = dist.get_world_size(), dist.get_rank()
    x = torch.empty(size // 4)

    def check(name):
        if x[0] != n * (n + 1) / 2 or not torch.equal(x, x[:1].expand_as(x)):
            text = f"{name} gives a wrong sum of {size} bytes on {n} ranks"
            raise AssertionError(text)

    programs = {name: lambda f=f: f(x) for name, f in rivals().items()}
    return LineUp(programs, lambda: x.fill_(r + 1), check)


def race(sizes):
    """The Race over tensors of so many bytes."""
    courses = {size_name(size): (size,) for size in sizes}
    return Race("All-reduce", line_up, courses, len(courses), (5.0, 0.8))


# Sizes as text


def sizes_of(text):
    """The bytes in a text such as "64K,1M", from small to large."""
    return sorted({size_of(each) for each in text.split(",")})


def size_of(text):
    """Bytes of "64K", "1M", "1.5M", "4096"; powers of two, as "KB" and "MB" too."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)i?b?\s*", text, re.I)
    unit = {"": 1, "k": KB, "m": MB, "g": 2**30}
    size = round(float(match[1]) * unit[match[2].lower()]) if match else 0
    if size < 4 or size % 4:
        raise ValueError(
            f"A size is a number of bytes such as 64K or 16M, a multiple of 4, "
            f"not {text!r}."
        )
    return size


def size_name(size):
    """`64 KB`, `1 MB`: bytes in powers of two."""
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


# A ring predicted


def prediction(n, sizes, seconds):
    """A ring of n ranks: measured, and predicted by two models.

    A ring makes 2(n-1) steps: send to the right and receive from the left at
    once, and in half of the steps add.  Its time is that of `costs.ring_cost`.

    steps       alpha and beta of steps that add and of steps that do not, each
                kind measured alone, with chunks of other sizes
    ping_pong   alpha and beta of single messages while nobody else sends
    """
    chunks = [int(c) // 4 * 4 for c in np.geomspace(*_span(sizes, n), 7)]
    run = launch.run(_foretell, chunks, sizes, seconds, world_size=n, **ON_CPU)
    times = durations([times for times, _ in run.results])
    median = {what: statistics.median(each) for what, each in times.items()}
    moving, adding = (
        fit_alpha_beta(chunks, [median[kind, c] / (2 * (n - 1)) for c in chunks])
        for kind in ("move", "add")
    )
    models = {
        "steps": [(a + b) / 2 for a, b in zip(moving, adding, strict=True)],
        "ping_pong": fit_alpha_beta(chunks, run.results[0][1]),
    }
    rows = [_row(n, size, median["ring", size], models) for size in sizes]
    return {"prediction": rows}


def _span(sizes, n):
    """From half of the ring's smallest chunk to 1.4 times its largest, in bytes."""
    return max(0.5 * min(sizes) / n, 64), max(1.4 * max(sizes) / n, 4096)


def _row(n, size, measured, models):
    row = {"ranks": n, "bytes": size, "seconds": measured}
    for name, (alpha, beta) in models.items():
        predicted = costs.ring_cost(size // 4, n).seconds(alpha, beta)
        error = predicted / measured - 1
        row[name] = {"alpha": alpha, "beta": beta, "seconds": predicted, "error": error}
    return row


def _foretell(chunks, sizes, seconds):
    """(times of steps and rings, seconds of single messages)."""
    n, alone = dist.get_world_size(), ping_pong(chunks)
    x = torch.zeros(max(*sizes, n * max(chunks)) // 4)
    programs = {}
    for size in chunks:
        parts = x[: n * size // 4].chunk(n)
        programs["move", size] = lambda parts=parts: _steps(parts, False)
        programs["add", size] = lambda parts=parts: _steps(parts, True)
    for size in sizes:
        view = x[: size // 4]
        programs["ring", size] = lambda view=view: allreduce.ring_allreduce(view)
    return take_turns(LineUp(programs), seconds), alone


def _steps(chunks, adding):
    """As many steps as a ring has, all with addition or all without."""
    n, r = dist.get_world_size(), dist.get_rank()
    spare = torch.empty_like(chunks[0]) if adding else None
    for k in range(2 * (n - 1)):
        mine, theirs = chunks[k % n], chunks[(k + 1) % n]
        exchange(mine, (r + 1) % n, spare if adding else theirs, (r - 1) % n)
        if adding:
            theirs += spare


def tables(rows):
    """The table of predictions, where there are some."""
    heads = "size", "measured", "from steps", "error", "from single messages", "error"
    table = new_table("A ring all-reduce, predicted", "ranks", *heads)
    for row in rows:
        texts = [size_name(row["bytes"]), show_time(row)]
        for model in ("steps", "ping_pong"):
            texts += [show_time(row[model]), f"{row[model]['error']:+.0%}"]
        table.add_row(str(row["ranks"]), *texts)
    return [table] if rows else []
