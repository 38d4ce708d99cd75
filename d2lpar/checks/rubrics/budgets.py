"""What exercise 13.1 asks for: a schedule within a budget of activations."""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn

from ...pipeline import Pipeline
from ...schedule import Action, Schedule, ScheduleError, parse, simulate
from ...world.cluster import Cluster
from ...world.launch import run, sleep
from ..judging import Case, Exercise, Mistake, Requirement, on_ranks, ranks
from ..signs import right

SIZES = [(1, 3, 1), (2, 6, 2), (2, 6, 3), (2, 1, 3), (3, 8, 3), (3, 8, 4), (3, 2, 4)]
SIZES += [(3, 9, 7), (4, 12, 5), (4, 9, 6), (5, 12, 6), (6, 13, 8)]  # p, m, limit
EXECUTED = 3 * 3 * 9  # schedules of so many actions are executed, not only simulated


def budget_cases(rng):
    """Budgets of 1F1B, of ZB-H2, and between; fewer micro-batches than the budget."""
    drawn = int(rng.integers(4, 7))
    more = drawn, int(rng.integers(2, 3 * drawn)), int(rng.integers(drawn, 2 * drawn))
    for p, m, limit in [*SIZES, more]:
        pieces = f"{m} micro-batch{'es' * (m > 1)}"
        yield Case(
            1,
            f"{ranks(p)}, {pieces}, at most {limit} held",
            inputs=[(p, m, limit)],
            expected=[True],
            facts={"p": p, "m": m, "limit": limit},
        )


def least_lost(case):
    """What rank 0 must wait: its first B cannot begin before 2p-1."""
    facts = case.facts
    return float(max(0, 2 * facts["p"] - 1 - min(facts["m"], facts["limit"])))


class Slow(torch.autograd.Function):
    """x, whose F and B take a unit of time each."""

    @staticmethod
    def forward(ctx, x):
        sleep(1)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        sleep(1)
        return dy


class Stage(nn.Module):
    """A product that takes time."""

    def __init__(self, number):
        super().__init__()
        self.layer = nn.Linear(2, 2).double()
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0, number], [0.5, -1.0]]))
            self.layer.bias.fill_(number)

    def forward(self, x):
        return Slow.apply(self.layer(x))


def squares(out, y):
    """The sum of the squares of the differences."""
    return (out - y).square().sum()


class Timed(Pipeline):
    """W takes time as well; the two parts together where they are not apart."""

    def weights(self, action):
        super().weights(action)
        sleep(1)

    def backward(self, action):
        super().backward(action)
        sleep(not self.schedule.splits)


def gradients_of(schedule):
    """This rank's gradients, with real tensors."""
    stage = Stage(dist.get_rank())
    x, y = torch.arange(2.0 * 2 * schedule.m, dtype=torch.float64).view(2, -1, 2)
    Timed(schedule, [stage], squares).step(x, y)
    return [p.grad for p in stage.parameters()]


def gradients_alone(p, m):
    """The same of one device, for all stages."""
    stages = [Stage(s).layer for s in range(p)]
    x, y = torch.arange(2.0 * 2 * m, dtype=torch.float64).view(2, -1, 2)
    (squares(nn.Sequential(*stages)(x), y) / m).backward()
    return [[p.grad for p in stage.parameters()] for stage in stages]


def checked(value, case):
    """The Schedule of a text, of a Schedule, or of its rows; else ScheduleError."""
    p, m = case.facts["p"], case.facts["m"]
    try:
        rows = value if isinstance(value, str) else getattr(value, "ranks", value)
        rows = parse(rows).ranks if isinstance(rows, str) else rows
        made = Schedule(tuple(tuple(Action(*a) for a in row) for row in rows), "yours")
    except TypeError:
        text = f"A {type(value).__name__} is no text of a schedule."
        raise ScheduleError("text", text) from None
    simulate(made)
    if made.home != {s: s for s in range(p)} or made.p != p:
        text = f"Asked for are {ranks(p)}, and stage s on rank s."
        raise ScheduleError("home", text, made)
    if made.m != m:
        text = f"Asked for are {m} micro-batches, and it has {made.m}."
        raise ScheduleError("micro-batches", text, made)
    return made


def as_schedule(fn, case, **options):
    """What `fn` returns is checked, simulated, and small ones are executed.

    The value is (schedule, Simulation); the error that of a schedule that breaks
    a rule.
    """
    attempt = on_ranks(fn, case, **options)
    if attempt.error is not None:
        return attempt
    try:
        made = checked(attempt.values[0], case)
    except ScheduleError as error:
        attempt.error = error
        return attempt
    found = None
    if len(made.every) <= EXECUTED:
        free = Cluster.ideal(made.p, alpha=0.0, beta=0.0)
        where = {"backend": "sim", "cluster": free, "device": "cpu"}
        attempt.run = run(gradients_of, made, world_size=made.p, **where)
        found = attempt.run.results
    attempt.values = [(made, simulate(made, 1, 1, 1), found)]
    return attempt


def _like_one_device(attempt, rank):
    made, _, found = attempt.values[rank]
    wanted = gradients_alone(made.p, made.m)
    return found is None or all(
        torch.allclose(a, b, rtol=1e-9)
        for mine, truth in zip(found, wanted, strict=True)
        for a, b in zip(mine, truth, strict=True)
    )


def _lost(attempt):
    _, sim, _ = attempt.values[0]
    return max(sim.spans) - 3.0 * attempt.case.facts["m"]


def _held(attempt):
    return attempt.values[0][1].in_flight


def _breaks(*rules):
    """The schedule breaks one of these rules, or any where none is named."""

    def ask(attempt):
        error = attempt.error
        broken = isinstance(error, ScheduleError)
        return broken and (not rules or error.rule in rules)

    return ask


# Questions about a schedule that can be played


def _rows(attempt):
    return attempt.values[0][0].ranks if right(attempt) else ()


def _over(attempt):
    return right(attempt) and max(_held(attempt)) > attempt.case.facts["limit"]


def _idle(attempt):
    return right(attempt) and _lost(attempt) > least_lost(attempt.case)


def _together(attempt):
    return _idle(attempt) and not attempt.values[0][0].splits


def _weights_last(attempt):
    """No rank takes a W before its last B."""
    kinds = ["".join(a.kind for a in row) for row in _rows(attempt)]
    return _over(attempt) and all(
        "W" in k and k.index("W") > k.rindex("B") for k in kinds
    )


def _weights_at_once(attempt):
    """Each W stands behind its own B."""
    return _idle(attempt) and all(
        b == a._replace(kind="W")
        for row in _rows(attempt)
        for a, b in pairwise(row)
        if a.kind == "B"
    )


def _ahead(row):
    """How many forwards stand before the first backward."""
    return [a.kind for a in row].index("B")


def _same_as_1f1b(attempt):
    """Each rank begins with p - r forwards, whatever the budget is."""
    p, m, rows = attempt.case.facts["p"], attempt.case.facts["m"], _rows(attempt)
    usual = [min(m, p - r) for r in range(p)]
    return _idle(attempt) and list(map(_ahead, rows)) == usual


budget = Exercise(
    "13.1",
    "Within a budget",
    budget_cases,
    [
        Requirement(
            "micro-batches held", _held, lambda case: case.facts["limit"], False
        ),
        Requirement("units of time lost", _lost, least_lost, False, "{:g}".format),
    ],
    [
        Mistake(
            "circle",
            _breaks("circle"),
            "Ranks wait for each other in a circle: the marked cells say who.",
            "A rank needs at least as many forwards ahead as the one behind it.",
        ),
        Mistake(
            "rule",
            _breaks(),
            "It breaks a rule of schedules: see the sentence and the marked cell.",
            "`d2lpar.schedule.validate` tells you before the check does.",
        ),
        Mistake(
            "weights last",
            _weights_last,
            "All W stand at the end, and a micro-batch is held until its W is over.",
            "How many W may a rank put off, when it holds `limit` micro-batches?",
        ),
        Mistake(
            "over the budget",
            _over,
            "A rank holds more micro-batches than `limit`.",
            "From the begin of F to the end of W it is held. Count row by row.",
        ),
        Mistake(
            "together",
            _together,
            "B and W are not apart, so nothing can fill the bubble.",
            "Name them apart: B makes what the stage before waits for, W the rest.",
        ),
        Mistake(
            "at once",
            _weights_at_once,
            "Each W follows its B at once, and then the stage before waits for it.",
            "Nobody waits for W. A rank with room in its budget can put it off.",
        ),
        Mistake(
            "as 1F1B",
            _same_as_1f1b,
            "It has the forwards ahead that 1F1B has, and does not use its budget.",
            "Rank 0 waits for its first B. What may it do in that time?",
        ),
        Mistake(
            "still idle",
            _idle,
            "It keeps the budget, and some rank waits longer than it must.",
            "Find the rank with the longest span, and its first gap. What filled the "
            "budget there, an F too many or a W put off too long?",
        ),
    ],
    outcome=_like_one_device,
    perform=as_schedule,
    processes=(),
)
