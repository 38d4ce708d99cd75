"""What starting ranks takes, and how many messages the simulator passes on."""

import signal
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

from ...launch import run as launch
from ...messages import exchange
from .race import TIMEOUT, new_table

# Starting up


def startup(quick=False):
    """Seconds until four ranks have added up four numbers, and all have ended."""
    first, *later = [_seconds(_by_run) for _ in range(3 if quick else 6)]
    spawn = [_seconds(_by_spawn) for _ in range(1 if quick else 3)]
    figures = {
        "run_first": first,
        "run": statistics.median(later),
        "spawn": statistics.median(spawn),
    }
    return {"startup": figures | {"ratio": figures["spawn"] / figures["run"]}}


def _seconds(program):
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def _by_run():
    run = launch.run(_greet, world_size=4, backend="gloo", timeout=TIMEOUT)
    assert run.results == [10] * 4


def _by_spawn():
    with tempfile.TemporaryDirectory() as folder:
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for us
        try:
            context = torch.multiprocessing.spawn(_spawned, (folder,), 4, join=False)
        finally:
            signal.signal(signal.SIGINT, usual)
        try:
            while not context.join():
                pass
        finally:
            for process in context.processes:
                process.kill()
                process.join()


def _spawned(rank, folder):
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=4)
    assert _greet() == 10
    dist.destroy_process_group()


def _greet():
    x = torch.ones(1) + dist.get_rank()
    dist.all_reduce(x)
    return x.item()


# The simulator


def simulator(seconds):
    """Messages per second of real time, in three programs."""
    return {
        "simulator": {
            "send and recv, 2 ranks": _rate(_to_and_fro, 2, seconds),
            "ring of 4, batched": _rate(_round, 4, seconds),
            "ring of 64, batched": _rate(_round, 64, seconds),
        }
    }


def _rate(program, n, seconds):
    """Messages per second; the number of rounds is doubled until it takes long."""
    rounds = 4
    while True:
        start = time.perf_counter()
        run = launch.run(program, rounds, world_size=n, backend="sim")
        passed = time.perf_counter() - start
        if passed > seconds / 2:
            return sum(run.messages) / passed
        rounds *= 2


def _to_and_fro(rounds):
    x, r = torch.zeros(1), dist.get_rank()
    for k in range(rounds):
        if k % 2 == r:
            dist.send(x, 1 - r)
        else:
            dist.recv(x, 1 - r)


def _round(rounds):
    n, r = dist.get_world_size(), dist.get_rank()
    mine, incoming = torch.zeros(1), torch.zeros(1)
    for _ in range(rounds):
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n)


def tables(results):
    """A table of starting up and one of the simulator, as far as there are figures."""
    if figures := results.get("startup"):
        table = new_table("Starting and ending four ranks", "by", "seconds")
        table.add_row("torch.multiprocessing.spawn", f"{figures['spawn']:.2f}")
        table.add_row("d2lpar.run, first time", f"{figures['run_first']:.2f}")
        table.add_row("d2lpar.run, later", f"{figures['run']:.2f}")
        table.add_row("times as fast, later", f"{figures['ratio']:.0f}")
        yield table
    if rates := results.get("simulator"):
        table = new_table("The simulator", "program", "messages per second")
        for name, rate in rates.items():
            table.add_row(name, f"{rate:,.0f}")
        yield table
