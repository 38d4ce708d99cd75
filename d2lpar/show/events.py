"""What a timeline is made of: events, and lanes on which none overlaps another."""

from typing import NamedTuple

from .units import ns

KINDS = ("compute", "waiting", "sending", "receiving", "collective")
MIME = "application/vnd.d2lpar.timeline+json"  # the events in a notebook


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


def lanes(events):
    """A lane for each event, in order of start, so that no lane has overlaps."""
    ends, chosen = [], []
    for event in events:
        start, stop = ns(event.start), ns(event.stop)
        lane = next((k for k, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [stop]
        chosen.append(lane)
    return chosen
