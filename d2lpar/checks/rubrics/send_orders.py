"""What exercise 13.2 asks for: messages that fit any schedule."""

from itertools import cycle

import torch
from torch import nn

from ...pipeline import receiver
from ...schedule import make, parse, simulate
from ...world.cluster import Cluster
from ...world.launch import sleep
from ..judging import Case, Exercise, Mistake, ranks
from ..requirements import all_waited, from_messages, messages, seconds
from ..signs import both, hangs, mismatched, right, wrong

F, B = 1e-3, 2e-3  # seconds of a rank's share of a micro-batch
D = 3

# Two ranks with two stages each, that take the micro-batches in different orders.
BY_HAND = {
    "stages 0, 2 and 1, 3": """
        0F0 0F1 2F1 2F0 2B0 0B0 2B1 0B1
        1F1 3F1 3B1 1F0 3F0 3B0 1B0 1B1""",
    "stages 0, 2 and 1, 3, three micro-batches": """
        0F0 0F1 0F2 2F2 2F0 2B0 2F1 2B2 0B0 2B1 0B2 0B1
        1F2 3F2 3B2 1F0 3F0 3B0 1F1 3F1 3B1 1B0 1B2 1B1""",
}


def order_cases(rng):
    """Interleaved, 1F1B, GPipe and by hand; rows that divide and rows that do not."""
    named = [("gpipe", 2, 1, None), ("1f1b", 2, 3, None), ("interleaved", 2, 2, 2)]
    named += [("interleaved", 3, 3, 2), ("interleaved", 2, 5, 2), ("1f1b", 4, 4, None)]
    named += [("interleaved", 4, 4, 2), ("interleaved", 2, 5, 3)]
    drawn = "interleaved", 3, int(rng.integers(4, 7)), 2
    made = [make(*which) for which in [*named, drawn]]
    made += [parse(text, name) for name, text in BY_HAND.items()]
    made.sort(key=lambda schedule: len(schedule.every))
    for schedule, uneven in zip(made, cycle([False, True]), strict=False):
        yield _case(rng, schedule, uneven)


def _case(rng, schedule, uneven):
    p, m, stages = schedule.p, schedule.m, schedule.stages
    v, rows = stages / p, [2 + (i % 3 if uneven else 0) for i in range(m)]
    modules = {s: Stage(rng, F / v, B / v) for s in range(stages)}
    xs = [torch.from_numpy(rng.normal(size=(n, D))) for n in rows]
    truth = gradients_alone([modules[s] for s in range(stages)], xs)
    mine = [[s for s, home in schedule.home.items() if home == r] for r in range(p)]
    sizes = "rows that differ" if uneven else "2 rows each"
    return Case(
        p,
        f"{ranks(p)}, {schedule.name}, {m} micro-batch{'es' * (m > 1)}, {sizes}",
        inputs=[(schedule, {s: modules[s] for s in own}, xs) for own in mine],
        expected=[{s: truth[s] for s in own} for own in mine],
        facts={
            "schedule": schedule,
            "seconds": simulate(schedule, F / v, B / v).elapsed,
            "crosses": crosses(schedule),
        },
        options={"cluster": Cluster.ideal(p, alpha=0.0, beta=0.0)},
    )


class Takes(torch.autograd.Function):
    """x, whose F and B take these seconds."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_time = backward
        sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        sleep(ctx.backward_time)
        return dy, None, None


class Stage(nn.Module):
    """A layer that takes time in a run."""

    def __init__(self, rng, forward, backward):
        super().__init__()
        self.layer = nn.Linear(D, D).double()
        self.times = forward, backward
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.from_numpy(rng.normal(size=p.shape)))

    def forward(self, x):
        return Takes.apply(torch.tanh(self.layer(x)), *self.times)


def gradients_alone(stages, xs):
    """[[gradients of a stage]] of the sum of the squares of all outputs."""
    every = [list(stage.parameters()) for stage in stages]
    x = torch.cat(xs)
    for stage in stages:
        x = torch.tanh(stage.layer(x))
    found = torch.autograd.grad(x.square().sum(), [p for ps in every for p in ps])
    return [list(found[2 * s : 2 * s + 2]) for s in range(len(stages))]


def crosses(schedule):
    """Some rank needs what another sends it in another order than it is sent."""
    home, made = schedule.home, {}
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            needed_by = receiver(action, schedule.stages)
            if needed_by:
                made.setdefault((rank, home[needed_by.stage]), []).append(needed_by)
    rows = schedule.ranks
    return any(
        sorted(needed, key=rows[dst].index) != needed
        for (_, dst), needed in made.items()
    )


def _messages(case):
    schedule = case.facts["schedule"]
    return 2 * schedule.m * (schedule.stages - 1)


def _in_time(case):
    return 1.001 * case.facts["seconds"]


def _late(attempt):
    return right(attempt) and attempt.run.elapsed > _in_time(attempt.case)


def _too_many(attempt):
    return right(attempt) and sum(attempt.run.messages) > _messages(attempt.case)


def _crossed(attempt):
    """It fails where orders differ, other than by waiting."""
    confused = wrong(attempt) or mismatched(attempt)
    return confused and attempt.case.facts["crosses"]


def _some_missing(attempt):
    """Some gradient is None, or is there for too few stages."""
    pairs = zip(attempt.came or [], attempt.case.expected, strict=False)
    return wrong(attempt) and any(
        not isinstance(came, dict)
        or came.keys() != wanted.keys()
        or any(g is None for gradients in came.values() for g in gradients)
        for came, wanted in pairs
    )


order = Exercise(
    "13.2",
    "The order of sends",
    order_cases,
    [messages(_messages), seconds(_in_time, exactly=False), all_waited()]
    + [from_messages()],
    [
        Mistake(
            "hangs",
            hangs,
            "Ranks still wait for each other in `send`: read who, above.",
            "A rank that sends must be able to go on before its message is taken.",
        ),
        Mistake(
            "missing",
            _some_missing,
            "A stage has no gradients.",
            "Return {stage: [gradients of its parameters]} for the stages given.",
        ),
        Mistake(
            "crossed",
            _crossed,
            "A rank takes a tensor for another: it is needed in another order than "
            "the one in which it was sent.",
            "A receive takes what comes first from that rank, unless both sides name "
            "the message. What do both know about it?",
        ),
        Mistake(
            "late",
            both(right, _late),
            "It is right, and takes longer than the schedule: somebody waits for a "
            "message of its own to be taken.",
            "Wait for what was sent when the row is over, not before.",
        ),
        Mistake(
            "chatty",
            both(right, _too_many),
            "It is right, and sends more messages than there are tensors to send.",
            "Nobody must be asked. The schedule says what will come.",
        ),
    ],
)
