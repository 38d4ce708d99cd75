"""13.2 The order of sends."""

import copy
from collections import defaultdict
from functools import partial

import torch

from ...pipeline import receiver
from ...pipeline.schedule import make, parse, play, simulate
from ...sim.cluster import Cluster
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_13 import Layer

F, B = 1e-3, 2e-3  # seconds of a rank's share of a micro-batch
D = 3
SIZES = [("gpipe", 2, 1, None), ("1f1b", 2, 3, None), ("interleaved", 2, 2, 2)]
SIZES += [("interleaved", 3, 3, 2), ("interleaved", 2, 5, 2), ("1f1b", 4, 4, None)]
SIZES += [("interleaved", 4, 4, 2), ("interleaved", 2, 5, 3)]

# Two ranks with two stages each, that take the micro-batches in different orders.
BY_HAND = {
    "stages 0, 2 and 1, 3": """
        0F0 0F1 2F1 2F0 2B0 0B0 2B1 0B1
        1F1 3F1 3B1 1F0 3F0 3B0 1B0 1B1""",
    "stages 0, 2 and 1, 3, three micro-batches": """
        0F0 0F1 0F2 2F2 2F0 2B0 2F1 2B2 0B0 2B1 0B2 0B1
        1F2 3F2 3B2 1F0 3F0 3B0 1F1 3F1 3B1 1B0 1B2 1B1""",
}


def cases(rng):
    """Interleaved, 1F1B, GPipe and by hand; rows that divide and rows that do not."""
    drawn = "interleaved", 3, int(rng.integers(4, 7)), 2
    made = [make(*which) for which in [*SIZES, drawn]]
    made += [parse(text, name) for name, text in BY_HAND.items()]
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    for k, schedule in enumerate(sorted(made, key=lambda made: len(made.every))):
        p, m, home = schedule.p, schedule.m, schedule.home
        times = F * p / schedule.stages, B * p / schedule.stages
        layers = [Layer(draw(D, D), draw(D), times) for _ in home]
        xs = [draw(2 + i % 3 * (k % 2), D) for i in range(m)]
        told = "rows that differ" if k % 2 else "2 rows each"
        mine = [{s: layers[s] for s in home if home[s] == r} for r in range(p)]
        yield Case(
            p,
            f"{ranks(p)}, {schedule.name}, {m} micro-batch{'es' * (m > 1)}, {told}",
            [(schedule, modules, xs) for modules in mine],
            facts={
                "seconds": simulate(schedule, *times).elapsed,
                "tensors": 2 * m * (schedule.stages - 1),
            },
            options={"cluster": Cluster.ideal(p, alpha=0.0, beta=0.0)},
            truth=partial(gradients, schedule, layers, xs),
        )


def gradients(schedule, layers, xs, slip=""):
    """Per rank {stage: its gradients}; slips take what came first on a line."""
    layers, home = copy.deepcopy([layer.linear for layer in layers]), schedule.home
    kept, sent = {}, defaultdict(dict)  # line -> {who needs it: the tensor}
    times, _ = play(schedule, lambda action: 1.0)
    for action in sorted(times, key=times.get):
        stage, kind, i = action
        line = "FB".index(kind) if slip == "crossed each way" else 0
        x, y = kept.pop((stage, i), (xs[i].clone(), None))
        source = stage + (1 if kind == "B" else -1)
        if source in home:
            coming = sent[home[source], home[stage], line]
            came = coming.pop(next(iter(coming)) if slip else action)
            if came.shape != xs[i].shape:
                return [...] * schedule.p  # it is refused
        if kind == "F":
            x = came if stage else x
            y = torch.tanh(layers[stage](x.requires_grad_()))
            kept[stage, i] = x, y
        else:
            y.backward(came if source in home else 2 * y.detach())
        if needed_by := receiver(action, schedule.stages):
            leaves = y.detach() if kind == "F" else x.grad
            sent[home[stage], home[needed_by.stage], line][needed_by] = leaves
    found = [[p.grad for p in layer.parameters()] for layer in layers]
    return [{s: found[s] for s in home if home[s] == r} for r in range(schedule.p)]


def missing(attempt):
    """Some rank returned something else than a list of tensors for each stage."""
    listed = lambda x: isinstance(x, list | tuple) and all(map(torch.is_tensor, x))
    return signs.wrong(attempt) and any(
        not isinstance(came, dict)
        or came.keys() != wanted.keys()
        or not all(map(listed, came.values()))
        for came, wanted in zip(attempt.came, attempt.case.expected, strict=True)
    )


MESSAGES = rows.messages(lambda case: case.facts["tensors"])
SECONDS = rows.seconds(lambda case: 1.001 * case.facts["seconds"], exactly=False)
ENOUGH = rows.messages(MESSAGES.allowed, exactly=False)

exercise = Exercise(
    "13.2",
    cases,
    [MESSAGES, SECONDS, rows.all_waited(), rows.from_messages()],
    {
        "hangs": both(
            signs.only(lambda case: case.inputs[0][0].m > 1),
            lambda a: "All of them send" in str(a.error),
        ),
        "missing": missing,
        "crossed": signs.slip("crossed", "crossed each way"),
        "late": breaks(SECONDS),
        "chatty": breaks(ENOUGH),
    },
)
