"""What a timeline is made of: events, what they are called, and what waits hide."""

import re
from bisect import bisect_right
from operator import itemgetter
from typing import NamedTuple

from .units import ns

WAITS = ("blocked", "transferring", "waiting")
KINDS = ("compute", *WAITS, "sending", "receiving", "collective")
PASSES = {"F": "forward", "B": "backward", "W": "weight gradient"}
CODES = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}
LOOKS = ("compute", *PASSES.values(), *KINDS[1:-1], *CODES.values(), "collective")
# F3, F attention, or 2F3: micro-batch 3 in stage 2
_PASS = re.compile(r"\d*(([FBW])(\d*| .+))")
_WAITING = {"wait": "waiting", "blocked": "blocked", "transfer": "transferring"}
MARGIN = 2000  # a row in which less of the time is filled would look empty
_INSTANT = 1e-10  # seconds; shorter gaps come from adding up floats


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
    label: str | None = None  # of `d2lpar.label`
    part: tuple | None = None  # of a message: (begin, end, whole) in elements

    @property
    def kind(self):
        """One of KINDS."""
        if self.stream == "compute":
            return _WAITING.get(self.name, "compute")
        return {"send": "sending", "recv": "receiving"}.get(self.stream, "collective")

    @property
    def look(self):
        """The kind, or the pass that its label names, or its code: one of LOOKS."""
        kind = self.kind
        found = kind == "compute" and _PASS.fullmatch(self.label or self.name)
        if found:
            return PASSES[found[2]]
        return CODES.get(self.name, kind) if kind == "collective" else kind

    @property
    def texts(self):
        """What may stand in its box, the longest first: `F3` or 3, `AG3`, its name."""
        label, kind = self.label or "", self.kind
        found = _PASS.fullmatch(label or self.name)
        if kind == "compute":
            if found:
                return [text for text in (found[1], found[3].strip()) if text]
            return [label or self.name]
        if kind != "collective":
            return []
        code = CODES.get(self.name, self.name)
        number = found[3] if found else label if label.isdigit() else ""
        if number:
            return [f"{code}{number}", number.strip()]
        return list(dict.fromkeys((self.name, code)))


def lanes(events):
    """A lane for each event, in order of start, so that no lane has overlaps."""
    ends, chosen = [], []
    for event in events:
        start, stop = ns(event.start), ns(event.stop)
        lane = next((k for k, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        chosen.append(lane)
    return chosen


def split_waits(events):
    """The events, with each "wait" cut into parts named "blocked" and "transfer".

    In a transfer a message or collective of this rank is on the wire.
    """
    wires = {}
    for event in events:
        if event.stream != "compute":
            wires.setdefault(event.rank, []).append(event)
    wires = {rank: merged(mine) for rank, mine in wires.items()}
    for event in events:
        if event.kind == "waiting":
            yield from _parts(event, wires.get(event.rank, ()))
        else:
            yield event


def _parts(wait, wires):
    at = wait.start
    for k in range(bisect_right(wires, at, key=itemgetter(1)), len(wires)):
        start, stop = wires[k]
        if start >= wait.stop - _INSTANT:
            break
        if start > at + _INSTANT:
            yield wait._replace(name="blocked", start=at, stop=start)
            at = start
        stop = min(stop, wait.stop)
        yield wait._replace(name="transfer", start=at, stop=stop)
        at = stop
    if wait.stop > at + _INSTANT or at == wait.start:
        yield wait._replace(name="blocked", start=at)


def merged(events):
    """Times (start, stop) that some event covers, apart from each other."""
    spans = []
    for start, stop in sorted((event.start, event.stop) for event in events):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        elif stop > start:
            spans.append((start, stop))
    return spans


def joined(events):
    """Neighbours of one row that carry the same label, drawn as one event."""
    whole = []
    for event in events:
        last = whole[-1] if whole else None
        if last and event.label and event.label == last.label:
            if event.kind == last.kind and event.start < last.stop + _INSTANT:
                size, flops = last.bytes + event.bytes, last.flops + event.flops
                whole[-1] = last._replace(stop=event.stop, bytes=size, flops=flops)
                continue
        whole.append(event)
    return whole


def lasting(streams, elapsed):
    """(rows in which something lasts, events of the others); compute stays."""
    rows, instants = {}, []
    for stream, events in streams.items():
        lasts = sum(event.stop - event.start for event in events)
        if stream == "compute" or lasts > elapsed / MARGIN:
            rows[stream] = events
        else:
            instants += events
    return rows, instants
