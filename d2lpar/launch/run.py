"""`run`: one function on every rank of a cluster, in one of three worlds."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ..report import explain, loose_ends
from ..report.errors import DeadlockError
from ..report.ledger import Ledger
from ..report.runs import Run
from ..report.timeline import Timeline
from ..sim import ship, torch_private
from ..sim.cluster import Cluster
from ..sim.labels import label
from . import versions
from .arguments import (
    TIMEOUT,
    USUAL,
    backend_of,
    check_function,
    check_options,
    cluster_of,
    device_of,
    from_environment,
    world_size_of,
)
from .limits import running
from .progress import Progress, in_notebook

_defaults = {"world_size": 4, "backend": "sim", "cluster": None, "device": None}


def defaults(
    world_size: int | None = None,
    backend: str | None = None,
    cluster: Cluster | None = None,
    device: str | torch.device | None = None,
) -> None:
    """Set defaults for later calls of `run`; None changes nothing.

    The environment variables D2LPAR_BACKEND and D2LPAR_RANKS override them.  In a
    notebook that names several ranks, torch is loaded in the background for processes.
    Raises ValueError or TypeError for what no run could use.
    """
    given = {
        "world_size": None if world_size is None else world_size_of(world_size),
        "backend": None if backend is None else backend_of(backend),
        "cluster": None if cluster is None else cluster_of(cluster),
        "device": None if device is None else device_of(device),
    }
    _defaults.update({name: x for name, x in given.items() if x is not None})
    if backend in ("gloo", "auto") or (in_notebook() and world_size not in (None, 1)):
        from . import processes

        processes.warm()  # the first run on processes need not wait for it


def run(
    fn: Callable,
    *args: Any,
    world_size: int | None = None,
    backend: str | None = None,
    cluster: Cluster | None = None,
    device: str | torch.device | None = None,
    timeout: float = TIMEOUT,
    seed: int = 0,
    buffered: bool = False,
    profile: bool = False,
    **kwargs: Any,
) -> Run:
    """Every rank has executed `fn(*args, **kwargs)`; their results are in the `Run`.

    `fn` uses plain `torch.distributed`.  Each rank has its own copy of it, of what it
    uses and of the arguments, and random numbers from `seed`: on a GPU, too, those of
    the CPU.  Ranks that are threads ("sim") share the modules that are imported.

    backend     "sim" (threads, virtual time), "gloo" (processes), "nccl" (GPUs) or
                "auto": "nccl" with at least `world_size` GPUs, else "gloo"
    cluster     the `Cluster` that "sim" simulates
    device      "cuda" shares one GPU in "sim" and "gloo"; "meta" computes no values
    timeout     real seconds without progress, after which the run ends
    buffered    "sim": small messages leave before they are received, as on sockets
    profile     "gloo", "nccl": PyTorch's profiler watches, and the Run has `profile`

    A rank makes progress when it starts or ends a communication call, prints or
    returns, not when it sleeps or looks at `is_completed()`; printing alone ends after
    ten timeouts.  D2LPAR_PROGRESS=0 hides what a run shows after three seconds.

    Raises RankError (DeadlockError, MismatchError) where a rank fails, ValueError or
    TypeError for bad arguments, RuntimeError where the hardware is missing.  Ctrl-C is
    a KeyboardInterrupt that has a line for every rank, and the Run so far.
    """
    where, options = (world_size, backend, cluster, device), (timeout, seed, buffered)
    ours = zip(USUAL, (*where, *options, profile), strict=True)
    check_function(fn, args, kwargs, dict(ours))
    versions.warn()
    return run_in(World(*where), fn, args, kwargs, *options, profile)


def run_in(world, fn, args, kwargs, timeout, seed=0, buffered=False, profile=False):
    """As `run`, in a World."""
    _not_inside_a_rank()
    check_options(timeout, seed, buffered, profile)
    payload = _packed(fn, args, kwargs, world.watched(fn) if profile else fn)
    with running(), Progress() as progress:
        outcome = world.launch(payload, timeout, seed, buffered, progress)
    return _finished(outcome, world, profile)


def ranks(world_size=None):
    """The number of ranks, checked; where none is given, what `run` would take."""
    usual = from_environment("D2LPAR_RANKS", world_size_of) or _defaults["world_size"]
    return world_size_of(usual if world_size is None else world_size)


def device() -> torch.device:
    """The device of this rank, or outside of a run the one that `run` would give."""
    engine = torch_private.current_engine()
    usual = _defaults["device"] or "cpu"
    return torch.get_default_device() if engine else torch.device(usual)


def now() -> float:
    """Seconds on this rank's clock: virtual in "sim", else measured.

    A GPU lags behind its rank: the clock is read when it has caught up.
    """
    engine = torch_private.current_engine()
    return engine.caught_up() if engine else time.perf_counter()


def simulated_cluster() -> Cluster | None:
    """The Cluster that this rank is simulated on; None for a real process."""
    engine = torch_private.current_engine()
    return engine.cluster if engine else None


def sleep(seconds: float, name: str | None = None) -> None:
    """Keep this rank busy for `seconds`: virtual in "sim", else real.

    On the timeline it has this name, such as "F0"; see `d2lpar.label`.
    """
    if not seconds >= 0:
        raise ValueError(f"sleep needs a number of seconds >= 0, not {seconds!r}")
    engine = torch_private.current_engine()
    if engine is None:
        time.sleep(seconds)
    else:
        with label(name or engine.label):
            engine.sleep(seconds)


class World:
    """Where a run takes place; in "sim", `executed` ranks may stand for all of them."""

    def __init__(self, world_size, backend, cluster, device, executed=None):
        self.executed, env = executed, os.environ
        inside = "TORCHELASTIC_RUN_ID" in env or "SLURM_PROCID" in env
        inside = inside and "RANK" in env and "WORLD_SIZE" in env
        self.torchrun = inside and backend != "sim"
        usual = env["WORLD_SIZE"] if self.torchrun else None
        self.world_size = ranks(usual if world_size is None else world_size)
        name = from_environment("D2LPAR_BACKEND", backend_of) or _defaults["backend"]
        name = name if backend is None else backend
        if name == "sim" and inside:  # other numbers of ranks stay simulated
            self.torchrun = self.torchrun and self.world_size == int(env["WORLD_SIZE"])
        self.device = _defaults["device"] if device is None else device_of(device)
        self.backend = self._choose(backend_of(name))
        self.cluster = cluster_of(cluster or _defaults["cluster"])
        if self.backend == "sim":
            self.cluster.check_world_size(self.world_size)
        self._check_hardware()

    def _choose(self, name):
        if self.torchrun and name == "sim":
            name = "auto"
        if name != "auto":
            return name
        return "nccl" if torch.cuda.device_count() >= self._local() else "gloo"

    def _local(self):
        """How many of the ranks are on this machine."""
        here = os.environ.get("LOCAL_WORLD_SIZE") if self.torchrun else None
        return int(here or self.world_size)

    def _check_hardware(self):
        if self.backend == "nccl" and torch.cuda.device_count() < self._local():
            raise RuntimeError(
                f'backend="nccl" with world_size={self.world_size} needs as many GPUs, '
                f"and this machine has {torch.cuda.device_count()}: use "
                'backend="auto", which takes "gloo" for so many ranks, or "sim"'
            )
        if self.device and torch.device(self.device).type == "cuda":
            if not torch.cuda.is_available():
                raise RuntimeError('device="cuda" needs a GPU, and torch sees none')
        if self.device == "meta" and self.backend != "sim":
            raise ValueError('device="meta" has no values to send: use backend="sim"')

    def watched(self, fn):
        """The function under PyTorch's profiler."""
        if self.backend == "sim":
            raise ValueError(
                "profile=True is for ranks that are processes: use backend="
                '"gloo" or "nccl". What a simulated rank does is in run.timeline.'
            )
        from ..report.profiled import Profiled

        return Profiled(fn)

    def launch(self, payload, timeout, seed, buffered, progress):
        """The Outcome of the packed function in this world."""
        if self.backend == "sim":
            from ..sim.simulator import Simulator

            about = self.cluster, seed, timeout, buffered, self.device, self.executed
            return Simulator(self.world_size, *about).run(payload, progress)
        if self.torchrun:
            from . import torchrun

            return torchrun.launch_inside(payload, self, timeout, seed)
        from . import processes

        ranks = self.world_size, self.backend, self.device
        return processes.launch(payload, *ranks, timeout, seed, progress)

    def show(self, outcome):
        """What the ranks have printed is printed; under torchrun, once."""
        first = not self.torchrun or os.environ["RANK"] == "0"
        live = os.environ.get("D2LPAR_LIVE") == "1" and not self.torchrun
        if (first or outcome.failure) and not live:
            shown = "".join(_shown(r.output, outcome.failure) for r in outcome.reports)
            print(shown, end="", flush=True)
        for report in outcome.reports:
            if report.errors:
                text = _shown(report.errors, outcome.failure)
                print(text, end="", file=sys.stderr, flush=True)


def _finished(outcome, world, profile=False):
    """The Run, with what was printed shown; or the failure is raised, with the Run."""
    results, failure = _results(outcome.reports)
    outcome.failure = outcome.failure or failure
    traces = [pair[1] for pair in results if pair] if profile else []
    results = [pair and pair[0] for pair in results] if profile else results
    result = _as_run(outcome, world, results, traces)
    if outcome.failure is None and result.clock == "measured":
        outcome.failure = _silent_mismatch(outcome)  # "sim" has seen to it
    world.show(outcome)
    lone = outcome.left_over and result.ledger.unmatched()
    if outcome.failure is None and lone:
        result.warnings += loose_ends.unmatched(lone)
    else:  # a message without its other end can be waited for in vain only
        result.warnings += result.unwaited
    if isinstance(outcome.failure, DeadlockError) and result.unwaited:
        outcome.failure.args = (f"{result.unwaited[0]}\n{outcome.failure}",)
    if outcome.failure is not None:
        outcome.failure.run = result
        raise outcome.failure
    return result


def _results(reports):
    """What the ranks returned, and the error for the first that cannot be rebuilt."""
    results, failure = [], None
    for report in reports:
        value = None
        try:
            with torch.device("cpu"):  # that is where results arrive
                value = report.result and ship.unpack(report.result.data)
        except (Exception, SystemExit) as error:
            if failure is None:
                failure = explain.lost_result(reports, report, error)
        results.append(value)
    return results, failure


def _as_run(outcome, world, results, traces=()):
    reports = outcome.reports
    ledger = Ledger([report.entries for report in reports], world.world_size)
    sim = world.backend == "sim"
    memory = [report.peak_memory for report in reports]
    events = [event for report in reports for event in report.events]
    clock = "virtual" if sim else "measured"
    return Run(
        results=results,
        output="".join(_whole_lines(report.output) for report in reports),
        warnings=list(dict.fromkeys(w for report in reports for w in report.warnings)),
        elapsed=outcome.elapsed,
        clock=clock,
        backend=world.backend,
        world_size=world.world_size,
        device=world.device or ("cuda" if world.backend == "nccl" else "cpu"),
        timeline=Timeline(events, len(reports), clock=clock),
        profile=Timeline.from_profiler(*traces) if traces else None,
        bytes_sent=ledger.bytes_sent(),
        messages=ledger.messages(),
        ledger=ledger,
        traffic=ledger.traffic(),
        peak_memory=None if None in memory else memory,
        cluster=world.cluster if sim else None,
        aside=[report.aside for report in reports],
        unwaited=loose_ends.never_waited({r.rank: r.never_waited for r in reports}),
    )


def _whole_lines(text):
    text = text.encode("utf-8", "backslashreplace").decode()  # whatever was printed
    return text if not text or text.endswith("\n") else text + "\n"


SHOWN = 20_000  # characters; what more a rank of a failed run has printed is cut


def _shown(text, failed):
    """What a rank has printed; of a failed run's endless prints, the two ends."""
    text = _whole_lines(text)
    if not failed or len(text) <= SHOWN:
        return text
    half, left_out = SHOWN // 2, len(text) - SHOWN
    note = f"\n... {left_out:,} characters are only in the error's .run.output ...\n"
    return text[:half] + note + text[-half:]


def _silent_mismatch(outcome):
    """The error for ends of a message that do not fit but passed, or None."""
    statuses = Ledger([report.entries for report in outcome.reports]).mismatch()
    return statuses and explain.mismatch(*statuses)


def _not_inside_a_rank():
    if torch_private.current_engine() is not None:
        raise RuntimeError(
            "run was called inside run: a rank cannot start ranks; call the function "
            "directly, or start from outside"
        )


def _packed(fn, args, kwargs, watched):
    functions = filter(callable, [fn, *args, *kwargs.values()])
    try:
        return ship.pack((watched, args, kwargs), *functions)
    except TypeError as error:
        name = getattr(fn, "__name__", repr(fn))
        raise TypeError(f"{name} or an argument cannot be copied: {error}") from error
