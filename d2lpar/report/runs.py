"""What a run leaves behind, and several runs side by side in one table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from . import player, plots
from .moves import plot_moves
from .player import Player
from .timeline import Timeline
from .units import counted, show_bytes, show_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {  # key of a row: heading
    "name": "run",
    "world": "world",
    "rounds": "rounds",
    "messages": "messages",
    "bytes_busiest": "bytes sent, busiest rank",
    "bytes_total": "bytes sent, all ranks",
    "time": "time",
    "peak_memory": "peak memory, busiest rank",
}


@dataclass(kw_only=True, repr=False, eq=False)
class Run:
    """The record of one `d2lpar.run`.

    results       one return value per rank; None where a rank did not return
    output        the printed text, in rank order
    warnings      sentences about what is allowed but risky
    elapsed       seconds, by the clock ("virtual" or "measured")
    backend       the world: "sim", "gloo" or "nccl"; device "cpu", "cuda", "meta"
    timeline      all events; None where nothing was recorded
    profile       what PyTorch's profiler saw, after `run(..., profile=True)`
    bytes_sent    payload bytes per rank; messages, their number per rank
    rounds        longest chain of messages, one in and one out per rank at a time
    unwaited      sentences on calls that a rank began and never waited for
    traffic       [n, n] bytes from row to column
    peak_memory   most bytes of tensors alive at once, per rank; None if unknown.
                  In the simulator and while `tracemalloc` traces, also the most
                  bytes of Python's objects and numpy's arrays
    cluster       the simulated Cluster, None in the other worlds
    aside         tensor operations per rank in threads that the rank has started;
                  they are not counted in the other worlds
    """

    results: list[Any]
    output: str
    warnings: list[str]
    elapsed: float
    clock: str
    backend: str
    world_size: int
    device: str
    timeline: Timeline | None
    bytes_sent: list[int]
    messages: list[int]
    ledger: Any
    traffic: ndarray
    peak_memory: list[int] | None
    cluster: Any  # a Cluster or None
    aside: list[int]
    unwaited: list[str]
    profile: Timeline | None = None

    @cached_property
    def rounds(self) -> int | None:
        """Counted when first asked for: a run of many messages takes a while."""
        return self.ledger.rounds()

    @cached_property
    def by_formula(self) -> bool:
        """Whether native collectives took part whose time a formula says, in `sim`.

        Then the run shows what the formula assumes, and nothing about the library.
        """
        return self.backend == "sim" and self.ledger.has_native()

    @property
    def world(self) -> str:
        """Where it ran: `sim (plain)`, `gloo`, `gloo (cuda)`, `nccl`."""
        if self.cluster is not None:
            return f"{self.backend} ({self.cluster.name})"
        kind = str(self.device).partition(":")[0]
        usual = {"gloo": "cpu", "nccl": "cuda"}.get(self.backend, kind)
        return self.backend if kind == usual else f"{self.backend} ({kind})"

    def plot_moves(self, title: str | None = None) -> Figure:
        """Draw who sends which chunk to whom, round by round."""
        node = self.cluster.node if self.cluster else None
        return plot_moves(self.timeline, title, node)

    def plot_traffic(self) -> Figure:
        """Draw the simulated cluster with the bytes that its links carried."""
        if self.cluster is None:
            raise ValueError(
                f"Which links this run in {self.world} used is not known. Draw it on "
                'a cluster of your choice: d2lpar.Cluster.of("4xA100").plot(run).'
            )
        return self.cluster.plot(self)

    def __repr__(self):
        line = (
            f"Run: {counted(self.world_size, 'rank')} in {self.world}, "
            f"{show_seconds(self.elapsed)} {self.clock}, "
            f"{counted(sum(self.messages), 'message')}, "
            f"{show_bytes(sum(self.bytes_sent))} sent"
        )
        if self.warnings:
            line += f"\n     {counted(len(self.warnings), 'warning')}: see .warnings"
        return line


class Comparison:
    """Several runs in one table; `str` is the table, `rows` are its numbers.

    A row holds name, world, rounds, messages (all ranks), bytes_busiest,
    bytes_total, time (seconds), clock, by_formula (see `Run`), and peak_memory
    (busiest rank, or None).
    """

    def __init__(self, runs: dict[str, Run]):
        self.runs = runs
        self.rows = [_row(name, run) for name, run in runs.items()]

    def cells(self) -> list[list[str]]:
        """The table as text, heading first, a list per row."""
        return [list(COLUMNS.values())] + [_texts(row) for row in self.rows]

    def __repr__(self):
        return text_table(self.cells())

    def _repr_html_(self):
        head, *body = self.cells()
        lines = ["<table>", "<caption>Runs compared</caption>", "<thead><tr>"]
        lines += [f'<th scope="col">{escape(text)}</th>' for text in head]
        lines += ["</tr></thead>", "<tbody>"]
        for name, *texts in body:
            cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
            lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
        return "\n".join(lines + ["</tbody>", "</table>"])

    def plot(self, width: float | None = None, exposed: bool = False) -> Figure:
        """The timelines of all runs on one time axis; `exposed` as in `Timeline`."""
        timelines = {name: run.timeline for name, run in self.runs.items()}
        return plots.compare_timelines(timelines, width, exposed)

    def play(self, exposed: bool = False) -> Player:
        """The timelines as a player, all at the same time; see `Timeline.play`."""
        timelines = {name: run.timeline for name, run in self.runs.items()}
        return player.compare(timelines, exposed)


def compare(**runs: Run) -> Comparison:
    """A table of several runs: `compare(naive=run1, ring=run2)`."""
    if not runs:
        raise TypeError("compare wants runs by name, such as compare(ring=run1).")
    for name, run in runs.items():
        if not isinstance(run, Run):
            kind = type(run).__name__
            raise TypeError(f"compare wants runs, but {name} is of type {kind}.")
    return Comparison(runs)


def text_table(cells):
    """Lines of text columns; the heading wraps, numbers stand to the right."""
    head, *body = cells
    words = [text.split(" ") for text in head]
    widths = [
        max(map(len, [*words[i], *(row[i] for row in body)])) for i in range(len(head))
    ]
    heads = [_wrap(text, width) for text, width in zip(head, widths, strict=True)]
    height = max(map(len, heads))
    lines = [[""] * (height - len(h)) + h for h in heads]
    table = [list(line) for line in zip(*lines, strict=True)]
    table.append(["-" * width for width in widths])
    return "\n".join(_line(row, widths) for row in table + body)


def _line(texts, widths):
    """Two columns of words, the others of numbers."""
    fields = [
        f"{text:<{width}}" if i < 2 else f"{text:>{width}}"
        for i, (text, width) in enumerate(zip(texts, widths, strict=True))
    ]
    return "  ".join(fields).rstrip()


def _wrap(text, width):
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _row(name, run):
    memory = [b for b in run.peak_memory or [] if b is not None]
    return {
        "name": name,
        "world": f"{run.world_size} x {run.world}",
        "rounds": run.rounds,
        "messages": sum(run.messages),
        "bytes_busiest": max(run.bytes_sent, default=0),
        "bytes_total": sum(run.bytes_sent),
        "time": run.elapsed,
        "clock": run.clock,
        "by_formula": run.by_formula,
        "peak_memory": max(memory, default=None),
    }


def _texts(row):
    texts = dict(row)
    for key in ("rounds", "messages"):
        texts[key] = "-" if row[key] is None else f"{row[key]:,}"
    for key in ("bytes_busiest", "bytes_total", "peak_memory"):
        texts[key] = "-" if row[key] is None else show_bytes(row[key])
    clock = "by formula" if row["by_formula"] else row["clock"]
    texts["time"] = f"{show_seconds(row['time'])} {clock}"
    return [texts[key] for key in COLUMNS]
