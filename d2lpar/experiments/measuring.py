"""Run the cases of an experiment in the simulator, and where there is hardware on it.

The simulator runs the same step on the device "meta", whose tensors have no values, on
a GPU of the same name.  So its figures exist without a GPU and are always the same.
On one GPU a step is timed by CUDA events in this process, on several by the ranks'
common clock.  Memory is what torch's allocator counts.
"""

import contextlib
import functools
import gc
import inspect
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from ..launch import run as launch
from ..launch.conditions import machine
from ..launch.rounds import LineUp, durations, is_steady, take_turns
from ..sim.cluster import Cluster
from ..sim.hardware import recognise
from .tables import Row, Table, recorded

USUAL = "A100"  # what is simulated where there is no GPU
MANY, FEW = 8, 4  # how many: usually, and in tests
WARM_UP, FEWEST, MOST = 3, 8, 200  # steps before the clock, and on it
SECONDS = 1.0  # on the clock, for each case; tests take two steps
OUT_OF_MEMORY = "out of memory"
TIMEOUT = 300.0
NO_GPU = "Not measured: no GPU here, and the course holds no record of this table."
TOO_FEW = "Not measured: it takes {} GPUs, here {}; no record of the course has it."


class Case(NamedTuple):
    """A case that says more than `prepare`.

    predicted   cluster -> seconds, where the simulator cannot run the step
    moved       bytes that the step moves, for a rate of bytes instead of FLOP
    flops       FLOP of a step that the simulator does not run, so cannot count
    simulated   whether the simulator runs it: some of PyTorch's own need values
    """

    prepare: Callable[[], Callable[[], Any]]
    predicted: Callable[[Cluster], float] | None = None
    moved: int | None = None
    simulated: bool = True
    flops: int = 0


def experiment(small, ranks=1):
    """Mark a function that returns the cases of a table: {name: prepare, or Case}.

    small   its sizes for tests on a CPU (environment variable `D2LPAR_SMALL=1`)
    ranks   1: it is about one GPU; None: about all that there are
    """

    def mark(function):
        known = inspect.signature(function).parameters
        if unknown := [name for name in small if name not in known]:
            raise TypeError(f"{function.__name__} has no parameter {unknown[0]!r}.")

        @functools.wraps(function)
        def cases(**sizes):
            if is_small():
                sizes |= small
            return function(**sizes)

        cases.ranks = ranks
        return cases

    return mark


def is_small():
    """Whether experiments take the sizes of tests, and as little time."""
    return os.environ.get("D2LPAR_SMALL") == "1"


def half():
    """Return the 16-bit type that this GPU multiplies fast; bfloat16 without one."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return torch.float16
    return torch.bfloat16


def measure(cases_of, ranks=None, **sizes):
    """Return the Table of an experiment: simulated, and measured where possible.

    ranks     how many GPUs; None: as the experiment says
    sizes     parameters of the experiment in place of its defaults

    Without the GPUs, a record of the course is returned that has the table with its
    default sizes, or else a table with simulated figures alone.
    """
    name, asked = cases_of.__name__, ranks or cases_of.ranks
    gpus = torch.cuda.device_count()
    possible = gpus >= (asked or 2)
    if not possible and not sizes and (known := recorded(name)):
        return known
    n = asked or (gpus if possible else FEW if is_small() else MANY)
    gpu = recognise(torch.cuda.get_device_name()) if gpus else None
    cluster = Cluster.of(f"{n}x{gpu.short if gpu else USUAL}")
    named = {key: _case(each) for key, each in cases_of(**sizes).items()}
    rows = {key: _simulate(key, case, n, cluster) for key, case in named.items()}
    source = TOO_FEW.format(asked or "two", gpus) if gpus else NO_GPU
    if possible:
        clock = _on_one if n == 1 else _on_ranks
        found = clock({key: case.prepare for key, case in named.items()}, n)
        rows = {key: replace(row, **found[key]) for key, row in rows.items()}
        source = f"measured on {machine('cuda')['name']}"
    return Table(name, cluster.name, source, tuple(rows.values()))


def _case(each):
    return each if isinstance(each, Case) else Case(each)


# ------------------------------------------------------------------- simulated


def _simulate(name, case, n, cluster):
    """Return the Row of a case, without what is measured."""
    row = Row(name, moved=case.moved, flops=case.flops)
    if case.predicted:
        return replace(row, simulated=case.predicted(cluster))
    if not case.simulated:
        return row
    how = {"backend": "sim", "device": "meta", "cluster": cluster}
    run = launch.run(_once, case.prepare, world_size=n, **how)
    starts, stops, flops = zip(*run.results, strict=True)
    seconds, peak = max(stops) - max(starts), max(run.peak_memory)
    return replace(row, simulated=seconds, simulated_peak=peak, flops=max(flops))


def _once(prepare):
    """(start, stop, FLOPs) of a step; the first one warms up, and is counted."""
    step, counter = prepare(), FlopCounterMode(display=False)
    counter.mod_tracker = _Together()
    with counter:
        step()
    dist.barrier()
    start = launch.now()
    step()
    return start, launch.now(), counter.get_total_flops()


class _Together(contextlib.nullcontext):
    """Count all modules together: the hooks that tell them apart keep tensors."""

    parents = frozenset({"Global"})


# -------------------------------------------------------------------- measured


def _on_one(programs, n):
    """{case: measured columns} on the GPU of this process, by CUDA's events."""
    found = {}
    for name, prepare in programs.items():
        held = _held()
        try:
            with torch.device("cuda"):
                found[name] = _quartiles(_by_events(prepare()))
            found[name]["peak"] = torch.cuda.max_memory_allocated() - held
        except torch.OutOfMemoryError:
            found[name] = {"failed": OUT_OF_MEMORY}
    return found


def _held():
    """Bytes on the GPU now, after garbage is collected; the peak counts from here."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _by_events(step):
    """Seconds of each step, until their median is steady."""
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    for _ in range(1 if is_small() else WARM_UP):
        step()
    seconds, began = [], time.perf_counter()
    while not _enough(seconds, time.perf_counter() - began):
        start, stop = event(), event()
        start.record()
        step()
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    return seconds


def _enough(seconds, passed):
    """Whether so many steps, in so many seconds, have a median that counts."""
    if is_small():
        return len(seconds) == 2
    over = len(seconds) == MOST or passed > SECONDS
    return len(seconds) >= FEWEST and (over or is_steady(seconds))


def _on_ranks(programs, n):
    """{case: measured columns} on n GPUs."""
    run = launch.run(_in_turn, programs, world_size=n, backend="nccl", timeout=TIMEOUT)
    found = {}
    for name in programs:
        each = [rank[name] for rank in run.results]
        if None in each:
            found[name] = {"failed": OUT_OF_MEMORY}
            continue
        [seconds] = durations([spans for spans, _ in each]).values()
        found[name] = _quartiles(seconds)
        found[name]["peak"] = max(peak for _, peak in each)
    return found


def _in_turn(programs):
    """{case: (spans, most bytes held on the GPU)}, or None where they did not fit."""
    found = {}
    for name, prepare in programs.items():
        held = _held()
        found[name] = step = _ready(prepare)
        if step is None:
            continue
        program = functools.partial(_through, step)
        limit = 0.0 if is_small() else SECONDS
        spans = take_turns(LineUp({name: program}), limit, steady=True)
        found[name] = spans, torch.cuda.max_memory_allocated() - held
        del step, program
    return found


def _ready(prepare):
    """The step, which has run once, or None if the memory of any rank is too small."""
    try:
        step = prepare()
        step()
    except torch.OutOfMemoryError:
        step = None
    fits = torch.tensor([step is not None], dtype=torch.int32)
    dist.all_reduce(fits, dist.ReduceOp.MIN)
    return step if fits.item() else None


def _through(step):
    step()
    torch.cuda.synchronize()


def _quartiles(seconds):
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"measured": middle, "low": low, "high": high}
