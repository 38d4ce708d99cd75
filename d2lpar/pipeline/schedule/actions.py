"""Actions and schedules, and both as text."""

import re
from dataclasses import dataclass
from typing import NamedTuple

KINDS = "FBW"


class Action(NamedTuple):
    """One step of one stage for one micro-batch, written like `2F0`."""

    stage: int
    kind: str
    micro: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.micro}"


def needs(action, stages):
    """Return the actions that must be over before this one can begin."""
    stage, kind, micro = action
    if kind == "F":
        return [Action(stage - 1, "F", micro)] if stage else []
    if kind == "W":
        return [Action(stage, "B", micro)]
    if stage == stages - 1:
        return [Action(stage, "F", micro)]
    return [Action(stage, "F", micro), Action(stage + 1, "B", micro)]


@dataclass(frozen=True)
class Schedule:
    """Who does what, in which order: a tuple of Actions for every rank.

    p ranks, m micro-batches, `home` {stage: the rank that has it}, `at` {action:
    its rank}.  `splits` is true if the W are actions of their own.  With two
    `copies`, two ranks have each stage, and share the micro-batches; then a stage
    has no single home.
    """

    ranks: tuple
    name: str = "by hand"
    copies: int = 1

    every = property(lambda self: [a for row in self.ranks for a in row])
    p = property(lambda self: len(self.ranks))
    m = property(lambda self: 1 + max(a.micro for a in self.every))
    stages = property(lambda self: 1 + max(a.stage for a in self.every))
    splits = property(lambda self: any(a.kind == "W" for a in self.every))
    home = property(lambda self: {a.stage: r for r, _, a in cells(self)})
    at = property(lambda self: {a: r for r, _, a in cells(self)})

    def __str__(self):
        return table(self)

    def __repr__(self):
        return f"Schedule {self.name}: {self.p} ranks, {self.m} micro-batches"


class ScheduleError(ValueError):
    """A schedule that breaks a rule; the message shows it with the cell marked.

    rule     name of the rule: a key of RULES
    rank     the row of the marked cell
    """

    def __init__(self, rule, sentence, schedule=None, marks=(), missing=None):
        shown = f"\n{table(schedule, marks, missing)}" if schedule else ""
        super().__init__(f"{sentence} ({RULES[rule]}){shown}")
        self.rule = rule
        self.rank = min(marks)[0] if marks else missing[0] if missing else None


RULES = {
    "text": "An action is a stage, one of F B W, and a micro-batch, as in 2F0.",
    "stages": "Stages have the numbers 0, 1, 2 and so on.",
    "micro-batches": "Micro-batches have the numbers 0, 1, 2 and so on.",
    "home": "Each stage, or each copy of it, lives on one rank.",
    "once": "A rank takes each action once.",
    "complete": "Every stage sees every micro-batch forward and backward.",
    "weights": "All micro-batches of all stages have a W, or none has one.",
    "forward first": "On each stage, F comes before B.",
    "backward first": "On each stage, B comes before W.",
    "circle": "Ranks must not wait for each other in a circle.",
}


def table(schedule, marks=(), missing=None, width=10):
    """Return a line per rank; marked cells [like this], a missing one [2B1?] last.

    `marks` are pairs (rank, position in its row).  Long rows are cut to the part
    around the marks, with `width` cells on each side.
    """
    marked = [position for _, position in marks]
    first = max(0, min(marked) - width) if marked else 0
    last = max(marked) + width + 1 if marked else None
    rows = []
    for rank, row in enumerate(schedule.ranks):
        cells = [
            f"[{action}]" if (rank, position) in marks else str(action)
            for position, action in enumerate(row)
        ][first:last]
        cells += [f"[{missing[1]}?]"] if missing and missing[0] == rank else []
        if first > 0:
            cells = ["...", *cells]
        if last and last < len(row):
            cells.append("...")
        rows.append(f"rank {rank:<3} {' '.join(cells)}")
    return "\n".join(rows)


def parse(text, name="by hand", copies=1):
    """Return the Schedule of a text: a line per rank, with spaces between actions.

    A line may begin with "rank 0", so `parse(str(schedule))` gives the schedule.
    `copies` is the number of ranks that have each stage.
    """
    lines = [re.sub(r"^\s*rank\s+\d+", "", line) for line in text.splitlines()]
    words = [line.split() for line in lines if line.strip()]
    rows = [tuple(map(_action, row)) for row in words]
    if not rows:
        raise ScheduleError("text", "There is no action in this text.")
    return Schedule(tuple(rows), name, copies)


def _action(word):
    found = re.fullmatch(r"(\d+)([FBW])(\d+)", word)
    if not found:
        raise ScheduleError("text", f"{word!r} is not an action.")
    return Action(int(found[1]), found[2], int(found[3]))


def cells(schedule):
    """Yield (rank, position in its row, action) of every cell."""
    for rank, row in enumerate(schedule.ranks):
        for position, action in enumerate(row):
            yield rank, position, action
