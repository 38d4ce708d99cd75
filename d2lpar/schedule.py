"""Pipeline schedules as data: made by rule or by hand, checked, and timed.

A schedule is a list of actions for every rank, in order.  `2F0` is one action: stage 2,
forward, micro-batch 0.

    F    forward
    B    backward: the gradient of the input, and that of the weights
    W    the gradient of the weights, where a schedule takes it apart from B

1F1B on three ranks, four micro-batches:

    rank 0    0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
    rank 1    1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
    rank 2    2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3

The same lists are drawn, checked, timed and executed.  p ranks, m micro-batches, v
stages on a rank.  Ranks take their actions in order; an action begins when its rank is
free and what it needs is there.
"""

import re
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from .show import gantt
from .show.events import Event
from .show.timeline import Timeline

KINDS = "FBW"


class Action(NamedTuple):
    """One step of one stage for one micro-batch; its text is such as `2F0`."""

    stage: int
    kind: str
    micro: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.micro}"


@dataclass(frozen=True)
class Schedule:
    """Who does what, in which order: a tuple of Actions for every rank.

    p ranks, m micro-batches, `home` {stage: the rank that has it}.  splits: W
    are actions of their own.
    """

    ranks: tuple
    name: str = "by hand"

    every = property(lambda self: [a for row in self.ranks for a in row])
    p = property(lambda self: len(self.ranks))
    m = property(lambda self: 1 + max(a.micro for a in self.every))
    stages = property(lambda self: 1 + max(a.stage for a in self.every))
    splits = property(lambda self: any(a.kind == "W" for a in self.every))
    home = property(lambda self: {a.stage: r for r, _, a in _cells(self)})

    def __str__(self):
        return table(self)

    def __repr__(self):
        return f"Schedule {self.name}: {self.p} ranks, {self.m} micro-batches"


class ScheduleError(ValueError):
    """A schedule that breaks a rule; the message shows it, the cell marked.

    rule     name of the rule: a key of RULES
    rank     the row of the marked cell
    """

    def __init__(self, rule, sentence, schedule=None, marks=(), missing=None):
        shown = f"\n{table(schedule, marks, missing)}" if schedule else ""
        super().__init__(f"{sentence} ({RULES[rule]}){shown}")
        self.rule = rule
        self.rank = min(marks)[0] if marks else missing[0] if missing else None


RULES = {
    "text": "An action is a stage, one of F B W, and a micro-batch, such as 2F0.",
    "stages": "Stages have the numbers 0, 1, 2 and so on.",
    "micro-batches": "Micro-batches have the numbers 0, 1, 2 and so on.",
    "home": "A stage lives on one rank.",
    "once": "A rank takes an action once.",
    "complete": "Every stage sees every micro-batch forward and backward.",
    "weights": "W is there for all micro-batches of all stages, or for none.",
    "forward first": "F comes before B, on the same stage.",
    "backward first": "B comes before W, on the same stage.",
    "circle": "Ranks must not wait for each other in a circle.",
}


def table(schedule, marks=(), missing=None, width=10):
    """A row per rank; marked cells [like this], a missing one [2B1?] last.

    `marks` are pairs (rank, place).  Of long rows the part around the first
    mark is shown, `width` cells to each side.
    """
    places = [place for _, place in marks]
    first = max(0, min(places) - width) if places else 0
    last = max(places) + width + 1 if places else None
    rows = []
    for rank, row in enumerate(schedule.ranks):
        cells = [
            f"[{action}]" if (rank, place) in marks else str(action)
            for place, action in enumerate(row)
        ][first:last]
        cells += [f"[{missing[1]}?]"] if missing and missing[0] == rank else []
        if first > 0:
            cells = ["...", *cells]
        if last and last < len(row):
            cells.append("...")
        rows.append(f"rank {rank:<3} {' '.join(cells)}")
    return "\n".join(rows)


def parse(text, name="by hand"):
    """The Schedule of a text: a line for each rank, spaces between actions.

    "rank 0" may stand before them, so `parse(str(schedule))` is the schedule.
    """
    lines = [re.sub(r"^\s*rank\s+\d+", "", line) for line in text.splitlines()]
    words = [line.split() for line in lines if line.strip()]
    rows = [tuple(map(_action, row)) for row in words]
    if not rows:
        raise ScheduleError("text", "There is no action in this text.")
    return Schedule(tuple(rows), name)


def _action(word):
    found = re.fullmatch(r"(\d+)([FBW])(\d+)", word)
    if not found:
        raise ScheduleError("text", f"{word!r} is no action.")
    return Action(int(found[1]), found[2], int(found[3]))


# Schedules by rule.  All begin with `warm` forwards, and then take turns: this many
# forwards decide how long a rank waits, and how many micro-batches it holds.
#
#     warm      rank 0         rank 1         last rank
#     gpipe     m              m              m
#     1f1b      p-1            p-2            0
#     zb-h2     2(p-1)         2(p-2)         0


def one_by_one(forwards, backwards, warm):
    """`warm` forwards, then forward and backward by turns, then the rest."""
    order = list(forwards[:warm])
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - warm :])


def _actions(stage, kind, m):
    return [Action(stage, kind, i) for i in range(m)]


def naive(p, m):
    """One micro-batch is under way, and one rank works."""
    order = [(kind, i) for i in range(m) for kind in "FB"]
    return [[Action(r, kind, i) for kind, i in order] for r in range(p)]


def gpipe(p, m):
    """All forwards, then all backwards (Huang et al. 2019, section 2.3)."""
    return [_actions(r, "F", m) + _actions(r, "B", m) for r in range(p)]


def one_f_one_b(p, m, ahead=1):
    """A backward as soon as there is one (PipeDream-Flush).

    Rank r begins with `ahead` (p-1-r) forwards (Narayanan et al. 2021, section
    2.2).
    """
    rows = []
    for r in range(p):
        warm = min(m, ahead * (p - 1 - r))
        rows.append(one_by_one(_actions(r, "F", m), _actions(r, "B", m), warm))
    return rows


# Four micro-batches on two ranks with two stages each, in groups of p:
#
#     rank 0    0F0 0F1 2F0 2F1   0F2 0F3 2F2 2F3    and backwards 2, 2, 0, 0
#     rank 1    1F0 1F1 3F0 3F1   1F2 1F3 3F2 3F3
def interleaved(p, m, v=2):
    """Rank r has stages r, r+p, ..., r+(v-1)p (Narayanan et al. 2021, 2.2).

    Micro-batches go through a stage in groups of p, or of a few more where p
    does not divide m: with less, ranks would wait for each other in a circle.
    """
    count = max(1, m // p)
    ends = [m * g // count for g in range(count + 1)]
    groups = [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]
    rows = []
    for r in range(p):
        up = range(r, v * p, p)
        order = [(s, i) for group in groups for s in up for i in group]
        forwards = [Action(s, "F", i) for s, i in order]
        order = [(s, i) for group in groups for s in up[::-1] for i in group]
        backwards = [Action(s, "B", i) for s, i in order]
        warm = min(v * m, 2 * (p - 1 - r) + (v - 1) * max(map(len, groups)))
        rows.append(one_by_one(forwards, backwards, warm))
    return rows


def zero_bubble(p, m, ahead=1):
    """W waits until there is nothing else to do (Qi et al. 2024, section 2).

    Rank r is `ahead` r micro-batches behind with W; ahead=1 is ZB-H1, which
    holds as many micro-batches as 1F1B, and ahead=2 is ZB-H2.
    """
    together = one_f_one_b(p, m, ahead)
    return [_apart(row, ahead * r) for r, row in enumerate(together)]


def _apart(row, lag):
    """The row with its W: each `lag` backwards late, or at once without F."""
    order, late = [], deque()
    forwards = sum(action.kind == "F" for action in row)
    for action in row:
        order.append(action)
        forwards -= action.kind == "F"
        if action.kind == "B":
            late.append(action._replace(kind="W"))
            if len(late) > lag or not forwards:
                order.append(late.popleft())
    return order + list(late)


MAKERS = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
    "zb-h2": lambda p, m: zero_bubble(p, m, ahead=2),
    "pipedream": one_f_one_b,  # the same order, without a flush
}


def make(name, p, m, v=None):
    """The Schedule of that name for p ranks and m micro-batches.

    naive gpipe 1f1b interleaved zb-h1 zb-h2 pipedream; `interleaved` has v
    stages on a rank, 2 unless said.  Raises ValueError for anything else.
    """
    if name not in MAKERS:
        known = ", ".join(MAKERS)
        raise ValueError(f"There is no schedule {name!r}: {known}.")
    if v is not None and name != "interleaved":
        text = f"v is for interleaved; {name} has one stage on a rank."
        raise ValueError(text)
    _check_count("p", p, 1)
    _check_count("m", m, 1)
    _check_count("v", 2 if v is None else v, 2)
    rows = MAKERS[name](p, m, *[v] * (v is not None))
    return Schedule(tuple(map(tuple, rows)), name)


def _check_count(letter, count, least):
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise ValueError(f"{letter} is a number from {least} on, not {count!r}.")


# Checking


def validate(schedule):
    """Nothing, if every rank can take all its actions and all are there.

    Raises ScheduleError, with the rule and the table: see RULES.
    """
    if not schedule.ranks or not any(schedule.ranks):
        raise ScheduleError("complete", "There is no action in this schedule.")
    _check_numbers(schedule)
    _check_places(schedule)
    _check_complete(schedule)
    _, stuck = play(schedule, lambda action: 0.0)
    if stuck:
        _say_who_waits(schedule, stuck)


def _cells(schedule):
    """(rank, place, action) of every cell."""
    for rank, row in enumerate(schedule.ranks):
        for place, action in enumerate(row):
            yield rank, place, action


def _check_numbers(schedule):
    for rule, field in (("stages", "stage"), ("micro-batches", "micro")):
        seen = {getattr(action, field) for _, _, action in _cells(schedule)}
        gap = next(i for i in range(len(seen) + 1) if i not in seen)
        for rank, place, action in _cells(schedule):
            if action.kind not in KINDS:
                text = f"{action} is no action."
                raise ScheduleError("text", text, schedule, [(rank, place)])
            if getattr(action, field) > gap:
                text = f"{action} is there, but no action has {field} {gap}."
                raise ScheduleError(rule, text, schedule, [(rank, place)])


def _check_places(schedule):
    """Each stage on one rank, no action twice, and F, B, W in this order."""
    home, seen = {}, {}
    for rank, place, action in _cells(schedule):
        mark = [(rank, place)]
        first = home.setdefault(action.stage, rank)
        if first != rank:
            text = f"Stage {action.stage} is on rank {first} and on rank {rank}."
            raise ScheduleError("home", text, schedule, mark)
        if action in seen:
            text = f"{action} stands twice in the row of rank {rank}."
            raise ScheduleError("once", text, schedule, [(rank, seen[action]), *mark])
        seen[action] = place
        before = {"B": "F", "W": "B"}.get(action.kind)
        if before and action._replace(kind=before) not in seen:
            rule = {"F": "forward first", "B": "backward first"}[before]
            needed = action._replace(kind=before)
            if needed in schedule.ranks[rank]:
                text = f"{action} stands before {needed}."
                raise ScheduleError(rule, text, schedule, mark)


def _check_complete(schedule):
    there = {action for _, _, action in _cells(schedule)}
    kinds = "FBW" if schedule.splits else "FB"
    for stage, rank in sorted(schedule.home.items()):
        for micro in range(schedule.m):
            for kind in kinds:
                action = Action(stage, kind, micro)
                if action not in there:
                    rule = "weights" if kind == "W" else "complete"
                    text = f"{action} is nowhere."
                    raise ScheduleError(rule, text, schedule, missing=(rank, action))


def _say_who_waits(schedule, stuck):
    """`stuck` is {rank: place}: raise, with the circle in words."""
    rank, chain = min(stuck), []
    while rank not in chain:
        chain.append(rank)
        waits = schedule.ranks[rank][stuck[rank]]
        rank = schedule.home[_missing_need(schedule, stuck, waits).stage]
    circle = chain[chain.index(rank) :]
    steps = []
    for rank in circle:
        action = schedule.ranks[rank][stuck[rank]]
        need = _missing_need(schedule, stuck, action)
        steps.append(f"{action} waits for {need}")
    text = f"Nobody can go on: {', '.join(steps)}."
    marks = [(rank, stuck[rank]) for rank in circle]
    raise ScheduleError("circle", text, schedule, marks)


def _missing_need(schedule, stuck, action):
    """What this action waits for: a need that has not been met."""
    for need in needs(action, schedule.stages):
        rank = schedule.home[need.stage]
        if rank in stuck and need in schedule.ranks[rank][stuck[rank] :]:
            return need


# Playing


def needs(action, stages):
    """The actions that must be over before this one can begin."""
    stage, kind, micro = action
    if kind == "F":
        return [Action(stage - 1, "F", micro)] if stage else []
    if kind == "W":
        return [Action(stage, "B", micro)]
    if stage == stages - 1:
        return [Action(stage, "F", micro)]
    return [Action(stage, "F", micro), Action(stage + 1, "B", micro)]


def play(schedule, cost, comm=0.0):
    """({action: (start, stop)}, {rank: place} of the ranks that are stuck).

    `cost(action)` is its time; `comm` passes between actions of two ranks.
    """
    stages, home = schedule.stages, schedule.home
    times, free, at = {}, [0.0] * schedule.p, [0] * schedule.p
    ready, sleeping = deque(range(schedule.p)), {}  # ranks; need -> ranks
    while ready:
        rank = ready.popleft()
        for action in schedule.ranks[rank][at[rank] :]:
            wanted = needs(action, stages)
            late = next((need for need in wanted if need not in times), None)
            if late is not None:
                sleeping.setdefault(late, []).append(rank)
                break
            start = free[rank]
            for need in wanted:
                way = comm if home[need.stage] != rank else 0.0
                start = max(start, times[need][1] + way)
            free[rank] = start + cost(action)
            times[action], at[rank] = (start, free[rank]), at[rank] + 1
            ready.extend(sleeping.pop(action, []))
    rows = enumerate(schedule.ranks)
    return times, {r: at[r] for r, row in rows if at[r] < len(row)}


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
        from .show import player

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
