"""What every rank did and when: the record of a run, as text and as a trace file.

A timeline is a list of events.  Each rank has up to four kinds of rows:

    compute         what the rank itself does; "blocked" or "transfer" inside a call
    send, recv      its messages; the two ends of a message carry the same id
    comm            its collectives, a row per group: "comm", "comm <group>"

A rank is blocked in a call as long as no message or collective of its own is on the
wire, and transfers while one is.  A measured run does not see the wire: there both
are "wait".
"""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import plots
from .events import KINDS, WAITS, Event, merged, split_waits
from .player import Player
from .profiled import events_of
from .trace import chrome_trace
from .twin import text_twin
from .units import counted, show_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Timeline:
    """The events of all ranks, sorted by start, rank and row."""

    def __init__(self, events, world_size, clock="virtual", devices=None):
        self._events = list(events)  # or their fields, as tuples
        self.world_size = world_size
        self.clock = clock
        self.devices = devices  # names such as "cuda:0", one per rank, or None

    @classmethod
    def from_profiler(cls, *sources: Any) -> Timeline:
        """What `torch.profiler` saw of ranks, in the course's own picture.

        Each source is a finished `torch.profiler.profile`, or the path of the trace
        that a rank's profile has exported.  On GPUs, kernels compute, those of NCCL
        and copies from or to the host communicate, and what streams do at the same
        time is drawn one above the other.  The times are measured, and those of ranks
        on one machine have one zero.  The sizes of messages are not known.
        """
        events, world_size = events_of(sources)
        return cls(events, world_size, clock="measured")

    @cached_property
    def events(self) -> list[Event]:
        """All events, sorted when first asked for: long runs have very many."""
        events = list(map(Event._make, self._events))
        if self.clock == "virtual":
            events = split_waits(events)
        return sorted(events, key=_order)

    @cached_property
    def elapsed(self) -> float:
        """The last moment of the record, in seconds."""
        return max((event.stop for event in self.events), default=0.0)

    def __iter__(self):
        return iter(self.events)

    def __len__(self):
        return len(self.events)

    def __repr__(self):
        text = (
            f"Timeline: {self.world_size} rank{'s' * (self.world_size != 1)}, "
            f"{counted(len(self), 'event')}, {show_seconds(self.elapsed)} {self.clock}"
        )
        native = any(event.kind == "collective" for event in self.events)
        formula = native and self.clock == "virtual"
        return text + ", collectives by formula" * formula

    def __str__(self):
        return text_twin(self)

    @cached_property
    def rows(self) -> dict[int, dict[str, list[Event]]]:
        """{rank: {stream: events}}; every rank has a compute row, it stands first."""
        rows: dict = {rank: {"compute": []} for rank in range(self.world_size)}
        for event in self.events:
            rows[event.rank].setdefault(event.stream, []).append(event)
        return {
            rank: {stream: streams[stream] for stream in sorted(streams, key=_place)}
            for rank, streams in rows.items()
        }

    def messages(self) -> list[tuple[Event, Event]]:
        """Pairs (send event, receive event), by id; a message without a twin is out."""
        ends: dict = {"send": {}, "recv": {}}
        for event in self.events:
            if event.stream in ends and event.id is not None:
                ends[event.stream][event.id] = event
        both = sorted(ends["send"].keys() & ends["recv"].keys())
        return [(ends["send"][key], ends["recv"][key]) for key in both]

    def totals(self, rank: int) -> dict[str, float]:
        """{kind: seconds} of one rank; what overlaps in one kind counts once."""
        spans: dict = {kind: [] for kind in KINDS}
        for events in self.rows[rank].values():
            for event in events:
                spans[event.kind].append((event.start, event.stop))
        return {kind: _length(spans[kind]) for kind in KINDS}

    def exposed_spans(self, rank: int) -> list[tuple[float, float]]:
        """(start, stop) of the times in which the rank waits and communicates.

        What it sends while it computes is hidden, and not in here.
        """
        rows = self.rows[rank]
        waits = [e for e in rows["compute"] if e.kind in WAITS]
        others = [e for stream, events in rows.items() for e in events]
        return _both(merged(waits), merged(e for e in others if e.stream != "compute"))

    def exposed(self, rank: int) -> float:
        """Seconds of communication that no computation of the rank hides."""
        return _length(self.exposed_spans(rank))

    def busy(self, rank: int, stream: str = "compute") -> float:
        """The part of the run, 0 to 1, in which this row works (does not wait)."""
        spans = [
            (event.start, event.stop)
            for event in self.rows[rank].get(stream, [])
            if event.kind not in WAITS
        ]
        return _length(spans) / self.elapsed if self.elapsed else 0.0

    def between(self, start: float, stop: float) -> Timeline:
        """What happened in this part of the run, as a Timeline that begins at 0.

        Events that reach over an edge are cut off there; their bytes stay whole.
        """
        if not start < stop:
            raise ValueError(f"A part ends after its start, not from {start} to {stop}")
        inside = [e for e in self.events if e.start < stop and e.stop > start]
        events = [
            e._replace(
                start=max(e.start, start) - start, stop=min(e.stop, stop) - start
            )
            for e in inside
        ]
        return Timeline(events, self.world_size, self.clock, self.devices)

    def plot(
        self,
        ax: Any = None,
        width: float | None = None,
        title: str | None = None,
        exposed: bool = False,
    ) -> Figure:
        """The picture: a row per rank and stream, an arrow per message.

        With `exposed` the times are shaded in which a rank waits and communicates.
        """
        return plots.plot_timeline(self, ax, width, title, exposed)

    def play(self, title: str | None = None, exposed: bool = False) -> Player:
        """The picture as a player: zoom, step, play, and see the line of every event.

        Elsewhere than in a page that runs scripts it is the picture.
        """
        picture = self.plot(title=title, exposed=exposed)
        return Player({plots.title_of(self, title): self}, picture, exposed)

    def to_chrome_trace(self, path: str | os.PathLike) -> None:
        """Write a trace for ui.perfetto.dev; either the whole file or none."""
        folder, name = os.path.split(os.fspath(path))
        if not os.path.isdir(folder or "."):
            raise ValueError(f"There is no folder '{folder}' to write '{name}' in.")
        draft = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(json.dumps(chrome_trace(self)))
            os.replace(draft, path)
        finally:
            if os.path.exists(draft):
                os.remove(draft)


def _place(stream):
    """Rows of a rank from top to bottom."""
    return {"compute": 0, "send": 1, "recv": 2}.get(stream, 3), stream


def _order(event):
    peer = -1 if event.peer is None else event.peer
    number = -1 if event.id is None else event.id
    place = _place(event.stream)
    return event.start, event.rank, place, event.stop, event.name, peer, number


def _length(spans):
    """Seconds covered by the spans together."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        if stop > end:
            covered += stop - max(start, end)
            end = stop
    return covered


def _both(some, others):
    """Times that are in both of two lists of separate spans."""
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        (a, b), (c, d) = some[i], others[j]
        if max(a, c) < min(b, d):
            found.append((max(a, c), min(b, d)))
        i, j = (i + 1, j) if b <= d else (i, j + 1)
    return found
