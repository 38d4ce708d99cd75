"""The life of a rank that is a process, from its start to its report."""

import contextlib
import ctypes
import dis
import faulthandler
import linecache
import mmap
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..report.engine import Status, Waiting, is_users, waiting, where_called
from ..report.texts import shorten
from ..report.threads import beginning, innermost_user, user_line
from ..sim import by_value, ship, torch_private
from ..sim.environment import of_rank
from ..sim.outcome import RankReport
from ..sim.pipes import Link, Message, NoInput, Output
from ..sim.randomness import DrawnOnHost
from . import gloo, nodes
from .journal import JOINED, Board
from .recorded import RecordedEngine


class Start(NamedTuple):
    """What a worker is told: the same for all ranks but `rank`."""

    rank: int
    world_size: int
    backend: str
    device: str | None
    seed: int
    port: int
    live: bool
    node: nodes.Node | None = None


def luggage(payload):
    """What every rank takes along from the launcher's process, as bytes."""
    cells = {
        name: entry
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and entry[1] is None  # there is no such file
    }
    return pickle.dumps((dict(os.environ), list(sys.argv), cells, payload))


def main(start, link, files):
    """Run the rank and report; ends when the launcher says so, or is gone."""
    _own_session()
    if start.node:
        nodes.enter(files["node"])  # before any thread is started
    _redirect(files)
    payload = [_unpack_luggage(files["luggage"])]
    os.environ.update(of_rank(start.rank, start.world_size, start.port, start.node))
    board = Board(start.world_size, files["board"])
    engine = RecordedEngine(start, real_device(start), board)
    link = Link(link)
    link.listen(lambda: _partial(engine, user_line(main_thread)))
    main_thread = threading.current_thread()
    sys.stdout = Output(files["output"], engine.journal, link if start.live else None)
    sys.stderr = Output(files["errors"], engine.journal)
    sys.stdin = NoInput()
    _note_last_line(engine)

    def run():
        return run_rank(start, engine, payload, _connect_store(start, files))

    link.send(live(engine, run))
    link.ended.wait()


def _own_session():
    """Ctrl-C reaches the launcher only; without the fork server this process ends."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):
            os.setsid()
    if hasattr(signal, "pthread_sigmask"):  # the fork server hears no Ctrl-C at all
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _redirect(files):
    """What C code writes goes to a file that is only shown if the rank dies."""
    if "native" in files:
        os.dup2(files["native"], 1)
        os.dup2(files["native"], 2)
        faulthandler.enable(files["native"], all_threads=False)


def _unpack_luggage(packed):
    """The payload; environment, arguments and notebook cells are in place."""
    if isinstance(packed, int):
        with mmap.mmap(packed, 0, access=mmap.ACCESS_READ) as data:
            environ, argv, cells, payload = pickle.loads(data)
        os.close(packed)
    else:
        environ, argv, cells, payload = pickle.loads(packed)
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ, D2LPAR_INSIDE="1")
    sys.argv[:] = argv
    linecache.cache.update(cells)
    return payload


def real_device(start, usual=None):
    """What makes the real groups of this rank; `usual` where that is Gloo."""
    if start.backend == "nccl":
        from . import nccl

        return nccl.Device()
    return usual or gloo.Device(address=start.node and start.node.address)


def _note_last_line(engine):
    """If the rank ends itself without a report, the journal says on which line."""

    def noting(function, concerns_us):
        def noted(*arguments):
            if concerns_us(*arguments):
                engine.journal.write([], where_called())
            return function(*arguments)

        return noted

    me = os.getpid()
    os._exit = noting(os._exit, lambda *_: True)
    os.abort = noting(os.abort, lambda *_: True)
    os.kill = noting(os.kill, lambda pid, _: pid == me)
    signal.raise_signal = noting(signal.raise_signal, lambda _: True)


def live(engine, run):
    """The last Message of a rank whose life is `run()`."""
    message = Message("returned")
    result, error = None, None
    try:
        result = run()
    except BaseException as raised:
        message.kind, error = "failed", raised
    message.moment = time.perf_counter()
    engine.pause()
    with contextlib.suppress(ValueError):  # the function has closed them
        sys.stdout.flush(), sys.stderr.flush()
    engine.journal.set_state(message.kind)
    message.report = _partial(engine, ("", 0), message.kind)
    message.report.result = result
    if error is None:
        message.report.never_waited = engine.never_waited()
    if torch.cuda.is_initialized():
        message.report.peak_memory = torch.cuda.max_memory_allocated()
    if error is not None:
        describe(message, error, engine)
    return message


def _partial(engine, where, state="running"):
    """What this rank has recorded so far; `where` it is now."""
    return RankReport(
        engine.rank,
        Status(engine.rank, state, where=where, called=dict(engine.called)),
        entries=list(engine.entries),
        events=list(engine.events),
        warnings=list(engine.warnings),
    )


def _connect_store(start, files):
    """The store of this run; rank 0 serves it, at its own address."""
    serve = {"master_listen_fd": files["socket"]} if "socket" in files else {}
    return dist.TCPStore(
        start.node.store if start.node else "127.0.0.1",
        start.port,
        is_master=start.rank == 0,
        wait_for_workers=False,
        timeout=gloo.FOREVER,
        **serve,
    )


def run_rank(start, engine, payload, store):
    """The packed result of the function on this rank; the list `payload` is emptied."""
    place(start)
    torch.set_num_threads(1)
    name = f"d2lpar_{start.backend}"
    torch_private.rank_process(engine)
    torch_private.register(name)
    with (
        torch_private.watch_calls(),
        warnings.catch_warnings(),
        by_value.classes_of_a_rank(),
        DrawnOnHost() if _on_gpu(start) else contextlib.nullcontext(),
    ):
        # the simulator would show them once, processes once a rank
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")
        torch_private.join_world(name, start.rank, start.world_size, store)
        fn, args, kwargs = ship.unpack(payload.pop())
        own = getattr(fn, "profiled", fn)
        engine.function = beginning(own)
        _furnish_main(own)
        seed_everything(start.seed)
        _line_up(engine)
        value = fn(*args, **kwargs)
        engine.settle()
        return ship.pack_result(value)


def _furnish_main(fn):
    """What the function uses of its script is in `__main__`, where pickle looks."""
    if getattr(fn, "__module__", None) == "__main__":
        names = getattr(fn, "__globals__", {})
        here = vars(sys.modules["__main__"])
        for name, value in names.items():
            if not name.startswith("__"):
                here.setdefault(name, value)


def place(start):
    """The default device of this rank is in place."""
    if _on_gpu(start):
        index = int(os.environ.get("LOCAL_RANK", start.rank))
        index %= torch.cuda.device_count()
        torch.cuda.set_device(index)
        torch.set_default_device(f"cuda:{index}")
        torch.cuda.reset_peak_memory_stats()


def _on_gpu(start):
    return start.backend == "nccl" or str(start.device).startswith("cuda")


def seed_everything(seed):
    """All generators start from `seed`."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # without a look for all kinds of devices
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _line_up(engine):
    """All ranks are there; their clocks start when the last of them came."""
    engine.journal.times[JOINED] = time.perf_counter()
    engine.journal.set_state("running")
    barrier(engine)
    engine.start_clock(engine.board.joined() or time.perf_counter())


def barrier(engine):
    """All ranks have come to this line; not recorded."""
    real = engine.real(dist.group.WORLD)
    if engine.backend == "nccl":
        real.allreduce([torch.zeros(1, device="cuda")]).wait()
        torch.cuda.synchronize()
    else:
        real.barrier().wait()


def describe(message, error, engine):
    """The error is in the message, in a form that can travel."""
    report = message.report
    where = innermost_user(error.__traceback__)
    report.where = report.status.where = where if where[0] else engine.function
    shorten(error)
    report.traceback = _plain_traceback(error)
    message.transport = _is_consequence(error, engine.transport_error)
    message.mismatch = engine.mismatch
    call = engine.transport_call
    if message.transport and call is not None:
        report.status.call = call if isinstance(call, Waiting) else waiting(call)
    message.error = _packed(error)


def _plain_traceback(error):
    """The traceback as text, from the user's function on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_consequence(error, native):
    """Does this error come from the connections and not from the rank itself?"""
    while error is not None:
        if error is native:
            return True
        if isinstance(error, dist.DistNetworkError) and not _by_statement(error):
            return True
        if native is not None and str(native) and str(native) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _by_statement(error):
    """Has a `raise ...` of the user's raised this error, and not the network?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not is_users(trace.tb_frame.f_code.co_filename):
        return False
    operation, count = trace.tb_frame.f_code.co_code[trace.tb_lasti :][:2]
    return dis.opname[operation] == "RAISE_VARARGS" and count > 0


def _packed(error):
    """`error` as bytes, or one that says the same where it cannot travel."""
    try:
        data = ship.pack(error)
        ship.unpack(data)
        return data
    except Exception:
        kind = type(type(error).__name__, (RuntimeError,), {})
        return ship.pack(kind(str(error)))
