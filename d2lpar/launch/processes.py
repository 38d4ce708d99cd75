"""Runs a function on ranks that are processes of this machine, and watches them."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing import connection

from ..report import explain
from ..report.engine import Status
from ..report.pairs import number_messages
from ..sim.interrupts import Interrupts
from ..sim.outcome import Outcome, RankReport
from ..sim.patience import Patience
from ..sim.pipes import OUTPUT_LIMIT
from . import causes, nodes, worker
from .causes import GRACE
from .forks import TICK, RankProcess, warm
from .journal import Board, anonymous_file

__all__ = ["launch", "warm"]
JOINING = 60.0  # seconds without progress, at least, until all ranks are there
PARTING = 1.0  # seconds in which ranks that have returned may end by themselves


def launch(
    payload, world_size, backend, device=None, timeout=60.0, seed=0, progress=None
):
    """The Outcome of the packed function on `world_size` processes.

    `timeout` in seconds; `progress(seconds, activity, glance)` is called now and then.
    Nothing of the processes is left afterwards, whatever happens.
    """
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "ranks that are processes cannot be started from a daemonic process, which "
            'may have no children: use backend="sim" here, or start this process with '
            "daemon=False"
        )
    with Interrupts() as interrupts:
        run = _Run(world_size, interrupts)
        try:
            run.start(payload, backend, device, seed)
            return run.watch(timeout, progress)
        except KeyboardInterrupt:
            return run.interrupted()
        finally:
            run.end()


class _Run:
    """The processes of one run, and what they have told."""

    def __init__(self, n, interrupts):
        self.n, self.interrupts, self.started = n, interrupts, time.monotonic()
        self.recent = float("inf")  # see Journal.status
        self.board = Board(n)
        self.outputs = [anonymous_file() for _ in range(n)]
        self.errors = [anonymous_file() for _ in range(n)]
        self.natives = [anonymous_file() for _ in range(n)]
        self.links, self.processes = [], []
        self.last = {}  # rank -> its last Message
        self.dead = {}  # rank -> exit code, where there was no last message
        self.partial = {}  # rank -> report so far

    # starting

    def start(self, payload, backend, device, seed):
        """All processes are started."""
        live = os.environ.get("D2LPAR_LIVE") == "1"
        here = nodes.current(self.n)
        packed = worker.luggage(payload)
        with contextlib.ExitStack() as stack:
            luggage = anonymous_file(len(packed))
            stack.callback(os.close, luggage)
            _write(luggage, packed)
            server = _server(here, self.n + 8)
            stack.enter_context(server)
            for rank in range(self.n):
                port = server.getsockname()[1]
                node = here and here.node(rank)
                about = backend, device, seed, port, live, node
                start = worker.Start(rank, self.n, *about)
                space = {"node": here.spaces[node.number]} if here else {}
                self._start_rank(start, luggage, server, space)

    def _start_rank(self, start, luggage, server, space):
        self.interrupts.check()
        files = {
            **space,
            "luggage": luggage,
            "board": self.board.handle,
            "output": self.outputs[start.rank],
            "errors": self.errors[start.rank],
            "native": self.natives[start.rank],
        }
        if start.rank == 0:
            files["socket"] = server.fileno()
        ours, theirs = multiprocessing.Pipe()
        self.links.append(ours)
        with theirs:
            process = RankProcess(start, theirs, files, self.interrupts.check)
            process.start()
            self.processes.append(process)

    # watching

    def watch(self, timeout, progress):
        """The Outcome, once all have returned or it is known why they will not."""
        self.recent, joined = max(1.0, timeout / 2), False
        patience = Patience(max(timeout, JOINING))
        started, deadline = time.monotonic(), None
        while len(self.last) + len(self.dead) < self.n:
            self.collect(TICK)
            self.interrupts.check()
            now, activity = time.monotonic(), self.board.activity()
            if progress is not None:
                progress(now - started, activity, self._glance)
            deadline = self._deadline(now, deadline)
            if deadline is not None and now >= deadline:
                break
            if not joined and self.board.joined():
                joined, patience = True, Patience(timeout)
            if deadline is None and (error := self._too_much(patience, activity)):
                return self._outcome(error)
        return self._outcome(causes.failure(self))

    def _too_much(self, patience, activity):
        """The error for a run that takes too long or prints too much, or None."""
        printed = [self._printed(rank) for rank in range(self.n)]
        if sum(printed) > OUTPUT_LIMIT:
            statuses = self.ask()
            for status in statuses:
                status.printed = printed[status.rank]
            return explain.printed_too_much(statuses, OUTPUT_LIMIT)
        tasks = [process.pid for process in self.processes]
        without = patience.over(activity, sum(printed), tasks=tasks)
        return explain.stuck(self.ask(), without) if without else None

    def _printed(self, rank):
        """Bytes that the rank has printed, or that its C code and children have."""
        files = self.outputs[rank], self.errors[rank], self.natives[rank]
        written = sum(os.fstat(file).st_size for file in files)
        return max(written, self.board.ranks[rank].printed())

    def _glance(self):
        return [journal.status(self.recent) for journal in self.board.ranks]

    def interrupted(self):
        """The Outcome of a run that Ctrl-C has ended."""
        self.interrupts.noted = False
        seconds = time.monotonic() - self.started
        failure = explain.interrupted(self.ask(), seconds)
        return self._outcome(failure)

    def _deadline(self, now, deadline):
        """When to stop waiting for a better cause, None while all is well."""
        times = [now + GRACE["died"]] if self.dead else []
        times += [
            now + GRACE[message.cause]
            for message in self.last.values()
            if message.kind == "failed"
        ]
        return min(times + [deadline] * (deadline is not None), default=None)

    def collect(self, seconds):
        """Take in what the ranks have sent, or that they have ended."""
        handles = {link: rank for rank, link in enumerate(self.links) if link}
        for rank, process in enumerate(self.processes):
            if rank not in self.dead and rank not in self.last:
                handles[process.sentinel] = rank
        for handle in connection.wait(list(handles), seconds):
            rank = handles[handle]
            if handle is self.links[rank]:
                self._receive(rank)
            else:
                while self.links[rank] and self.links[rank].poll():
                    self._receive(rank)
                if rank not in self.last:
                    self.dead[rank] = self.processes[rank].exitcode

    def _receive(self, rank):
        try:
            message = self.links[rank].recv()
        except (EOFError, OSError):
            self.links[rank].close()
            self.links[rank] = None
            return
        if message.kind == "lines":
            sys.stdout.write(message.text)
            sys.stdout.flush()
        elif message.kind == "partial":
            self.partial[rank] = message.report
        else:
            self.last[rank] = message

    # what is known

    def ask(self):
        """The status of every rank, after asking those still there."""
        asked = [rank for rank in range(self.n) if self._answers(rank)]
        for rank in asked:
            with contextlib.suppress(OSError):
                self.links[rank].send("tell")
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not self.interrupts.noted:
            if all(r in self.partial or not self._answers(r) for r in asked):
                break
            self.collect(0.02)
        return [self._status(rank) for rank in range(self.n)]

    def _answers(self, rank):
        gone = rank in self.last or rank in self.dead
        return not gone and rank < len(self.processes) and self.links[rank]

    def _status(self, rank):
        if rank in self.last:
            status = self.last[rank].report.status
            if self.last[rank].transport:
                status.note = "connection lost"
            return status
        status = self.board.ranks[rank].status(self.recent)
        if rank in self.dead:
            status.state, status.call = "died", None
        elif rank in self.partial:
            status.where = self.partial[rank].status.where
        else:
            status.where = ("", 0)
        return status

    def native_text(self, rank):
        """What C code of the rank has written."""
        return _read(self.natives[rank])

    def _outcome(self, failure):
        reports = [self._report(rank) for rank in range(self.n)]
        number_messages(reports)
        start = self.board.joined()
        moments = [message.moment for message in self.last.values()]
        elapsed = max(moments, default=time.perf_counter()) - start
        if failure is None:
            self._let_go()
        return Outcome(reports, max(elapsed, 0.0) if start else 0.0, failure)

    def _report(self, rank):
        if rank in self.last:
            report = self.last[rank].report
            report.error = causes.error_of(self.last[rank])
        else:
            report = self.partial.get(rank) or RankReport(rank, Status(rank))
            report.status = self._status(rank)
        report.output = _read(self.outputs[rank])
        report.errors = _read(self.errors[rank])
        return report

    # ending

    def _let_go(self):
        """The ranks may end; those that do not do so soon are left to `end`."""
        for link in self.links:
            with contextlib.suppress(OSError, AttributeError):
                link.send("end")
        deadline = time.monotonic() + PARTING
        for process in self.processes:
            while process.exitcode is None and time.monotonic() < deadline:
                connection.wait([process.sentinel], TICK)
                self.interrupts.check()

    def end(self):
        """Every process has ended, with those it started; every file is closed."""
        for process in self.processes:
            alive = process.exitcode is None
            if hasattr(os, "killpg"):
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            if alive:
                process.kill()
        for process in self.processes:
            process.join()
            process.close()
        for link in self.links:
            if link is not None:
                link.close()
        for fd in self.outputs + self.errors + self.natives:
            os.close(fd)
        self.board.close()


def _server(here, backlog):
    """A socket at which the ranks meet, on this machine or on the first node."""
    if here is None:
        return _server_here(backlog)
    open_one = lambda: socket.create_server((here.address(0), 0), backlog=backlog)
    return here.inside(0, open_one)


def _server_here(backlog):
    """A socket on the loopback interface, where the ranks of this machine meet."""
    try:
        server = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(server.getsockname())  # sends nothing, but finds the way
    except OSError as error:
        raise RuntimeError(
            "ranks that are processes meet at 127.0.0.1, which cannot be reached here "
            f'({error.strerror or error}): use backend="sim", or turn the loopback '
            "device on (ip link set lo up)"
        ) from error
    return server


def _write(fd, data):
    with open(fd, "wb", closefd=False) as file:
        file.write(data)


def _read(fd):
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read().decode("utf-8", "replace")
