"""What every rank did and when: the record of a run, as text and as a trace file.

A timeline is a list of events.  Each rank has up to four kinds of rows:

    compute         what the rank itself does; "wait" while it is blocked
    send, recv      its messages; the two ends of a message carry the same id
    comm            its collectives, a row per group: "comm", "comm <group>"
"""

import json
import os
from functools import cached_property
from math import ceil, floor, log10
from typing import NamedTuple

KINDS = ("compute", "waiting", "sending", "receiving", "collective")
MARKS = dict(zip(KINDS, "C.SR=", strict=True))
LEGEND = (
    "C compute   . waiting   S sending   R receiving   = collective",
    "S2: a message to rank 2   R0: a message from rank 0",
    "",
)
MIME = "application/vnd.d2lpar.timeline+json"  # the events in a notebook
SHOWN = 16  # up to so many ranks are shown one by one; of more the first 8, last 2


class Event(NamedTuple):
    """One thing on one row; times in seconds since the start of the run."""

    rank: int
    stream: str
    name: str
    start: float
    stop: float
    bytes: int = 0
    flops: int = 0
    peer: int | None = None
    id: int | None = None
    where: tuple | None = None  # file and line of the call, where it is known

    @property
    def kind(self):
        """One of KINDS."""
        if self.stream == "compute":
            return "waiting" if self.name == "wait" else "compute"
        return {"send": "sending", "recv": "receiving"}.get(self.stream, "collective")


class Timeline:
    """The events of all ranks, sorted by start, rank and row."""

    def __init__(self, events, world_size, clock="virtual", devices=None):
        self._events = list(events)  # or their fields, as tuples
        self.world_size = world_size
        self.clock = clock
        self.devices = devices  # names such as "cuda:0", one per rank, or None

    @cached_property
    def events(self):
        """All events, sorted when first asked for: long runs have very many."""
        return sorted(map(Event._make, self._events), key=_order)

    @cached_property
    def elapsed(self):
        """The last moment of the record, in seconds."""
        return max((event.stop for event in self.events), default=0.0)

    def __iter__(self):
        return iter(self.events)

    def __len__(self):
        return len(self.events)

    def __repr__(self):
        count = len(self.events)
        return (
            f"Timeline: {self.world_size} rank{'s' * (self.world_size != 1)}, "
            f"{count:,} event{'s' * (count != 1)}, "
            f"{show_seconds(self.elapsed)} {self.clock}"
        )

    def __str__(self):
        return text_twin(self)

    @cached_property
    def rows(self):
        """{rank: {stream: events}}; every rank has a compute row, it stands first."""
        rows = {rank: {"compute": []} for rank in range(self.world_size)}
        for event in self.events:
            rows[event.rank].setdefault(event.stream, []).append(event)
        return {
            rank: {stream: streams[stream] for stream in sorted(streams, key=_place)}
            for rank, streams in rows.items()
        }

    def messages(self):
        """Pairs (send event, receive event), by id; a message without a twin is out."""
        ends = {"send": {}, "recv": {}}
        for event in self.events:
            if event.stream in ends and event.id is not None:
                ends[event.stream][event.id] = event
        both = sorted(ends["send"].keys() & ends["recv"].keys())
        return [(ends["send"][key], ends["recv"][key]) for key in both]

    def totals(self, rank):
        """{kind: seconds} of one rank; what overlaps in one kind counts once."""
        spans = {kind: [] for kind in KINDS}
        for events in self.rows[rank].values():
            for event in events:
                spans[event.kind].append((event.start, event.stop))
        return {kind: _length(spans[kind]) for kind in KINDS}

    def exposed_spans(self, rank):
        """(start, stop) of the times in which the rank waits and communicates.

        What it sends while it computes is hidden, and not in here.
        """
        rows = self.rows[rank]
        waits = [e for e in rows["compute"] if e.kind == "waiting"]
        others = [e for stream, events in rows.items() for e in events]
        return _both(_spans(waits), _spans(e for e in others if e.stream != "compute"))

    def exposed(self, rank):
        """Seconds of communication that no computation of the rank hides."""
        return _length(self.exposed_spans(rank))

    def busy(self, rank, stream="compute"):
        """The part of the run, 0 to 1, in which this row works (does not wait)."""
        spans = [
            (event.start, event.stop)
            for event in self.rows[rank].get(stream, [])
            if event.kind != "waiting"
        ]
        return _length(spans) / self.elapsed if self.elapsed else 0.0

    def between(self, start, stop):
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

    def plot(self, ax=None, width=None, title=None, exposed=False):
        """The picture: a row per rank and stream, an arrow per message.

        With `exposed` the times are shaded in which a rank waits and communicates.
        """
        from d2lpar import plots

        return plots.plot_timeline(self, ax, width, title, exposed)

    def play(self, title=None, exposed=False):
        """The picture as a player: zoom, step, play, and see the line of every event.

        Elsewhere than in a page that runs scripts it is the picture.
        """
        from d2lpar import player, plots

        picture = self.plot(title=title, exposed=exposed)
        return player.Player({plots.title_of(self, title): self}, picture, exposed)

    def to_chrome_trace(self, path):
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


def _spans(events):
    """Times (start, stop) that some event covers, apart from each other."""
    spans = []
    for start, stop in sorted((event.start, event.stop) for event in events):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        elif stop > start:
            spans.append((start, stop))
    return spans


def _both(some, others):
    """Times that are in both of two lists of separate spans."""
    found, i, j = [], 0, 0
    while i < len(some) and j < len(others):
        (a, b), (c, d) = some[i], others[j]
        if max(a, c) < min(b, d):
            found.append((max(a, c), min(b, d)))
        i, j = (i + 1, j) if b <= d else (i, j + 1)
    return found


def lanes(events):
    """A lane for each event, in order of start, so that no lane has overlaps."""
    ends, chosen = [], []
    for event in events:
        start, stop = _ns(event.start), _ns(event.stop)
        lane = next((k for k, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        chosen.append(lane)
    return chosen


# ------------------------------------------------------------------ numbers as text


def show_seconds(seconds):
    """`220 us`, `1.5 ms`, `2 s`: four digits at most."""
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if 0 < float(f"{seconds * scale:.4g}") < 1000:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s" if seconds < 1e4 else f"{seconds:,.0f} s"


def show_bytes(count):
    """`1,536 B`: exact below a million, then `24.58 MB` in powers of a thousand."""
    if count < 1e6:
        return f"{count:,} B"
    for unit in ("MB", "GB", "TB", "PB"):
        count /= 1e3 if unit != "MB" else 1e6
        if float(f"{count:.4g}") < 1000:
            break
    return f"{count:.4g} {unit}"


# --------------------------------------------------------------------- the text twin


def text_twin(timeline, width=79):
    """The picture in plain characters: rows, a time axis, and totals per rank."""
    shown = shown_ranks(timeline.world_size)
    rows = timeline.rows
    names = [stream for rank in shown for stream in rows[rank]]
    wide = min(max(map(len, names), default=7), 16)
    number = len(str(timeline.world_size - 1))
    left = 5 + number + 1 + wide + 1  # "rank 3 compute "
    step = _column(timeline.elapsed, width - left - 2)
    columns = max(1, ceil(timeline.elapsed / step * (1 - 1e-9)))
    hidden = timeline.world_size - len(shown)
    head = repr(timeline).removeprefix("Timeline: ")
    lines = [f"{head}; a column is {show_seconds(step)}", _axis(step, columns, left)]
    for rank in shown:
        if hidden and rank == shown[-2]:
            lines.append(f"... {hidden:,} ranks not shown ...")
        title = f"rank {rank:>{number}} "
        for stream, events in rows[rank].items():
            cells = _cells(events, step, columns)
            lines.append(f"{title}{stream[:wide]:<{wide}} |{cells}|")
            title = " " * len(title)
    return "\n".join(lines + ["", *LEGEND] + _totals(timeline, shown))


def shown_ranks(n):
    """All ranks, or of many the first eight and the last two."""
    return list(range(n)) if n <= SHOWN else [*range(8), n - 2, n - 1]


def _column(elapsed, columns):
    """A round number of seconds per column, so that the run fits."""
    if elapsed <= 0:
        return 1e-6
    exact = elapsed / columns
    power = 10.0 ** floor(log10(exact))
    factors = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(f * power for f in factors if f * power >= exact * (1 - 1e-9))


def _axis(step, columns, left, width=79):
    """Times over every tenth column, as far as they fit."""
    line = " " * left
    for column in range(0, columns + 1, 10):
        label = show_seconds(column * step) if column else "0"
        start = left + 1 + column
        if len(line) < start and start + len(label) <= width:
            line = f"{line:<{start}}{label}"
    return line


def _cells(events, step, columns):
    """One character per column: the mark of what took most of it, labels inside."""
    seconds = [{} for _ in range(columns)]
    line = [" "] * columns
    for event in events:
        first = min(int(event.start / step + 1e-6), columns - 1)
        last = min(max(ceil(event.stop / step - 1e-6) - 1, first), columns - 1)
        for column in range(first, last + 1):
            begin, end = column * step, (column + 1) * step
            cell, mark = seconds[column], MARKS[event.kind]
            inside = min(event.stop, end) - max(event.start, begin)
            cell[mark] = cell.get(mark, 0.0) + inside
            line[column] = max(cell, key=cell.get)
    for event in events:
        _label(line, event, step)
    return "".join(line)


def _label(line, event, step):
    """Write the peer, or the name of a collective, where there is room for it."""
    kind = event.kind
    if kind in ("compute", "waiting"):
        return
    text = event.name if kind == "collective" else f"{event.peer}"
    first, last = round(event.start / step) + 1, round(event.stop / step)
    mark = MARKS[kind]
    if len(text) < last - first + 1 and set(line[first:last]) == {mark}:
        line[first : first + len(text)] = text


def _totals(timeline, shown):
    """The table of seconds per rank and kind; of many ranks also mean and most."""
    lines = [f"{'':12}" + "".join(f"{kind:>12}" for kind in KINDS)]
    for rank in shown:
        lines.append(_total(f"rank {rank}", timeline.totals(rank)))
    if len(shown) < timeline.world_size:
        every = [timeline.totals(rank) for rank in range(timeline.world_size)]
        mean = {k: sum(t[k] for t in every) / len(every) for k in KINDS}
        lines.append(_total("mean of all", mean))
        most = {k: max(t[k] for t in every) for k in KINDS}
        lines.append(_total("most of all", most))
    return lines


def _total(title, seconds):
    texts = (show_seconds(seconds[kind]) if seconds[kind] else "-" for kind in KINDS)
    return f"{title:12}" + "".join(f"{text:>12}" for text in texts)


# -------------------------------------------------------------------- the trace file


def chrome_trace(timeline):
    """The trace as a dictionary: a process per rank, a thread per row."""
    trace, where = [], {}
    for rank, streams in timeline.rows.items():
        labels = [timeline.devices[rank]] if timeline.devices else []
        trace += _process(rank, labels)
        thread = 1  # viewers take thread 0 for the idle task
        for stream, events in streams.items():
            chosen = lanes(events)
            count = max(chosen, default=0) + 1
            for lane in range(count):
                trace += _thread(rank, thread + lane, stream, lane)
            for event, lane in zip(events, chosen, strict=True):
                trace.append(_slice(event, thread + lane))
                where[id(event)] = thread + lane
            thread += count
    for send, recv in timeline.messages():
        trace += _flow(send, recv, where)
    other = {"clock": timeline.clock, "world_size": timeline.world_size}
    return {"traceEvents": trace, "displayTimeUnit": "ns", "otherData": other}


def _process(rank, labels):
    yield _meta("process_name", rank, 0, {"name": f"rank {rank}"})
    yield _meta("process_sort_index", rank, 0, {"sort_index": rank})
    for label in labels:
        yield _meta("process_labels", rank, 0, {"labels": label})


def _thread(rank, thread, stream, lane):
    name = f"{stream} ({lane + 1})" if lane else stream
    yield _meta("thread_name", rank, thread, {"name": name})
    yield _meta("thread_sort_index", rank, thread, {"sort_index": thread})


def _ns(seconds):
    return round(seconds * 1e9)


def _meta(name, rank, thread, args):
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": args}


def _slice(event, thread):
    """A complete event; whole nanoseconds, so that neighbours never overlap."""
    start, stop = _ns(event.start), _ns(event.stop)
    args = {"bytes": event.bytes, "flops": event.flops}
    if event.peer is not None:
        args["peer"] = event.peer
    if event.id is not None:
        args["message"] = event.id
    return {
        "name": event.name,
        "cat": event.kind,
        "ph": "X",
        "pid": event.rank,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (stop - start) / 1e3,
        "args": args,
    }


def _flow(send, recv, where):
    """An arrow from the start of the send to the end of its receive."""
    begin = _ns(send.start)
    end = max(begin, _ns(recv.start), _ns(recv.stop) - 1)  # inside the receive
    both = {"name": "message", "cat": "message", "id": send.id}
    start = both | {
        "ph": "s",
        "pid": send.rank,
        "tid": where[id(send)],
        "ts": begin / 1e3,
    }
    stop = both | {"ph": "f", "bp": "e", "pid": recv.rank, "tid": where[id(recv)]}
    return start, stop | {"ts": end / 1e3}
