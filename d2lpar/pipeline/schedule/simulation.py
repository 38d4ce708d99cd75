"""What a schedule costs: its time, its bubble, and what each rank holds."""

from dataclasses import dataclass

from ...report import gantt
from ...report.events import Event
from ...report.timeline import Timeline
from .rules import play, validate


@dataclass(frozen=True)
class Simulation:
    """How long a schedule takes, and what its ranks hold.

    elapsed      until the last action of all ranks is over
    spans        per rank, from the start of its first action to the end of its last
    bubble       the share of the longest span in which that rank waits
    in_flight    per rank, the most micro-batches held at once, from the start of F
                 to the end of B, and `kept` of one until the end of W; each stage
                 of the rank counts
    timeline     a Timeline of the actions, in the unit of the times given
    kept         as it was given
    """

    elapsed: float
    spans: list
    bubble: float
    in_flight: list
    timeline: Timeline
    kept: float = 1

    def __repr__(self):
        text = f"Simulation: {self.elapsed:g} in all, bubble {self.bubble:.1%}"
        return f"{text}, in flight {', '.join(f'{x:g}' for x in self.in_flight)}"

    def plot(self, title=None):
        """Draw a box for each action, and below it what each rank holds."""
        return gantt.plot_simulation(self, title)

    def play(self, title=None):
        """Show the boxes as a player, or as a picture where no script runs."""
        from ...report import player

        title = title or repr(self).partition(": ")[2]
        timelines = {title: self.timeline}
        return player.Player(timelines, self.plot(title), units=True)


def simulate(schedule, forward=1.0, backward=2.0, weight=0.0, comm=0.0, kept=1):
    """Return the Simulation of a schedule: no tensors, no ranks, any unit of time.

    forward, backward, weight    time of F, B and W: a number, or one per stage;
                                 without W, a B takes backward + weight
    comm                         time between actions on different ranks
    kept                         memory of a micro-batch that waits for its W, as a
                                 share of one that waits for its B

    Raises ScheduleError for a schedule that cannot be played.
    """
    validate(schedule)
    cost = costs(schedule, forward, backward, weight)
    if not comm >= 0:
        raise ValueError(f"comm must be a time of at least 0, not {comm!r}.")
    if not kept >= 0:
        raise ValueError(f"kept must be a share of at least 0, not {kept!r}.")
    times, _ = play(schedule, cost, comm)
    rows = schedule.ranks
    spans = [times[row[-1]][1] - times[row[0]][0] if row else 0.0 for row in rows]
    longest, row = max(zip(spans, rows, strict=True))
    bubble = (longest - sum(map(cost, row))) / longest if longest else 0.0
    elapsed = max(stop for _, stop in times.values())
    held = [max(in_flight(schedule, r, kept), default=0) for r in range(schedule.p)]
    timeline = _timeline(schedule, times)
    return Simulation(elapsed, spans, bubble, held, timeline, kept)


def _timeline(schedule, times):
    at = schedule.at
    events = [
        Event(at[action], "compute", str(action), *span)
        for action, span in times.items()
    ]
    return Timeline(events, schedule.p)


def in_flight(schedule, rank, kept=1):
    """Return how many micro-batches the rank holds during each action.

    kept    what is left of one between its B and its W, as a share
    """
    left = kept if schedule.splits else 0
    change, held, counts = {"F": 1, "B": left - 1, "W": -left}, 0, []
    for action in schedule.ranks[rank]:
        before, held = held, held + change[action.kind]
        counts.append(max(before, held))
    return counts


def costs(schedule, forward, backward, weight):
    """Return a function from an action to its time."""
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
            f"{name} must be a time of at least 0, or a list of {stages} such "
            f"times, one for each stage; not {value!r}."
        )
    return values
