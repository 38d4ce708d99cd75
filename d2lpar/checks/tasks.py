"""What exercise 04.5 asks for: tasks for whoever is free."""

from ..world.cluster import Cluster
from ..world.launch import sleep
from .judging import Case, Exercise, Mistake, Requirement, ranks, same
from .requirements import all_waited, from_messages, messages, seconds
from .signs import both, hangs, raises, wrong

ALPHA = 1e-6  # seconds a message
SIZES = ((2, 0), (2, 3), (3, 1), (3, 7), (4, 2), (4, 12), (5, 16), (8, 4), (8, 30))
NEAR = 50e-6  # seconds: two workers that are free at nearly the same time


def do(task):
    """What a task asks for: it takes `task` milliseconds on a worker of speed 1."""
    sleep(task * 1e-3)
    return task * task


def free_cases(rng):
    """m tasks for n-1 workers, the first of them slow; m < n-1 too."""
    for n, m in SIZES:
        slowness, tasks, span = _clear(rng, n, m)
        cluster = Cluster.ideal(n, ALPHA, 0.0)
        for worker, factor in enumerate(slowness, start=1):
            cluster = cluster.slow(worker, factor)
        yield Case(
            n,
            f"{ranks(n)}, {m} task{'s' * (m != 1)}",
            inputs=[(tasks if r == 0 else None, do) for r in range(n)],
            expected=[[task * task for task in tasks], *[None] * (n - 1)],
            facts={"m": m, "span": span, "alone": sum(tasks) * 1e-3},
            options={"cluster": cluster},
        )


def _clear(rng, n, m):
    """Speeds and tasks for which it is clear who is free first, whatever alpha is."""
    while True:
        slowness = [8.0, *(float(x) for x in rng.uniform(1, 2, size=n - 2))]
        tasks = [float(task) for task in rng.uniform(3, 6, size=m)]
        span, gap = greedy([task * 1e-3 for task in tasks], slowness)
        if gap > NEAR:
            return slowness, tasks, span


def greedy(tasks, slowness):
    """(seconds until all is done, smallest gap between the first two to be free).

    Task by task: it goes to the worker that is free first, in the beginning to each
    in turn.
    """
    free, gap = [0.0] * len(slowness), float("inf")
    for i, task in enumerate(tasks):
        first, *others = sorted(range(len(free)), key=lambda w: (free[w], w))
        if others and i >= len(free):
            gap = min(gap, free[others[0]] - free[first])
        free[first] += task * slowness[first]
    return max(free), gap


def _free_messages(case):
    return 2 * case.facts["m"] + case.n - 1


def _free_seconds(case):
    return 1.05 * case.facts["span"] + 10 * ALPHA * case.n


def _left_to_others(attempt):
    """Tasks that took no worker's time: done by rank 0, or where no clock runs."""
    busy = [e.rank for e in attempt.run.timeline.events if e.name == "sleep"]
    on_workers = sum(rank > 0 for rank in busy)
    return max(attempt.case.facts["m"] - on_workers, 0) + busy.count(0)


def _served(attempt):
    """The workers in the order in which rank 0 has had their results."""
    events = attempt.run.timeline.events
    came = [e for e in events if (e.rank, e.stream) == (0, "recv")]
    return [event.peer for event in sorted(came, key=lambda event: event.start)]


def _slow(attempt):
    return attempt.right and attempt.run.elapsed > _free_seconds(attempt.case)


def _in_rank_order(attempt):
    served, workers = _served(attempt), attempt.case.n - 1
    return served == [1 + i % workers for i in range(len(served))]


def _equal_shares(attempt):
    served, workers = _served(attempt), range(1, attempt.case.n)
    counts = [served.count(worker) for worker in workers]
    return max(counts) - min(counts) <= 1


def _other_order(attempt):
    came, wanted = attempt.came and attempt.came[0], attempt.case.expected[0]
    if not isinstance(came, list) or not wrong(attempt):
        return False
    return same(sorted(map(float, came)), sorted(wanted))


def _rounded(attempt):
    came, wanted = attempt.came and attempt.came[0], attempt.case.expected[0]
    if not isinstance(came, list) or not wrong(attempt) or len(came) != len(wanted):
        return False
    pairs = zip(came, wanted, strict=True)
    return all(abs(float(a) - b) <= 1e-5 * b for a, b in pairs)


def _no_stop(attempt):
    return hangs(attempt) and "rank 0 has returned" in str(attempt.error)


def _few(attempt):
    return attempt.case.facts["m"] < attempt.case.n - 1


def _gives_up(attempt):
    return hangs(attempt) or raises(IndexError, StopIteration, ValueError)(attempt)


def _too_many(attempt):
    return attempt.right and sum(attempt.run.messages) > _free_messages(attempt.case)


def _too_few(attempt):
    return attempt.right and sum(attempt.run.messages) < _free_messages(attempt.case)


free = Exercise(
    "04.5",
    "Whoever is free",
    free_cases,
    [
        messages(_free_messages),
        Requirement(
            "tasks that no worker did",
            _left_to_others,
            lambda case: 0,
            instead=_left_to_others,
        ),
        seconds(_free_seconds, exactly=False),
        all_waited(),
        from_messages(),
    ],
    [
        Mistake(
            "no stop",
            _no_stop,
            "Rank 0 has returned, and a worker still waits for its next task.",
            "Each worker needs one last message that says: there is no more.",
        ),
        Mistake(
            "few tasks",
            both(_few, _gives_up),
            "It fails where there are fewer tasks than workers.",
            "Some workers get no task at all. They still wait for a message.",
        ),
        Mistake(
            "arrival order",
            _other_order,
            "The results are right, but stand in the order in which they came.",
            "Rank 0 must know which task a result belongs to: the receive tells who "
            "sent it.",
        ),
        Mistake(
            "rounded",
            _rounded,
            "The results are a little off: somewhere on the way they were float32.",
            "Tensors are float32 unless you say `dtype=torch.float64`.",
        ),
        Mistake(
            "rank 0 works",
            _too_few,
            "Fewer messages than two a task and one stop for each worker.",
            "Rank 0 hands out, the workers work, one task at a time.",
        ),
        Mistake(
            "asks for work",
            _too_many,
            "It sends more messages than two a task and one stop for each worker.",
            "In the beginning all are free, and a result says that its sender is.",
        ),
        Mistake(
            "rank order",
            both(_slow, _in_rank_order),
            "Rank 0 hears the workers in the order of their numbers, so all wait for "
            "the slow one.",
            "`dist.recv(buffer)` without a source takes what comes first.",
        ),
        Mistake(
            "equal shares",
            both(_slow, _equal_shares),
            "Each worker gets the same number of tasks, however fast it is.",
            "Decide who gets task i when somebody is free, not before.",
        ),
    ],
)
