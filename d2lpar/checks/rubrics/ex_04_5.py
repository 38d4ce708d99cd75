"""04.5 Whoever is free."""

from functools import partial

from ...launch.run import sleep
from ...sim.cluster import Cluster
from .. import requirements as rows
from .. import signs
from ..equality import near
from ..judging import Case, Exercise, Requirement, ranks
from ..signs import both, breaks, either, hangs, raises, right, wrong

ALPHA = 1e-6  # seconds a message
SIZES = ((2, 0), (2, 3), (3, 1), (3, 7), (4, 2), (4, 12), (5, 16), (8, 4), (8, 30))
CLOSE = 50e-6  # seconds: two workers that are free at nearly the same time


def do(task, factor=1):
    """What a task asks for: it takes `task` milliseconds on a worker of speed 1."""
    sleep(task * 1e-3)
    return factor * task * task


def cases(rng):
    """From small to large; m = 0, m < n-1 and m = n-1; results of 0, tasks below 1."""
    made = [case(rng, n, m) for n, m in SIZES]
    made += [case(rng, 3, 2, factor=0), case(rng, 3, 6, least=0.2, most=0.9)]
    return sorted(made, key=lambda case: (case.n, case.facts["m"]))


def case(rng, n, m, factor=1, least=3, most=6):
    """m tasks for n-1 workers, the first of them slow; no two are free at once."""
    gap = 0.0
    while gap < CLOSE:
        slowness = [8.0, *rng.uniform(1, 2, size=n - 2).tolist()]
        tasks = rng.uniform(least, most, size=m).tolist()
        span, gap = greedy([task * 1e-3 for task in tasks], slowness)
    cluster = Cluster.ideal(n, ALPHA, 0.0)
    for worker, slower in enumerate(slowness, start=1):
        cluster = cluster.slow(worker, slower)
    return Case(
        n,
        f"{ranks(n)}, {m} task{'s' * (m != 1)}"
        + ", all results 0" * (not factor)
        + ", all below 1" * (most < 1),
        inputs=[(None if r else tasks, partial(do, factor=factor)) for r in range(n)],
        expected=[[factor * task * task for task in tasks], *[None] * (n - 1)],
        facts={"m": m, "span": span},
        options={"cluster": cluster},
    )


def greedy(tasks, slowness):
    """(seconds until all is done, smallest gap between the first two to be free)."""
    free, gap = [0.0] * len(slowness), float("inf")
    for i, task in enumerate(tasks):
        first, *others = sorted(range(len(free)), key=free.__getitem__)
        if others and i >= len(free):
            gap = min(gap, free[others[0]] - free[first])
        free[first] += task * slowness[first]
    return max(free), gap


def left_to_others(attempt):
    """Tasks that took no worker's time: done by rank 0, or where no clock runs."""
    done_by = [e.rank for e in attempt.run.timeline.events if e.name == "sleep"]
    on_rank_0 = done_by.count(0)
    return on_rank_0 + max(attempt.case.facts["m"] - len(done_by) + on_rank_0, 0)


def served(attempt):
    """The workers in the order in which rank 0 has had their results."""
    events = attempt.run.timeline.events
    came = [e for e in events if (e.rank, e.stream) == (0, "recv")]
    return [event.peer for event in sorted(came, key=lambda event: event.start)]


def evenly(attempt):
    """No worker has done more than one task more than another."""
    counts = [served(attempt).count(r) for r in range(1, attempt.case.n)]
    return max(counts) - min(counts) <= 1


def reordered(attempt):
    """The same numbers as expected, in another order."""
    came, wanted = attempt.came[0] or [None], attempt.case.expected[0]
    return sorted(map(str, came)) == sorted(map(str, wanted))


def asks(attempt):
    """Each worker sends a message more than results, not a second one with each."""
    m, sent = attempt.case.facts["m"], sum(attempt.run.messages[1:])
    return sent == m + attempt.case.n - 1 != 2 * m


MESSAGES = rows.messages(lambda case: 2 * case.facts["m"] + case.n - 1)
TIME = rows.seconds(lambda c: 1.05 * c.facts["span"] + 10 * ALPHA * c.n, exactly=False)
BY_WORKERS = Requirement(
    "tasks that no worker did", left_to_others, lambda case: 0, instead=left_to_others
)
SLOW = both(breaks(TIME), lambda a: a.case.facts["m"] >= a.case.n > 2)

exercise = Exercise(
    "04.5",
    cases,
    [MESSAGES, BY_WORKERS, TIME, rows.all_waited(), rows.from_messages()],
    {
        "no stop": both(hangs, lambda a: "rank 0 has returned" in str(a.error)),
        "few tasks": both(
            signs.only(lambda case: case.facts["m"] < case.n - 1),
            either(hangs, raises(IndexError, StopIteration, ValueError)),
        ),
        "arrival order": both(wrong, reordered),
        "rounded": both(wrong, lambda a: near(a.came[0], a.case.expected[0], 1e-5)),
        "rank 0 works": both(
            right, lambda a: sum(a.run.messages) < MESSAGES.allowed(a.case)
        ),
        "asks for work": both(right, asks),
        "rank order": both(
            SLOW, lambda a: served(a)[: a.case.n - 1] == [*range(1, a.case.n)]
        ),
        "equal shares": both(SLOW, evenly),
    },
)
