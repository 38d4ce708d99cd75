"""What makes a schedule one that can be executed, and when each action begins."""

from collections import deque

from .actions import KINDS, Action, ScheduleError, cells, needs


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


def _check_numbers(schedule):
    for rule, field in (("stages", "stage"), ("micro-batches", "micro")):
        seen = {getattr(action, field) for _, _, action in cells(schedule)}
        gap = next(i for i in range(len(seen) + 1) if i not in seen)
        for rank, place, action in cells(schedule):
            if action.kind not in KINDS:
                text = f"{action} is no action."
                raise ScheduleError("text", text, schedule, [(rank, place)])
            if getattr(action, field) > gap:
                text = f"{action} is there, but no action has {field} {gap}."
                raise ScheduleError(rule, text, schedule, [(rank, place)])


def _check_places(schedule):
    """Each stage on one rank, no action twice, and F, B, W in this order."""
    home, seen = {}, {}
    for rank, place, action in cells(schedule):
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
    there = {action for _, _, action in cells(schedule)}
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
