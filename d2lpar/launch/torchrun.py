"""The ranks that a launcher has started: torchrun or Slurm, on one machine or several.

Every rank of the launcher runs the same script and so comes to the same `run`.  Each
executes the function once, and then all tell each other what they know.
"""

import contextlib
import os
import pickle
import random
import sys
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

from ..report import explain
from ..report.engine import Status
from ..report.pairs import number_messages
from ..report.threads import user_line
from ..sim import torch_private
from ..sim.outcome import Outcome
from ..sim.pipes import Captured
from . import gloo, worker
from .causes import error_of
from .recorded import RecordedEngine

PATIENCE = 5.0  # seconds in which the launcher ends a rank that is not the cause
_launcher = None  # what this process keeps from run to run


def launch_inside(payload, world, timeout, seed):
    """The Outcome of the packed function on the launcher's ranks, on each of them.

    A rank that fails knows its own report only; the launcher ends the others.
    """
    global _launcher
    _check(world.world_size)
    if _launcher is None:
        _launcher = _Launcher()
    return _launcher.run(payload, world.backend, world.device, timeout, seed)


def _check(world_size):
    started = int(os.environ["WORLD_SIZE"])
    if world_size != started:
        raise ValueError(
            f"world_size={world_size}, but the launcher has started {started} ranks: "
            "leave world_size out, or start as many"
        )
    if dist.is_initialized():
        raise RuntimeError(
            "run starts torch.distributed itself: call destroy_process_group before it"
        )


class _Launcher:
    """This rank's place among those that the launcher has started."""

    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.n = int(os.environ["WORLD_SIZE"])
        self.store, _, _ = next(iter(dist.rendezvous("env://", self.rank, self.n)))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
        self.gloo = gloo.Device(loopback=here == self.n)
        self.control = self.gloo.group(self._part("control"), self.rank, self.n)
        self.runs = 0

    def _part(self, name):
        return dist.PrefixStore(f"d2lpar/{name}", self.store)

    def run(self, payload, backend, device, timeout, seed):
        """The Outcome of one run."""
        self.runs += 1
        start = worker.Start(self.rank, self.n, backend, device, seed, 0, False)
        engine = RecordedEngine(start, worker.real_device(start, self.gloo))
        watchdog = _Watchdog(engine, f"d2lpar/watch/{self.runs}", timeout)
        try:
            with _own_state(), Captured(engine.beat) as output:
                store = self._part(self.runs)
                message = worker.live(
                    engine, lambda: worker.run_rank(start, engine, [payload], store)
                )
            message.moment -= engine.zero
            if message.kind == "failed":
                return self._failed(message, output)
            return self._complete(message, output, engine)
        finally:
            watchdog.end()
            torch_private.rank_process(None)
            if dist.is_initialized():
                dist.destroy_process_group()
            engine.groups.clear()  # here: their own threads cannot join themselves
            engine.board.close()

    def _failed(self, message, output):
        error = error_of(message)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if message.transport:
            time.sleep(PATIENCE)
        statuses = [Status(rank) for rank in range(self.n)]
        statuses[self.rank] = message.report.status
        message.report.error, message.report.output = error, output.text()
        reports = [worker.RankReport(s.rank, s) for s in statuses]
        reports[self.rank] = message.report
        failure = explain.rank_failed(statuses, self.rank, error)
        return Outcome(reports, message.moment, failure)

    def _complete(self, message, output, engine):
        message.report.output = output.text()
        gathered = [pickle.loads(data) for data in self._gather(pickle.dumps(message))]
        reports = [each.report for each in gathered]
        number_messages(reports)
        return Outcome(reports, max(each.moment for each in gathered))

    def _gather(self, data):
        """Every rank's bytes, on every rank."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        sizes = torch.zeros(self.n, dtype=torch.int64, device="cpu")
        size = torch.tensor([len(data)], device="cpu")
        self.control._allgather_base(sizes, size).wait()
        longest = int(sizes.max())
        padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        padded[: len(mine)] = mine
        everything = torch.empty(self.n * longest, dtype=torch.uint8, device="cpu")
        self.control._allgather_base(everything, padded).wait()
        rows = everything.view(self.n, longest)
        return [
            row[:size].numpy().tobytes()
            for row, size in zip(rows, sizes.tolist(), strict=True)
        ]


@contextlib.contextmanager
def _own_state():
    """Random numbers, device and threads are afterwards what they were before."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    threads, device = torch.get_num_threads(), torch.get_default_device()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        torch.set_num_threads(threads)
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)


class _Watchdog:
    """Ends this rank, with an explanation, if no rank does anything for `timeout` s."""

    def __init__(self, engine, name, timeout):
        self._engine, self._name, self._timeout = engine, name, timeout
        self._ended = threading.Event()
        self._main = threading.current_thread()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self):
        """The run is over."""
        self._ended.set()
        self._thread.join()

    def _watch(self):
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        client = dist.TCPStore(*address, is_master=False, wait_for_workers=False)
        store = dist.PrefixStore(self._name, client)  # its own connection
        seen, total, since = 0, -1, time.monotonic()
        while not self._ended.wait(min(1.0, self._timeout / 4)):
            activity = self._engine.journal.activity()
            everyone = store.add("activity", activity - seen)
            seen = activity
            if everyone != total:
                total, since = everyone, time.monotonic()
            elif time.monotonic() - since > self._timeout:
                self._give_up(store)

    def _give_up(self, store):
        status = self._engine.journal.status()
        if status.state == "running":
            status.where = user_line(self._main)
        store.set(f"status {status.rank}", pickle.dumps(status))
        self._ended.wait(min(2.0, 0.5 + self._timeout / 2))
        if status.rank == 0:
            statuses = [Status(rank) for rank in range(self._engine.world_size)]
            for rank in range(len(statuses)):
                if store.check([f"status {rank}"]):
                    statuses[rank] = pickle.loads(store.get(f"status {rank}"))
            error = explain.stuck(statuses, f"no progress for {self._timeout:g} s")
            print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
        else:
            self._ended.wait(1.0)  # rank 0 speaks first
        os._exit(1)
