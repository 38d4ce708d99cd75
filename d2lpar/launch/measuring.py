"""Time a step at real sizes: on the simulated device "meta", and on GPUs if there are.

def products(n=8192): ...     returns {case: prepare}; prepare() returns a step
table = measure(products)     on one GPU; measure(ring, ranks=None): on all GPUs
table["float32"].simulated    seconds; so is .measured, None without the GPUs
"""

import contextlib
import os
import statistics
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from ..report.errors import RankError
from ..report.units import short_bytes
from ..sim.cluster import Cluster
from ..sim.hardware import find_gpu, recognise
from . import run as launch


class Case(NamedTuple):
    """A case that says more than `prepare`; `simulated=False` if it needs values."""

    prepare: Any
    predicted: Any = None  # cluster -> seconds, in place of a run
    moved: int | None = None  # bytes, for a rate of bytes
    simulated: bool = True
    flops: int = 0  # where the simulator cannot count them


@dataclass(frozen=True)
class Row:
    """A case: seconds of a step and the most bytes that a rank held; None: unknown."""

    case: str
    moved: int | None
    simulated: float | None
    simulated_peak: int | None
    flops: int
    measured: float | None = None
    peak: int | None = None
    seconds = property(lambda r: r.simulated if r.measured is None else r.measured)
    rate = property(lambda r: (r.moved or r.flops) / r.seconds)

    def columns(self, seconds, peak):
        """Return three columns, or "" where `seconds` are not known."""
        if not seconds:
            return ""
        rate = (self.moved / 1e9 if self.moved else self.flops / 1e12) / seconds
        rate = f"{float(f'{rate:.3g}'):g}" if rate else ""  # 2030, not 2.03e+03
        return f"{1e3 * seconds:9.4g} {short_bytes(peak) if peak else '':>8} {rate:>8}"


@dataclass(frozen=True)
class Table:
    """The rows of `measure`: `table["1/8"]` is a case, `where` such as "1xA100"."""

    where: str
    rows: tuple[Row, ...]
    cases = property(lambda table: [row.case for row in table.rows])
    gpu = property(lambda table: table.where.rpartition("x")[2])
    is_measured = property(lambda table: any(row.measured for row in table.rows))

    def __getitem__(self, case):
        return dict(zip(self.cases, self.rows, strict=True))[case]

    def cluster(self, n, **links):
        """Return n of these GPUs, slower by the median of measured over simulated."""
        there = Cluster.of(f"{n}x{self.gpu}", **links)
        rows = [row for row in self.rows if row.measured and row.simulated]
        pace = statistics.median([r.measured / r.simulated for r in rows] or [1.0])
        return replace(there, slowed=tuple((r, pace) for r in range(n) if rows))

    def __str__(self):
        wide, n = max(map(len, self.cases)), 1 + self.is_measured
        unit = "GB/s" if any(row.moved for row in self.rows) else "TFLOP/s"
        lines = [[" " * wide, f"{'simulated':>27}", f"{'measured':>27}"][: n + 1]]
        lines.append([" " * wide, *[f"{'ms':>9} {'memory':>8} {unit:>8}"] * n])
        for row in self.rows:
            text = row.columns(row.simulated, row.simulated_peak) or "not simulated"
            more = row.columns(row.measured, row.peak) or "out of memory"
            lines.append([f"{row.case:{wide}}", f"{text:>27}", more][: n + 1])
        lines = [f"simulated on {self.where}", *(" ".join(x).rstrip() for x in lines)]
        room = find_gpu(self.gpu).memory
        if over := [r.case for r in self.rows if (r.simulated_peak or 0) > room]:
            lines += [f"More than the {short_bytes(room)} of a GPU: {', '.join(over)}"]
        return "\n".join(lines)


def half():
    """Return the 16-bit type that this GPU multiplies fast; bfloat16 without one."""
    old = torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)
    return torch.float16 if old else torch.bfloat16


def measure(cases_of, ranks=1, **sizes):
    """Return the Table of `cases_of(**sizes)`; ranks=None: all GPUs, or 8 simulated."""
    gpus = 0 if "D2LPAR_PRETEND" in os.environ else torch.cuda.device_count()
    n = ranks or (gpus if gpus > 1 else 8)
    gpu = recognise(torch.cuda.get_device_name()) if gpus else None
    cluster = Cluster.of(f"{n}x{gpu.short if gpu else 'A100'}")
    sim = {"backend": "sim", "device": "meta", "cluster": cluster, "world_size": n}
    rows = []
    for name, case in cases_of(**sizes).items():
        case = case if isinstance(case, Case) else Case(case)
        found = case.predicted and case.predicted(cluster), None, case.flops
        if case.simulated and not case.predicted:
            found = _figures(case, 1, **sim)
        real = _on_gpus(case, n) if gpus >= n else []
        rows.append(Row(name, case.moved, *found, *real))
    return Table(cluster.name, tuple(rows))


def _on_gpus(case, n):
    try:
        return _figures(case, 20, backend="nccl", world_size=n)[:2]
    except RankError as error:
        if "OutOfMemoryError" in str(error):
            return []
        raise


def _figures(case, steps, **how):
    """(median seconds from the last start to the last stop, most bytes, most FLOP)."""
    run = launch.run(_steps, case.prepare, steps, **how)
    starts, stops, flops = zip(*run.results, strict=True)
    pairs = zip(zip(*starts, strict=True), zip(*stops, strict=True), strict=True)
    seconds = statistics.median(max(ends) - max(begins) for begins, ends in pairs)
    return seconds, max(run.peak_memory), max(flops)


def _steps(prepare, count):
    """(starts, stops, FLOP): a first step warms up, in which the simulator counts."""
    step, starts, stops, counter = prepare(), [], [], FlopCounterMode(display=False)
    counter.mod_tracker = contextlib.nullcontext()  # its hooks would keep tensors
    counter.mod_tracker.parents = {"Global"}
    with counter if count == 1 else contextlib.nullcontext():
        step()
    for _ in range(count):
        dist.barrier()
        starts.append(launch.now())
        step()
        stops.append(launch.now())
    return starts, stops, counter.get_total_flops()
