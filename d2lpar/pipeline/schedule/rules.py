"""The rules of a schedule: whether it can be executed, and when each action begins."""

from collections import defaultdict, deque

from .actions import KINDS, Action, ScheduleError, cells, needs


def validate(schedule, copies=None):
    """Raise ScheduleError unless every rank can take its actions and none is missing.

    The error names the rule (see RULES) and shows the table, with the cell marked.
    `copies` is how many of a stage there may be, if not as many as there are.
    """
    if copies and schedule.copies > copies:
        text = f"Its stages have {schedule.copies} copies, whose gradients must be"
        raise ScheduleError("home", f"{text} summed. Use one without copies.")
    if not schedule.ranks or not any(schedule.ranks):
        raise ScheduleError("complete", "There is no action in this schedule.")
    _check_numbers(schedule)
    _check_homes(schedule)
    _check_positions(schedule)
    _check_complete(schedule)
    _, stuck = play(schedule, lambda action: 0.0)
    if stuck:
        _say_who_waits(schedule, stuck)


def _check_numbers(schedule):
    for rule, field in (("stages", "stage"), ("micro-batches", "micro")):
        seen = {getattr(action, field) for _, _, action in cells(schedule)}
        gap = next(i for i in range(len(seen) + 1) if i not in seen)
        for rank, position, action in cells(schedule):
            if action.kind not in KINDS:
                text = f"{action} is not an action."
                raise ScheduleError("text", text, schedule, [(rank, position)])
            if getattr(action, field) > gap:
                text = f"{action} is there, but no action has {field} {gap}."
                raise ScheduleError(rule, text, schedule, [(rank, position)])


def _check_positions(schedule):
    """Check that each action is there once, in the order F, B, W."""
    seen = {}
    for rank, position, action in cells(schedule):
        mark = [(rank, position)]
        if action in seen:
            text = f"{action} appears twice in the row of rank {rank}."
            raise ScheduleError("once", text, schedule, [(rank, seen[action]), *mark])
        seen[action] = position
        before = {"B": "F", "W": "B"}.get(action.kind)
        if before and action._replace(kind=before) not in seen:
            rule = {"F": "forward first", "B": "backward first"}[before]
            needed = action._replace(kind=before)
            if needed in schedule.ranks[rank]:
                text = f"{action} comes before {needed}."
                raise ScheduleError(rule, text, schedule, mark)


def _check_homes(schedule):
    """Check that a stage has a rank for each copy, and one for each micro-batch."""
    found = defaultdict(list)
    for rank, position, action in cells(schedule):
        stage, _, micro = action
        for key, most in ((stage, schedule.copies), ((stage, micro), 1)):
            if rank not in found[key]:
                found[key].append(rank)
            if len(found[key]) > most:
                ranks = " and on ".join(f"rank {r}" for r in found[key])
                which = f" for micro-batch {micro}" if schedule.copies > 1 else ""
                text = f"Stage {stage} is on {ranks}{which}."
                raise ScheduleError("home", text, schedule, [(rank, position)])


def _check_complete(schedule):
    there = {action for _, _, action in cells(schedule)}
    kinds = "FBW" if schedule.splits else "FB"
    for stage, rank in sorted(schedule.home.items()):
        for micro in range(schedule.m):
            for kind in kinds:
                action = Action(stage, kind, micro)
                if action not in there:
                    rule = "weights" if kind == "W" else "complete"
                    text = f"{action} is missing."
                    raise ScheduleError(rule, text, schedule, missing=(rank, action))


def _say_who_waits(schedule, stuck):
    """Raise the error of a circle; `stuck` is {rank: position of its next action}."""
    rank, chain = min(stuck), []
    while rank not in chain:
        chain.append(rank)
        waits = schedule.ranks[rank][stuck[rank]]
        rank = schedule.at[_missing_need(schedule, stuck, waits)]
    circle = chain[chain.index(rank) :]
    steps = []
    for rank in circle:
        action = schedule.ranks[rank][stuck[rank]]
        need = _missing_need(schedule, stuck, action)
        steps.append(f"{action} waits for {need}")
    text = f"No rank can continue: {', '.join(steps)}."
    marks = [(rank, stuck[rank]) for rank in circle]
    raise ScheduleError("circle", text, schedule, marks)


def _missing_need(schedule, stuck, action):
    """Return what this action waits for: a need that has not been met."""
    for need in needs(action, schedule.stages):
        rank = schedule.at[need]
        if rank in stuck and need in schedule.ranks[rank][stuck[rank] :]:
            return need


def play(schedule, cost, comm=0.0):
    """Return when each action runs, and which ranks get stuck.

    They are {action: (start, stop)} and {rank: position of its next action}.
    `cost(action)` is its time; `comm` passes between actions of two ranks.
    """
    stages, at, rows = schedule.stages, schedule.at, schedule.ranks
    times, free, position = {}, [0.0] * schedule.p, [0] * schedule.p
    ready, asleep = deque(range(schedule.p)), defaultdict(list)
    while ready:
        rank = ready.popleft()
        for action in rows[rank][position[rank] :]:
            needed = needs(action, stages)
            missing = [need for need in needed if need not in times]
            if missing:
                asleep[missing[0]].append(rank)  # until that one is over
                break
            way = [comm * (at[need] != rank) for need in needed]
            came = [times[x][1] + w for x, w in zip(needed, way, strict=True)]
            start = max([free[rank], *came])
            free[rank] = start + cost(action)
            times[action] = start, free[rank]
            position[rank] += 1
            ready.extend(asleep.pop(action, []))
    return times, {r: k for r, k in enumerate(position) if k < len(rows[r])}
