"""What a schedule takes: its times, its bubble, and what it holds."""

from dataclasses import dataclass

from ..show import gantt
from ..show.events import Event
from ..show.timeline import Timeline
from .rules import play, validate


@dataclass(frozen=True)
class Simulation:
    """How long a schedule takes, and what it holds.

    elapsed      until the last action of all is over
    spans        per rank, from the begin of its first to the end of its last
    bubble       the part of the longest span in which that rank waits
    in_flight    per rank, the most micro-batches held at once, from F to the
                 end of B (or W); each stage counts
    timeline     a Timeline of the actions, in the unit of the times given
    """

    elapsed: float
    spans: list
    bubble: float
    in_flight: list
    timeline: Timeline

    def __repr__(self):
        text = f"Simulation: {self.elapsed:g} in all, bubble {self.bubble:.1%}"
        return f"{text}, in flight {', '.join(map(str, self.in_flight))}"

    def plot(self, title=None):
        """A box for each action, and what is held below."""
        return gantt.plot_simulation(self, title)

    def play(self, title=None):
        """The boxes as a player; where no script runs, the picture."""
        from ..show import player

        title = title or repr(self).partition(": ")[2]
        timelines = {title: self.timeline}
        return player.Player(timelines, self.plot(title), units=True)


def simulate(schedule, forward=1.0, backward=2.0, weight=0.0, comm=0.0):
    """The Simulation of a schedule: no tensors, no ranks, any unit of time.

    forward, backward, weight    of F, B and W, a number or one for each stage;
                                 a B that is not split takes backward + weight
    comm                         between actions of different ranks

    Raises ScheduleError for a schedule that cannot be played.
    """
    validate(schedule)
    cost = _costs(schedule, forward, backward, weight)
    if not comm >= 0:
        raise ValueError(f"comm is a time from 0 on, not {comm!r}.")
    times, _ = play(schedule, cost, comm)
    rows = schedule.ranks
    spans = [times[row[-1]][1] - times[row[0]][0] if row else 0.0 for row in rows]
    longest, row = max(zip(spans, rows, strict=True))
    bubble = (longest - sum(map(cost, row))) / longest if longest else 0.0
    elapsed = max(stop for _, stop in times.values())
    held = [max(in_flight(schedule, r), default=0) for r in range(schedule.p)]
    return Simulation(elapsed, spans, bubble, held, _timeline(schedule, times))


def _timeline(schedule, times):
    home = schedule.home
    events = [
        Event(home[action.stage], "compute", str(action), *span)
        for action, span in times.items()
    ]
    return Timeline(events, schedule.p)


def in_flight(schedule, rank):
    """Micro-batches that the rank holds after each of its actions' begin."""
    last, held, counts = "W" if schedule.splits else "B", 0, []
    for action in schedule.ranks[rank]:
        held += action.kind == "F"
        counts.append(held)
        held -= action.kind == last
    return counts


def _costs(schedule, forward, backward, weight):
    """A function from an action to its time."""
    stages = schedule.stages
    F = _per_stage("forward", forward, stages)
    B = _per_stage("backward", backward, stages)
    W = _per_stage("weight", weight, stages)
    if not schedule.splits:
        B = [b + w for b, w in zip(B, W, strict=True)]
    times = {"F": F, "B": B, "W": W}
    return lambda action: times[action.kind][action.stage]


def _per_stage(name, value, stages):
    values = list(value) if hasattr(value, "__len__") else [value] * stages
    if len(values) != stages or not all(x >= 0 for x in values):
        raise ValueError(
            f"{name} is a time from 0 on, or a list of {stages}, one for each "
            f"stage; not {value!r}."
        )
    return values
