"""13.3 One weight on two stages."""

import copy
import math
from functools import partial

import torch
from torch import nn

from ...pipeline.schedule import make
from .. import requirements as rows
from .. import signs
from ..equality import same
from ..judging import Case, Exercise, Requirement, ranks
from ..signs import both, breaks
from .chapter_13 import Layer

V, D, LR = 20, 3, 0.5
FREE = 1e4  # a limit that no norm comes to
# ranks, schedule, steps, most that the norm may be
SIZES = [(1, "1f1b", 1, FREE), (2, "gpipe", 2, FREE), (2, "1f1b", 1, 0.5)]
SIZES += [(3, "zb-h1", 3, 0.7), (3, "gpipe", 2, FREE), (4, "1f1b", 3, 0.6)]
SIZES += [(1, "gpipe", 2, 0.5)]


class Words(nn.Module):
    """The shared weight, on the way "in" from V numbers to D, "out" to V, or both."""

    def __init__(self, w, ways):
        super().__init__()
        self.w, self.ways = nn.Parameter(w.clone()), ways  # [V, D]

    def forward(self, x):
        x = torch.tanh(x @ self.w) if "in" in self.ways else x  # [N, V] -> [N, D]
        return x @ self.w.T if "out" in self.ways else x


def cases(rng):
    """1 to 4 ranks; gradients that are clipped, and some that are not."""
    return sorted((drawn(rng, *size) for size in SIZES), key=lambda case: case.n)


def drawn(rng, p, name, steps, limit):
    """One case."""
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    w, batches = draw(V, D), [(draw(5, V), draw(5, V)) for _ in range(steps)]
    layers = [Layer(x, x[0].clone()) for x in [draw(D, D) for _ in range(p - 2)]]
    ends = [Words(w, "in"), Words(w, "out")] if p > 1 else [Words(w, "in and out")]
    stages = [*ends[:1], *layers, *ends[1:]]
    return Case(
        p,
        f"{ranks(p)}, {name}, {steps} step{'s' * (steps > 1)}, norm at most {limit:g}",
        [(make(name, p, 3), stage, batches, LR, limit) for stage in stages],
        facts={"steps": steps, "limit": limit},
        truth=partial(trained, stages, batches, limit),
    )


def trained(stages, batches, limit, slip=""):
    """Per rank, its parameters after all steps on one device."""
    stages = copy.deepcopy(stages)
    two = len(stages) > 1 or slip == "doubled"
    ends = [stages[0], stages[-1]] if two else stages
    for x, y in batches:
        nn.ModuleList(stages).zero_grad()
        ((nn.Sequential(*stages)(x) - y).square().sum() / len(x)).backward()
        total = sum(stage.w.grad for stage in ends)
        for stage in ends:
            stage.w.grad = total / (len(ends) if slip == "mean" else 1)
        own = [sum(q.grad.square().sum() for q in s.parameters()) for s in stages]
        once = own[:-1] or own
        outs = {"left out": own[1:-1], "left out of one": own[:-1]}
        counted = {"counted twice": own, **outs}.get(slip, once)
        norms = {"own norm": own, "own norm, once": [*once, 0]}
        norms = norms.get(slip, [sum(counted)] * len(own))
        for stage, square in zip(stages, norms, strict=False):
            norm = math.sqrt(square)
            for q in stage.parameters():
                q.data -= LR * limit / max(norm, limit) * q.grad
    return [[q.detach() for q in stage.parameters()] for stage in stages]


def near(came, wanted, case):
    """To five digits: torch's own clipping adds 1e-6 to the norm."""
    try:
        torch.testing.assert_close(came, wanted, rtol=1e-5, atol=1e-6)
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def copies(attempt):
    """The shared weight of the first and of the last rank, if they return it."""
    try:
        return attempt.came[0][0], attempt.came[-1][0]
    except (TypeError, LookupError):
        return None, None


def differ(attempt):
    """1 if the two copies have other bits."""
    first, last = copies(attempt)
    return 1 - (torch.is_tensor(first) and same(last, first) and first.equal(last))


def most(case):
    """The pipeline's bytes, the weight once between its ends, and 16 numbers a step."""
    p, steps = case.n, case.facts["steps"]
    lines = [2 - (r == 0) - (r == p - 1) for r in range(p)]
    weight = [V * D * (p > 1 and r in (0, p - 1)) for r in range(p)]
    each = [5 * D * lines[r] + weight[r] + 16 for r in range(p)]
    return [80 * lines[r] + 8 * steps * each[r] for r in range(p)]


def apart(attempt):
    """Where nothing is clipped, the two copies are not even near to each other."""
    free = attempt.case.facts["limit"] == FREE and not signs.not_a_number(attempt)
    return free and not same(*copies(attempt))


COPIES = Requirement("copies with other bits", differ, lambda case: 0)
BYTES = rows.bytes_sent(most, exactly=False)

exercise = Exercise(
    "13.3",
    cases,
    [COPIES, BYTES, rows.from_messages()],
    {
        "one rank": both(signs.to_itself, lambda a: a.case.n == 1),
        **signs.slips("doubled", "counted twice", "mean"),
        "own norm": signs.slip("own norm", "own norm, once"),
        "left out": signs.slip("left out", "left out of one"),
        "apart": both(signs.wrong, apart),
        "other bits": breaks(COPIES),
        "too many bytes": breaks(BYTES),
    },
    agrees=near,
)
