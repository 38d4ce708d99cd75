"""Measure this machine: what the simulator has to know to predict runs on it.

One process measures what it computes: matrix products, operations that move bytes, and
what Python adds to each of them.  Then 2 and more processes measure what they send each
other, over Gloo (or NCCL, between GPUs of their own).  All programs of a run take
turns, so that each is hit by what else the machine does; see `rounds.py`.

Copies between host and GPU, and TF32, are measured where there is a GPU.  Nobody has
seen that part run on one yet.
"""

import statistics
import time

import torch
import torch.distributed as dist

from ..report.units import show_bytes
from ..sim.measured import cluster_of
from . import run as launch
from .conditions import machine
from .here_alone import KB, MB, SLOW, compute, repeated
from .rounds import (
    LineUp,
    counted,
    durations,
    is_steady,
    often,
    others,
    quiet_rounds,
    take_turns,
    worked,
)

SENT = (256, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 32 * MB)
SUMMED = (256, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB)
SMALL, TURNS = 256 * KB, 9  # bytes up to which a message has so many turns in a round
PRODUCT = "product", 0
STRONG = 256  # side of the products that show whether ranks share processors
PRODUCTS = 24  # of these in a row
BESIDE = 4 * MB  # bytes of the all-reduce beside a product


def checked(ranks, device):
    """The numbers of ranks to measure with, in order; raises where that cannot be."""
    if not all(isinstance(n, int) and n >= 2 for n in ranks):
        raise ValueError(f"ranks are numbers of processes from 2 on, not {ranks!r}.")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is 'cpu' or 'cuda', not {device!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError('device="cuda" needs a GPU, and torch sees none')
    return sorted({2, *ranks})


def measure(ranks=(2, 4), seconds=30.0, device="cpu"):
    """Measure this machine now; return the MeasuredCluster.  See `Cluster.here`."""
    ranks = checked(ranks, device)
    started = time.monotonic()
    share = seconds / (len(ranks) + 1)
    figures = _alone(share, device)
    figures["machine"] = machine(device)
    for n in ranks:
        _add_messages(figures, n, share, device)
    about = figures["machine"]
    about["allowed"] = seconds
    about["seconds"] = round(time.monotonic() - started, 1)
    about["others"] = round(statistics.median(figures.pop("others")), 2)
    return cluster_of(figures)


# ----------------------------------------------------------------- one process


def _alone(seconds, device):
    run = _run(compute, seconds, n=1, device=device)
    spans, counts, about, calls, fresh = run.results[0]
    kept, on_cpu = quiet_rounds([spans]), device == "cpu"
    times = {  # of a processor: its clock stands while other programs have it
        key: [
            (work if on_cpu else stop - start) / counts[key]
            for start, stop, work, _ in counted(each, kept)
        ]
        for key, each in spans.items()
    }
    found = {"products": {}, "operations": {}, "copies": {}}
    for key, (part, name, x) in about.items():
        found[part].setdefault(name, []).append(row(x, times[key]))
    if fresh:
        found["operations"]["empty"] = [row(x, each) for x, each in fresh.items()]
    found["launch"] = _launch(found, times["step"], calls)
    found["missing"] = _missing(found["products"], device)
    found["unsteady"] = _unsteady(times)
    found["others"] = counted(others([spans]), kept)
    empty = ("messages", "all_reduce", "sharing", "overlap", "work")
    return found | {part: {} for part in empty}


def _launch(found, times, calls):
    """A row: seconds that an operation of a step takes besides its own."""
    small = {name: min(rows)[1] for name, rows in found["operations"].items()}
    own = sum(small.get(name, small["add"]) for name, *_ in calls)
    count = len(calls)
    return row(count, [max(t - own, 0.0) / count for t in times])


def _missing(products, device):
    best = {kind: max(x / t for x, t, *_ in rows) for kind, rows in products.items()}
    part = {kind: rate / best["float32"] for kind, rate in best.items()}
    missing = [
        f"Products of {kind} are not native here: they run at {part[kind]:.0%} of "
        "float32's rate, and were measured up to a side of 128 only."
        for kind in part
        if part[kind] < SLOW
    ]
    if device == "cpu":
        missing.append("GPUs were not measured: this is a cluster of processors.")
    return missing


# ----------------------------------------------------------- several processes


def _add_messages(figures, n, seconds, device):
    """Measure what n ranks send each other; the figures have it afterwards."""
    run = _run(_talk, seconds, n=n, device=device)
    spans = [spans for spans, _ in run.results]
    times, kept = durations(spans, quiet=True), quiet_rounds(spans)
    work = {key: statistics.median(worked(spans, key, kept)) for key in times}
    kinds = {"one": ("messages", "1"), "ring": ("messages", str(n))}
    kinds["sum"] = ("all_reduce", str(n))
    for (kind, size), seconds in times.items():
        if kind in kinds:
            part, name = kinds[kind]
            figures[part].setdefault(name, []).append(row(size, seconds))
    used = figures["work"]
    if n == 2:
        used["messages"] = [[s, work[k, s] / n] for k, s in work if k == "ring"]
    used[f"all_reduce {n}"] = [[s, work[k, s] / n] for k, s in work if k == "sum"]
    figures["sharing"].setdefault("1", row(1, run.results[0][1]))
    figures["sharing"][str(n)] = row(n, times[PRODUCT])
    figures["overlap"][str(n)] = _hidden(times)
    figures["others"] += counted(others(spans), kept)
    figures["unsteady"] += _unsteady(times, f" on {n} ranks")


def _hidden(times):
    """The part of an all-reduce that a product beside it hides: 0 to 1."""
    alone, product, both = (
        statistics.median(times[key])
        for key in (("sum", BESIDE), PRODUCT, ("both", BESIDE))
    )
    return round(min(max((alone + product - both) / alone, 0.0), 1.0), 3)


def _talk(seconds):
    """(spans, seconds of products while the other ranks wait)."""
    n, r, device = dist.get_world_size(), dist.get_rank(), launch.device()
    mine, theirs = (torch.zeros(64 * MB // 4, device=device) for _ in range(2))
    a = torch.ones(STRONG, STRONG, device=device)
    products = repeated(lambda: a @ a, PRODUCTS)
    programs = {PRODUCT: products}
    for size in SENT:
        x, y = mine[: size // 4], theirs[: size // 4]
        programs["ring", size] = lambda x=x, y=y: _pass_on(x, y, n, r)
        if n == 2:
            programs["one", size] = lambda x=x, y=y: _one_way(x, y, r)
    for size in SUMMED:
        x = mine[: size // 4]
        programs["sum", size] = lambda x=x: dist.all_reduce(x)
    programs["both", BESIDE] = _side_by_side(mine[: BESIDE // 4], products)
    alone = []
    for _ in range(9):
        dist.barrier()
        if r == 0:
            start = launch.now()
            products()
            alone.append(launch.now() - start)
    several = often(programs, _turns)
    return take_turns(LineUp(several), seconds, steady=True), alone


def _turns(key):
    return TURNS if key != PRODUCT and key[1] <= SMALL else 1


def _pass_on(x, y, n, r):
    """Send to the right and receive from the left, as a step of a ring."""
    send = dist.P2POp(dist.isend, x, (r + 1) % n)
    receive = dist.P2POp(dist.irecv, y, (r - 1) % n)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def _one_way(x, y, r):
    if r == 0:
        dist.send(x, 1)
    else:
        dist.recv(y, 0)


def _side_by_side(x, products):
    """An all-reduce beside products that take longer."""

    def both():
        work = dist.all_reduce(x, async_op=True)
        products()
        work.wait()

    return both


# --------------------------------------------------------------- what they share


def _run(program, seconds, n, device):
    own = device == "cuda" and torch.cuda.device_count() >= n > 1
    backend = "nccl" if own else "gloo"
    about = {"backend": backend, "device": device, "timeout": 300.0}
    return launch.run(program, seconds, world_size=n, **about)


def row(x, seconds):
    """Return [x, median, lower quartile, upper quartile, rounds]."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return [x, *(float(f"{each:.4g}") for each in (middle, low, high)), len(seconds)]


def _unsteady(times, where=""):
    """Sentences about the programs whose median is not steady."""
    sentences = []
    for key, seconds in times.items():
        if not is_steady(seconds):
            low, _, high = (1e6 * x for x in statistics.quantiles(seconds, n=4))
            kind, *size = key if isinstance(key, tuple) else (key,)
            sizes = [show_bytes(x) if kind in TALK else str(x) for x in size]
            text = f"{' '.join([kind, *sizes])}{where}: half between"
            sentences.append(f"{text} {low:.0f} and {high:.0f} us")
    return sentences


TALK = ("one", "ring", "sum", "both")
