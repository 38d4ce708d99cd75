"""Rivals that do the same work on the same ranks, side by side in one run.

They take turns, round by round, so that whatever else the machine does hits all of
them.  A time lasts from when the last rank has come until the last one is done, by the
clock that the processes share.  Of the rounds the median counts.
"""

import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from d2lpar.launch import run as launch
from d2lpar.report.units import show_seconds

TIMEOUT = 300.0  # seconds without a call: slow machines may take long
ON_CPU = {"backend": "gloo", "device": "cpu", "timeout": TIMEOUT}  # whatever is usual
MOST = 40  # rounds
WIDTHS = {f"width {w}": (w,) for w in (256, 512, 1024)}  # of layers


class LineUp(NamedTuple):
    """The rivals on a rank: {name: program}, PyTorch's first.

    A program returns tensors, which must be those of the first rival in the end.
    `prepare()` comes before each turn and does not count.
    """

    programs: dict
    prepare: Callable = lambda: None


def take_turns(line_up, seconds):
    """{name: list of (start, stop)} of this rank, one per round, and the last tensors.

    A round runs each program once, from a barrier on; the next round begins with
    another.  The first round warms up.  There are at least 3 more, then as many as fit.
    """
    names, found = list(line_up.programs), {}
    mine = lambda x: x.to_local() if hasattr(x, "to_local") else x  # of a DTensor
    for k in itertools.count():
        if k < 2:
            times, began = {name: [] for name in names}, launch.now()
        for name in names[k % len(names) :] + names[: k % len(names)]:
            line_up.prepare()
            dist.barrier()
            start = launch.now()
            tensors = line_up.programs[name]()
            times[name].append((start, launch.now()))
            found[name] = [mine(x).detach().clone() for x in tensors]
        over = torch.tensor([k >= MOST or (k >= 3 and launch.now() - began > seconds)])
        dist.broadcast(over, 0)
        if over:
            return times, found


def durations(results):
    """{name: seconds}: from when all ranks are there until all are done."""
    lasted = lambda spans: max(b for _, b in spans) - max(a for a, _ in spans)
    rounds = {k: zip(*(each[k] for each in results), strict=True) for k in results[0]}
    return {name: list(map(lasted, spans)) for name, spans in rounds.items()}


class Race(NamedTuple):
    """Who is compared at what."""

    name: str  # as a title says it: "A pipeline"
    line_up: Callable  # (*arguments) -> LineUp, called on each rank
    courses: dict  # {name: arguments}: a column each; only the first in a hurry
    seconds: tuple = (8.0, 1.0)  # that a usual race lasts, and a quick one

    def measure(self, n, course, seconds):
        """Race on n ranks, and return a row per rival.

        `ratio` is how many times as fast it is as PyTorch's, the median of the rounds.
        """
        given = self.line_up, self.courses.get(course, course), seconds
        run = launch.run(_take_part, *given, world_size=n, **ON_CPU)
        times = durations(run.results)
        theirs, rows = next(iter(times.values())), []
        title = f"{self.name} on {n} Gloo ranks: time, and how many times as fast"
        for name, mine in times.items():
            took = statistics.median(mine)
            ratio = statistics.median(a / b for a, b in zip(theirs, mine, strict=True))
            shown = f"{ratio:.2f}" if rows else show_seconds(float(f"{took:.3g}"))
            figures = {"seconds": took, "ratio": ratio, "rounds": len(mine)}
            rows.append(row(title, name, str(course), shown, **figures))
        return rows

    def plan(self, ranks, quick):
        """Functions that return rows, one per number of ranks and course."""
        courses = list(self.courses)[: 1 if quick else None]
        pairs, seconds = itertools.product(ranks, courses), self.seconds[quick]
        return [partial(self.measure, *pair, seconds) for pair in pairs]


def _take_part(line_up, arguments, seconds):
    """The times of this rank's turns; raise where a rival computes something else."""
    times, found = take_turns(line_up(*arguments), seconds)
    first, *others = found
    gap = lambda a, b: (a - b).abs().max() / (b.abs().max() + 1e-6)  # rounding aside
    for name in others:
        pairs = list(zip(found[name], found[first], strict=True))
        if any(a.shape != b.shape or not gap(a, b) <= 1e-3 for a, b in pairs):
            raise AssertionError(f"{name} does not compute what {first} does")
    return times


def step_of(model, backward):
    """A function of a whole step: gradients cleared, `backward()`, update.

    It returns all weights and gradients, in the order of their names.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    weights = [weight for _, weight in sorted(model.named_parameters())]

    def step():
        optimizer.zero_grad()
        backward()
        optimizer.step()
        return [*weights, *(weight.grad for weight in weights)]

    return step


def row(table, name, column, shown, **figures):
    """A cell of a table: its text and its figures."""
    return {"table": table, "row": name, "column": column, "shown": shown} | figures


def tables(rows):
    """Tables of rich, with a line per name and a column per course."""
    from rich import box, table

    for title in dict.fromkeys(row["table"] for row in rows):
        mine = [row for row in rows if row["table"] == title]
        cells = {(row["row"], row["column"]): row["shown"] for row in mine}
        names, columns = map(dict.fromkeys, zip(*cells, strict=True))
        made = table.Table("", *columns, title=title, box=box.SIMPLE)
        for name in names:
            made.add_row(name, *(cells.get((name, column), "") for column in columns))
        yield made
