"""What starting ranks takes, and how many messages the simulator passes on."""

import statistics
import tempfile
import time
import timeit
from functools import partial

import torch
import torch.distributed as dist

from d2lpar.launch import run as launch
from d2lpar.messages import exchange

from .race import TIMEOUT, row


def startup(quick=False):
    """Seconds until four ranks have added up four numbers, and all have ended."""
    by_run = partial(launch.run, _greet, world_size=4, backend="gloo", timeout=TIMEOUT)
    first, *others = timeit.repeat(by_run, number=1, repeat=3 if quick else 6)
    spawns = timeit.repeat(_by_spawn, number=1, repeat=1 if quick else 3)
    later, spawn = statistics.median(others), statistics.median(spawns)
    took = {"d2lpar.run, first time": first, "d2lpar.run, later": later}
    took |= {"torch.multiprocessing.spawn": spawn, "times as fast": spawn / later}
    title = "Starting and ending four ranks"
    return [row(title, k, "seconds", f"{x:.2f}", seconds=x) for k, x in took.items()]


def _by_spawn():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_spawned, (f"file://{folder}/meeting",), 4)


def _spawned(rank, meeting):
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=4)
    _greet()
    dist.destroy_process_group()


def _greet():
    x = torch.ones(1) + dist.get_rank()
    dist.all_reduce(x)
    assert x == 10


def simulator(seconds):
    """Messages per second of real time, in three programs."""
    rows, programs = [], {"send and recv": (_to_and_fro, 2)}
    programs |= {f"ring, {n} ranks, batched": (_round, n) for n in (4, 64)}
    for name, (program, n) in programs.items():
        rounds, passed = 2, 0.0
        while passed <= seconds / 2:
            rounds, start = 2 * rounds, time.perf_counter()
            run = launch.run(program, rounds, world_size=n, backend="sim")
            passed = time.perf_counter() - start
        rate = sum(run.messages) / passed
        about = "The simulator", name, "messages per second"
        rows.append(row(*about, f"{rate:,.0f}", rate=rate))
    return rows


def _to_and_fro(rounds):
    x, r = torch.zeros(1), dist.get_rank()
    for k in range(rounds):
        dist.send(x, 1 - r) if k % 2 == r else dist.recv(x, 1 - r)


def _round(rounds):
    n, r = dist.get_world_size(), dist.get_rank()
    mine, incoming = torch.zeros(1), torch.zeros(1)
    for _ in range(rounds):
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n)
