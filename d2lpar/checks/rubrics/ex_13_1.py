"""13.1 Within a budget."""

from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist

from ...launch.run import run, sleep
from ...pipeline import Pipeline
from ...pipeline.schedule import RULES, ScheduleError, parse, simulate
from ...sim.cluster import Cluster
from ..equality import same
from ..judging import Case, Exercise, Requirement, on_ranks, ranks
from ..signs import both, breaks
from .chapter_13 import Layer

# p, m, limit
SIZES = [(1, 3, 1), (2, 6, 2), (2, 6, 3), (2, 3, 4), (2, 1, 3), (3, 8, 3), (3, 8, 4)]
SIZES += [(3, 2, 4), (3, 9, 7), (4, 12, 5), (4, 9, 6), (5, 12, 6), (6, 13, 8)]
EXECUTED = 3 * 3 * 9  # schedules of so many actions are executed, not only simulated


def cases(rng):
    """Budgets of 1F1B, of ZB-H2, and between; fewer micro-batches than the budget."""
    p = int(rng.integers(4, 7))
    more = p, int(rng.integers(2, 3 * p)), int(rng.integers(p, 2 * p))
    for p, m, limit in [*SIZES, more]:
        pieces = f"{m} micro-batch{'es' * (m > 1)}"
        yield Case(
            1,
            f"{ranks(p)}, {pieces}, at most {limit} held",
            [(p, m, limit)],
            expected=[True],
        )


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


def broken(*rules):
    """The schedule breaks one of these rules."""
    return lambda a: isinstance(a.error, ScheduleError) and a.error.rule in rules


def least(case):
    """What rank 0 must wait: its first B cannot begin before 2p-1."""
    p, m, limit = case.inputs[0]
    return float(max(0, 2 * p - 1 - min(m, limit)))


def lost(attempt):
    """The longest span, but for its work."""
    return max(attempt.values[0][1].spans) - 3.0 * attempt.case.inputs[0][1]


def rows(attempt):
    """The schedule, row by row."""
    return attempt.values[0][0].ranks


def wherever(row, shape):
    """It breaks this, and all schedules of the check that do so look like this."""
    return lambda a: (
        breaks(row)(a) and all(shape(x) for x in a.attempts if breaks(row)(x))
    )


def weights_last(attempt):
    """No rank takes a W before its last B."""
    kinds = ["".join(a.kind for a in row) for row in rows(attempt)]
    return all("W" in k and k.index("W") > k.rindex("B") for k in kinds)


def at_once(attempt):
    """Each W stands behind its own B."""
    pairs = [pair for row in rows(attempt) for pair in pairwise(row)]
    return all(b == a._replace(kind="W") for a, b in pairs if a.kind == "B")


def as_1f1b(attempt):
    """Each rank begins with p - r forwards, and the budget would allow more."""
    p, m, limit = attempt.case.inputs[0]
    ahead = [[a.kind for a in row].index("B") for row in rows(attempt)]
    return min(m, limit) > p and ahead == [p - r for r in range(p)]


in_flight, limit = lambda a: a.values[0][1].in_flight, lambda case: case.inputs[0][2]
HELD = Requirement("micro-batches held", in_flight, limit, exactly=False)
LOST = Requirement("units of time lost", lost, least, False, "{:g}".format)

exercise = Exercise(
    "13.1",
    cases,
    [HELD, LOST],
    {
        "circle": broken("circle"),
        "rule": broken(*RULES),
        "weights last": both(breaks(HELD), weights_last),
        "over the budget": breaks(HELD),
        "together": wherever(LOST, lambda a: not a.values[0][0].splits),
        "at once": wherever(LOST, at_once),
        "as 1F1B": wherever(LOST, as_1f1b),
        "still idle": breaks(LOST),
    },
    outcome=lambda attempt, rank: attempt.values[rank][2],
    perform=as_schedule,
    processes=(),
)
