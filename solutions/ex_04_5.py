"""04.5 Whoever is free: hand_out(tasks, work)."""

from functools import partial

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, ranks
from d2lpar.checks.signs import both, breaks, either, hangs, only, raises, right, wrong
from d2lpar.launch.run import sleep
from d2lpar.sim.cluster import Cluster

ex = Exercise("04.5", reference="schedule_reference")
ALPHA = 1e-6  # seconds a message
CLOSE = 50e-6  # seconds: two workers that are free at nearly the same time
SIZES = ((2, 0), (2, 1), (2, 3), (3, 1), (3, 7), (4, 2), (4, 12), (5, 16), (8, 4))
SIZES += ((8, 30),)


@ex.cases
def cases(rng, schedule):
    """m = 0, m < n-1 and m = n-1; results of 0 and below, equal and unlike tasks."""
    made = [draw(rng, schedule, n, rng.uniform(3, 6, size=m)) for n, m in SIZES]
    kinds = {
        "all results 0": (rng.uniform(3, 6, size=2), 0),
        "all below 1, all results below 0": (rng.uniform(0.2, 0.9, size=6), -1),
        "all equal": (rng.uniform(3, 6, size=1).repeat(5),),
        "the last one long": (rng.uniform(3, 4, size=2) * [1, 9],),
    }
    made += [draw(rng, schedule, 3, *it, told=f", {k}") for k, it in kinds.items()]
    return sorted(made, key=lambda case: (case.n, case.facts["m"]))


def draw(rng, schedule, n, tasks, factor=1, told=""):
    """Tasks for n-1 workers, the first of them slow; no two are free at once."""
    tasks, gap = tasks.tolist(), 0.0
    while gap < CLOSE:
        slowness = [8.0, *rng.uniform(1, 2, size=n - 2).tolist()]
        span, owners = schedule([task * 1e-3 for task in tasks], slowness)
        gap = smallest_gap(tasks, slowness, owners)
    cluster = Cluster.ideal(n, ALPHA, 0.0)
    for worker, slower in enumerate(slowness, start=1):
        cluster = cluster.slow(worker, slower)
    m = len(tasks)
    text = f"{ranks(n)}, {m} task{'s' * (m != 1)}{told}"
    inputs = [(None if r else tasks, partial(do, factor=factor)) for r in range(n)]
    results = [factor * task * task for task in tasks]
    facts = {"m": m, "span": span, "tasks": tasks}
    expected = [results, *[None] * (n - 1)]
    return Case(n, text, inputs, expected, facts, {"cluster": cluster})


def do(task, factor=1):
    """What a task asks for: it takes `task` milliseconds on a worker of speed 1."""
    sleep(task * 1e-3)
    return factor * task * task


def smallest_gap(tasks, slowness, owners):
    """Seconds between the first two workers to be free, where they are nearest."""
    free, gaps = [0.0] * len(slowness), [1.0]
    for i, (task, owner) in enumerate(zip(tasks, owners, strict=True)):
        first, second = sorted([*free, float("inf")])[:2]
        gaps += [second - first] * (i >= len(free))
        free[owner - 1] += task * 1e-3 * slowness[owner - 1]
    return min(gaps)


def left_to_others(attempt):
    """Tasks that took no worker's time: done by rank 0, or where no clock runs."""
    ranks = done_by(attempt)
    on_rank_0 = ranks.count(0)
    return on_rank_0 + max(attempt.case.facts["m"] - len(ranks) + on_rank_0, 0)


def done_by(attempt):
    """The rank of each event of a task."""
    return [e.rank for e in attempt.run.timeline.events if e.name == "sleep"]


tasks = lambda case: case.facts["m"]
given = lambda case: case.facts["tasks"]
results = lambda case: case.expected[0]
MESSAGES = rows.messages(lambda case: 2 * tasks(case) + case.n - 1)
TIME = rows.seconds(lambda c: 1.05 * c.facts["span"] + 10 * ALPHA * c.n, exactly=False)
BY_WORKERS = Requirement(
    "tasks that no worker did", left_to_others, lambda case: 0, instead=left_to_others
)
ex.require(MESSAGES, BY_WORKERS, TIME, rows.all_waited(), rows.from_messages())
ex.boundaries(
    "two ranks",
    "no power of two",
    no_task=lambda case: tasks(case) == 0,
    one_task=lambda case: tasks(case) == 1 and case.n > 2,
    fewer_than_workers=lambda case: 1 < tasks(case) < case.n - 1,
    one_for_each=lambda case: tasks(case) == case.n - 1 > 1,
    ties=lambda case: len({*given(case)}) < tasks(case),
    results_of_0=lambda case: tasks(case) and not any(results(case)),
    results_below_0=lambda case: tasks(case) and max(results(case)) < 0,
    tasks_below_1=lambda case: tasks(case) and max(given(case)) < 1,
)

# Texts of the answer, for edits

FOR, WORKER = "for i, task in enumerate(tasks):", "i + 1 if i < n - 1 else hear()"
HEARS, KEEPS = "dist.recv(ball)", "results[doing.pop(worker)] = ball.item()"
WORK, SEND = "work(ball.item())", "dist.send(torch.full_like(ball, task), worker)"
EMPTY, WAITS, STOPS = "[None] * len(tasks)", "while doing:", "worker in range(1, n):"
ASK, SERVES = "if r > 0:", "while ball.item() > 0:  # 0 says stop"

# Mistakes of its own

returned = lambda attempt: "rank 0 has returned" in str(attempt.error)
ex.mistake("no stop", both(hangs, returned), {STOPS: "worker in ():"}).says("""
    Rank 0 has returned, but at least one worker still waits for its next task.
    Hint: How does a worker learn that there is no more work? Send each of them one last
    message.
""")
few = only(lambda case: tasks(case) < case.n - 1)
fails = either(hangs, raises(IndexError, StopIteration, ValueError))
every = {FOR: f"[tasks[k] for k in range(n - 1)]\n    {FOR}"}
ex.mistake("few tasks", both(few, fails), every).says("""
    It fails where there are fewer tasks than workers.
    Hint: What happens to a worker that gets no task at all? It still waits for a
    message, and sends no result.
""")
ex.wrong("few tasks", {WAITS: "for _ in range(n - 1):"})


def reordered(attempt):
    """The same numbers as expected, in another order."""
    came, wanted = attempt.came[0] or [None], results(attempt.case)
    return sorted(map(str, came)) == sorted(map(str, wanted))


as_they_come = {KEEPS: "doing.pop(worker); results.append(ball.item())", EMPTY: "[]"}
ex.mistake("arrival order", both(wrong, reordered), as_they_come).says("""
    The results are right, but they are not in the order of the tasks.
    Hint: Of which task is a result? Rank 0 must remember which task each worker has,
    and `dist.recv` returns the rank that has sent the result.
""")


def asks(attempt):
    """Each worker sends a message more than results, not a second one with each."""
    m, sent = tasks(attempt.case), sum(attempt.run.messages[1:])
    return sent == m + attempt.case.n - 1 != 2 * m


first = {ASK: f"{ASK}\n        dist.send(ball, 0)"}
first["results, d"] = "[dist.recv(ball, k) for k in range(1, n)]; results, d"
ex.mistake("asks for work", both(right, asks), first).says("""
    Every worker sends one message more than it has results, as if it asked for work.
    Hint: When does rank 0 know that a worker is free? At the start all of them are, and
    later a result shows that its sender is free again.
""")


def evenly(attempt):
    """No worker has done more than one task more than another."""
    counts = [done_by(attempt).count(r) for r in range(1, attempt.case.n)]
    return max(counts) - min(counts) <= 1


many = lambda attempt: tasks(attempt.case) >= attempt.case.n > 2
late = both(breaks(TIME), BY_WORKERS.holds)
dealt = "[worker := i % (n - 1) + 1, [worker in doing and hear() for _ in range(n)]][0]"
ex.mistake("equal shares", both(late, many, evenly), {WORKER: dealt}).says("""
    Every worker gets the same number of tasks, however fast or slow it is.
    Hint: When do you decide who gets a task? Wait until some worker becomes free:
    `dist.recv(ball)` without a source takes whatever comes first.
""")
ex.wrong("equal shares", {HEARS: "dist.recv(ball, min(doing, key=doing.get))"})

# Answers to which the general sentences apply

ex.wrong("wrong", {WORK: f"torch.tensor({WORK}).item()"})
ex.wrong("wrong", {"doing[worker] = i": "doing[worker] = tasks.index(task)"})
ex.wrong("hangs", {EMPTY: "[0.0] * len(tasks)", WAITS: "while 0.0 in results:"})
hears_the_end = "[dist.recv(ball) for _ in range(1, n)]; return results"
ex.wrong("hangs", {"return results": hears_the_end})
ex.wrong("costly", {WORKER: WORKER.replace("i + 1", "n - 1 - i")})
alone = "if r == 0:\n        return [*map(work, tasks)]\n    else:\n        return"
ex.wrong("costly", {ASK: f"{alone}\n    {ASK}"})
thread = "__import__('concurrent.futures').futures.ThreadPoolExecutor().submit"
ex.wrong("costly", {WORK: f"{thread}(work, ball.item()).result()"})
ex.wrong("native collective", {"n, r =": "dist.all_reduce(torch.ones(1)); n, r ="})
ex.right({SERVES: "while ball.isfinite():", "torch.zeros_like(ball)": "ball / 0"})
ex.right({SEND: SEND.replace("send", "isend") + ".wait()"})
