"""13.1 Within a budget: within(p, m, limit), the text of a schedule."""

from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist

from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Layer
from d2lpar.checks.judging import Case, Requirement, on_ranks, ranks
from d2lpar.checks.signs import always, breaks
from d2lpar.launch.run import run, sleep
from d2lpar.pipeline import Pipeline
from d2lpar.pipeline.schedule import ScheduleError, parse, simulate
from d2lpar.sim.cluster import Cluster

# p, m, limit
SIZES = [(1, 1, 1), (1, 3, 1), (1, 4, 3), (2, 6, 2), (2, 6, 3), (2, 3, 4), (2, 1, 3)]
SIZES += [(3, 8, 3), (3, 8, 4), (3, 2, 4), (3, 9, 7), (4, 12, 5), (4, 9, 6), (5, 12, 6)]
SIZES += [(6, 13, 8)]
EXECUTED = 3 * 3 * 9  # schedules of so many actions are executed, not only simulated


class Timed(Pipeline):
    """W takes a unit of time, also as a part of B."""

    def weights(self, action):
        super().weights(action)
        sleep(1)

    def backward(self, action):
        super().backward(action)
        sleep(not self.schedule.splits)


def gradients_of(schedule, layers, x):
    """This rank's gradients of the sum of all squares."""
    layer = layers[dist.get_rank()]
    loss = lambda out, y: out.square().sum() * len(x)  # `step` divides by that
    Timed(schedule, [layer], loss).step(x, x)
    return [p.grad for p in layer.parameters()]


def executed(made):
    """(a Run of it with real tensors, are the gradients those of one device?)"""
    p, between = made.p, partial(torch.linspace, -1, 1, dtype=torch.float64)
    layers = [Layer(w, w[0].clone(), (1, 1)) for w in between(4 * p).view(p, 2, 2)]
    x = y = between(2 * made.m).view(-1, 2)
    where = {"backend": "sim", "device": "cpu", "world_size": p}
    free = Cluster.ideal(p, alpha=0.0, beta=0.0)
    came = run(gradients_of, made, layers, x, cluster=free, **where)
    for layer in layers:
        y = torch.tanh(layer.linear(y))
    y.square().sum().backward()
    alone = [[p.grad for p in layer.parameters()] for layer in layers]
    return came, same(came.results, alone)


def as_schedule(fn, case, **options):
    """What `fn` returns is checked and simulated; small ones are executed.

    The value is (schedule, Simulation, right gradients?); the error a ScheduleError.
    """
    attempt, (p, m, _) = on_ranks(fn, case, **options), case.inputs[0]
    if attempt.error is not None:
        return attempt
    try:
        made = parse(str(attempt.values[0]), "yours")
        attempt.values = [(made, simulate(made, 1, 1, 1), True)]
        if made.m != m or made.home != {s: s for s in range(p)}:
            rule = "micro-batches" if made.m != m else "home"
            text = f"Asked for are {m} micro-batches, and stage s on rank s of {p}."
            raise ScheduleError(rule, text, made)
    except ScheduleError as error:
        attempt.error = error
        return attempt
    if len(made.every) <= EXECUTED:
        attempt.run, alike = executed(made)
        attempt.values = [(*attempt.values[0][:2], alike)]
    return attempt


gradients = lambda attempt, rank: attempt.values[rank][2]
ex = Exercise("13.1", outcome=gradients, perform=as_schedule, processes=())


@ex.cases
def cases(rng):
    """Budgets of 1F1B, of ZB-H2, and between; fewer micro-batches than the budget."""
    p = int(rng.integers(4, 7))
    more = p, int(rng.integers(2, 3 * p)), int(rng.integers(p, 2 * p))
    for p, m, limit in [*SIZES, more]:
        pieces = f"{m} micro-batch{'es' * (m > 1)}"
        text = f"{ranks(p)}, {pieces}, at most {limit} held"
        yield Case(1, text, [(p, m, limit)], [True])


sized = lambda condition: lambda case: condition(*case.inputs[0])
ex.boundaries(
    one_rank=sized(lambda p, m, limit: p == 1),
    two_ranks=sized(lambda p, m, limit: p == 2),
    no_power_of_two=sized(lambda p, m, limit: p & (p - 1)),
    one_micro_batch=sized(lambda p, m, limit: m == 1),
    fewer_than_ranks=sized(lambda p, m, limit: 1 < m < p),
    fewer_than_the_budget=sized(lambda p, m, limit: p < m < limit),
    least_budget=sized(lambda p, m, limit: limit == p > 2),
    one_more=sized(lambda p, m, limit: limit == p + 1 > 2),
    beyond_2p=sized(lambda p, m, limit: limit > 2 * p > 2),
)
row_of = lambda attempt: attempt.values[0][0].ranks
lost = lambda a: max(a.values[0][1].spans) - 3.0 * a.case.inputs[0][1]
# What rank 0 must wait: its first B cannot begin before 2p-1.
least = sized(lambda p, m, limit: float(max(0, 2 * p - 1 - min(m, limit))))
in_flight = lambda attempt: attempt.values[0][1].in_flight
limit = sized(lambda p, m, limit: limit)
HELD = Requirement("micro-batches held", in_flight, limit, exactly=False)
LOST = Requirement("units of time lost", lost, least, False, "{:g}".format)
ex.require(HELD, LOST)

# Texts of the answer, for edits

AHEAD, LATE = "min(m, 2 * (p - 1 - r), p - 1 - r + limit - p)", "limit - 1 - ahead"
WHEN, ALL_F, START = "i - done >= late or", "ahead + i >= m - 1", "rows = []"
chapters = lambda name: {START: f"return str(make({name!r}, p, m))"}

# Mistakes of its own


ex.mistake("over the budget", breaks(HELD), {LATE: "limit - ahead"}).says("""
    Some rank holds more micro-batches than `limit` allows.
    Hint: Count row by row: a micro-batch is held from the start of its F to the end of
    its W. A W that is put off keeps its place in the budget, so take it before that is
    full.
""")
ex.wrong("over the budget", chapters("zb-h2"))
ex.wrong("over the budget", {WHEN: "", ALL_F: "False"})
wherever_lost = lambda shape: always(shape, among=breaks(LOST))


def at_once(attempt):
    """Each W stands behind its own B, or is a part of it."""
    pairs = [pair for row in row_of(attempt) for pair in pairwise(row)]
    behind = all(b == a._replace(kind="W") for a, b in pairs if a.kind == "B")
    return behind or not attempt.values[0][0].splits


ex.mistake("at once", wherever_lost(at_once), {WHEN: "True or"}).says("""
    Every W follows its B at once, or is a part of it, so it fills no bubble.
    Hint: Who waits for what? The stage before waits for the result of B, but no rank
    waits for a W. So a rank that has room in its budget can put it off.
""")
ex.wrong("at once", chapters("1f1b"))


def as_1f1b(attempt):
    """Each rank begins with p - r forwards, and the budget would allow more."""
    p, m, limit = attempt.case.inputs[0]
    ahead = [[a.kind for a in row].index("B") for row in row_of(attempt)]
    return min(m, limit) > p and ahead == [p - r for r in range(p)]


ex.mistake("as 1F1B", wherever_lost(as_1f1b), chapters("zb-h1")).says("""
    It takes as many forwards ahead as 1F1B does, although the budget allows more.
    Hint: What can the first stage do while it waits for its first B? It can take more
    F, as long as the budget allows.
""")
ex.wrong("as 1F1B", {AHEAD: "min(m, p - 1 - r)"})
ex.mistake("still idle", breaks(LOST), {LATE: "max(0, limit - 2 - ahead)"}).says("""
    It keeps the budget, but some rank waits longer than it must.
    Hint: Find the rank with the longest span, and its first gap. Look at what filled
    its budget by then. It may be an F too many, or a W that was put off for too long.
""")
ex.wrong("still idle", {f"{WHEN} {ALL_F}": "i - done >= late"})

# Answers to which the general sentences apply

ex.wrong("error", {AHEAD: "min(m, r)"})
ex.wrong("error", {"(done, m)": "(done, m - 1)"})
ex.wrong("error", {'"\\n".join(rows)': '"\\n".join(rows[::-1])'})
ex.right({'"\\n".join(rows)': 'd2lpar.schedule.parse("\\n".join(rows))'})

ex.variation(
    "b",
    varied="who holds what: stage s on rank p-1-s",
    differs="Stage s is on rank s, as in the public exercise, but here it has to be on "
    "rank p-1-s.",
    back=lambda value, n: "\n".join(str(value).strip().split("\n")[::-1]),
)
