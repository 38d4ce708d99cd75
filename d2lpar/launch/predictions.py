"""`predict`: a program on processes, measured beside what the simulator says of it.

For GPUs there are the tables of `experiments`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..report import plots
from ..report.runs import Run, text_table
from ..report.units import show_seconds
from . import run as launch
from .arguments import check_function
from .rounds import QUIET, LineUp, counted, durations, others, quiet_rounds, take_turns
from .this_machine import Cluster

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USUAL_RANKS = 2, 4  # for which `Cluster.here` measures as a rule
ON_CPU = {"backend": "gloo", "device": "cpu"}
COLUMNS = "program", "ranks", "measured", "half between", "predicted", "error"


@dataclass(frozen=True, repr=False, eq=False)
class Prediction:
    """Programs measured and predicted: `str` is a table, `rows` are its numbers.

    rows         dictionaries with program, measured, low, high (half of the rounds lie
                 between these), predicted, all in seconds; error, a part of measured
    measured     the Run on processes
    predicted    the Run in the simulator
    notes        sentences: what predicted, and what disturbed
    """

    rows: list[dict[str, Any]]
    measured: Run
    predicted: Run
    notes: list[str]

    def __repr__(self):
        table = text_table([list(COLUMNS), *map(self._texts, self.rows)])
        return "\n".join([table, *self.notes])

    def _texts(self, row):
        between = " to ".join(_short(row[key]) for key in ("low", "high"))
        times = [_short(row[key]) for key in ("measured", "predicted")]
        error, ranks = f"{row['error']:+.0%}", f"{self.measured.world_size} processes"
        return [row["program"], ranks, times[0], between, times[1], error]

    def plot(self, program: str | None = None, exposed: bool = False) -> Figure:
        """Draw one round of a program, measured and predicted, on one time axis.

        It is the round of the median; without a name, that of the first program.
        """
        name = self.rows[0]["program"] if program is None else program
        runs = {"measured": self.measured, "predicted": self.predicted}
        parts = {key: _round(run, name) for key, run in runs.items()}
        return plots.compare_timelines(parts, None, exposed)


def predict(
    fn: Callable,
    *args: Any,
    world_size: int | None = None,
    cluster: Cluster | None = None,
    seconds: float = 0.5,
) -> Prediction:
    """Time on processes what `fn` prepares, and predict it in the simulator.

    On every rank `fn(*args)` returns a function without arguments, or several as a
    dictionary {name: function}.  These take turns, round by round, each from a barrier
    on.  A time lasts until the last rank is done, and the median of the rounds counts;
    the first one warms up.

    cluster    predicts; None: `Cluster.here()`
    seconds    for all rounds; as many again while other programs are busy
    """
    check_function(fn, args, {}, {})
    n, notes = launch.ranks(world_size), []
    cluster = cluster or _this_machine(n, notes)
    how = {"world_size": n, "backend": "sim", "cluster": cluster, "device": "cpu"}
    guess = launch.run(simulated, fn, *args, **how)
    real = launch.run(_measured, seconds, fn, *args, world_size=n, **ON_CPU)
    return Prediction(_rows(real, guess), real, guess, notes + _disturbed(real))


def _this_machine(n, notes):
    """The cluster that predicts; the notes say which it is."""
    ranks = USUAL_RANKS if n <= max(USUAL_RANKS) else (*USUAL_RANKS, n)
    found = Cluster.here(ranks=ranks)
    source = found.source and f", from {found.source}"
    notes += [f"Predicted for {found.name}{source}.", *found.disturbed]
    return found


def _disturbed(run):
    """A sentence if other programs were busy in the rounds that count."""
    kept = quiet_rounds(run.results)
    busy = statistics.median(counted(others(run.results), kept))
    if busy <= QUIET:
        return []
    return [f"Other programs took {busy:.0%} of the processors while it was measured."]


# --------------------------------------------------------------- on every rank


def _measured(seconds, fn, *args):
    return take_turns(LineUp(_programs(fn, args)), seconds, steady=True)


def simulated(fn, *args):
    """{name: [(start, stop)]} of what fn prepares, in a second round of all."""
    programs, spans = _programs(fn, args), {}
    for _ in range(2):
        for name, program in programs.items():
            dist.barrier()
            start = launch.now()
            program()
            spans[name] = [(start, launch.now())]
    return spans


def _programs(fn, args):
    made = fn(*args)
    named = {_name(fn): made} if callable(made) else made
    if isinstance(named, dict) and named and all(map(callable, named.values())):
        return named
    raise TypeError(
        f"predict times what {_name(fn)} returns: a function without arguments, or a "
        f"dictionary of such functions by name, not {type(made).__name__}."
    )


def _name(fn):
    return getattr(getattr(fn, "func", fn), "__name__", type(fn).__name__)


# ------------------------------------------------------------ what comes of it


def _rows(real, guess):
    measured, predicted = durations(real.results, quiet=True), durations(guess.results)
    return [_row(name, times, *predicted[name]) for name, times in measured.items()]


def _row(name, times, guess):
    low, middle, high = statistics.quantiles(times, n=4)
    row = {"program": name, "measured": middle, "low": low, "high": high}
    return row | {"predicted": guess, "error": guess / middle - 1}


def _short(seconds):
    return show_seconds(float(f"{seconds:.3g}"))


def _round(run, name):
    """The timeline of the round whose duration is the median of all."""
    spans = list(zip(*(each[name] for each in run.results), strict=True))
    ends = [[max(x) for x in list(zip(*each, strict=True))[:2]] for each in spans]
    ends.sort(key=lambda end: end[1] - end[0])
    return run.timeline.between(*ends[len(ends) // 2])
