"""What exercise 13.3 asks for: one weight on two stages, and a norm over all."""

import copy

import torch
from torch import nn

from ...schedule import make
from ..judging import Case, Exercise, Mistake, Requirement, ranks, same
from ..requirements import bytes_sent, from_messages
from ..signs import both, right, to_itself, wrong

V, D, LR = 20, 3, 0.5


class Into(nn.Module):
    """x w: from V numbers to D."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w.clone())  # [V, D]

    def forward(self, x):
        return torch.tanh(x @ self.w)  # [N, V] -> [N, D]


class Back(Into):
    """x w.T, back to V numbers with the same weight."""

    def forward(self, x):
        return x @ self.w.T  # [N, D] -> [N, V]


class Both(Into):
    """The first and the last stage in one, with one weight."""

    def forward(self, x):
        return super().forward(x) @ self.w.T


class Between(nn.Module):
    """A layer of its own."""

    def __init__(self, weight):
        super().__init__()
        self.layer = nn.Linear(D, D).double()
        with torch.no_grad():
            self.layer.weight.copy_(weight)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def loss_of(out, y):
    """The sum of the squares of the differences."""
    return (out - y).square().sum()


# ranks, schedule, steps, most that the norm may be
SIZES = [(1, "1f1b", 1, 1e4), (2, "gpipe", 2, 1e4), (2, "1f1b", 1, 0.5)]
SIZES += [(3, "zb-h1", 3, 0.7), (3, "gpipe", 2, 1e4), (4, "1f1b", 3, 0.6)]


def tied_cases(rng):
    """1 to 4 ranks; gradients that are clipped, and some that are not."""
    for p, name, steps, limit in SIZES:
        yield _case(rng, p, name, steps, limit)


def _case(rng, p, name, steps, limit):
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    w, batches = draw(V, D), [(draw(5, V), draw(5, V)) for _ in range(steps)]
    stages = [Into(w), *[Between(draw(D, D)) for _ in range(p - 2)], Back(w)]
    stages = [Both(w)] if p == 1 else stages
    schedule = make(name, p, 3)
    case = Case(
        p,
        f"{ranks(p)}, {name}, {steps} step{'s' * (steps > 1)}, norm at most {limit:g}",
        inputs=[(schedule, stages[r], batches, LR, limit) for r in range(p)],
        expected=None,
        facts={"stages": stages, "batches": batches, "limit": limit},
    )
    case.expected = trained_alone(case)
    return case


def trained_alone(case, way=""):
    """Per rank, its parameters after all steps; `way` makes a usual mistake."""
    stages = copy.deepcopy(case.facts["stages"])
    for x, y in case.facts["batches"]:
        nn.ModuleList(stages).zero_grad()
        (loss_of(nn.Sequential(*stages)(x), y) / len(x)).backward()
        _add_up(stages, way)
        _update(stages, case.facts["limit"], way)
    return [[p.detach() for p in stage.parameters()] for stage in stages]


def _add_up(stages, way):
    """Both copies of the weight have the gradient of the one weight."""
    if len(stages) == 1:
        stages[0].w.grad *= 2 if way == "doubled" else 1
    else:
        total = stages[0].w.grad + stages[-1].w.grad
        total = total / 2 if way == "mean" else total
        stages[0].w.grad, stages[-1].w.grad = total, total.clone()


def _update(stages, limit, way):
    """A step of SGD, with the norm of all gradients clipped."""
    squares = [sum(p.grad.square().sum() for p in s.parameters()) for s in stages]
    counted = squares if len(stages) == 1 or way == "counted twice" else squares[:-1]
    for stage, mine in zip(stages, squares, strict=True):
        norm = mine.sqrt() if way == "own norm" else sum(counted).sqrt()
        for p in stage.parameters():
            p.data -= LR * p.grad * (limit / norm).clamp(max=1)


def _most_bytes(case):
    """The pipeline's, the weight once each way between its ends, and 16 numbers."""
    p, steps = case.n, len(case.facts["batches"])
    sent = []
    for r in range(p):
        lines, weight = (r > 0) + (r < p - 1), p > 1 and r in (0, p - 1)
        each = lines * 5 * D + weight * V * D + 16  # numbers a step
        sent.append(lines * 80 + steps * each * 8)
    return sent


def _copies_differ(attempt):
    """1 if first and last rank have other bits in the weight that they share."""
    first, last = attempt.came[0], attempt.came[-1]
    return int(not torch.equal(first[0], last[0])) if _are_weights(attempt) else 1


def _are_weights(attempt):
    return all(
        isinstance(came, list)
        and len(came) == len(wanted)
        and all(
            torch.is_tensor(a) and a.shape == b.shape
            for a, b in zip(came, wanted, strict=True)
        )
        for came, wanted in zip(attempt.came, attempt.case.expected, strict=True)
    )


def _trained(way):
    """What came is what this mistake gives."""

    def ask(attempt):
        if not wrong(attempt) or not _are_weights(attempt):
            return False
        return same(attempt.came, trained_alone(attempt.case, way))

    return ask


def _apart(attempt):
    """The copies are not even near to each other."""
    if not wrong(attempt) or not _are_weights(attempt):
        return False
    return not torch.allclose(attempt.came[0][0], attempt.came[-1][0])


def _too_many_bytes(attempt):
    pairs = zip(attempt.run.bytes_sent, _most_bytes(attempt.case), strict=True)
    return right(attempt) and any(sent > most for sent, most in pairs)


tied = Exercise(
    "13.3",
    "One weight on two stages",
    tied_cases,
    [
        Requirement("copies with other bits", _copies_differ, lambda case: 0),
        bytes_sent(_most_bytes, exactly=False),
        from_messages(),
    ],
    [
        Mistake(
            "one rank",
            both(to_itself, lambda attempt: attempt.case.n == 1),
            "On one rank it sends a message to itself.",
            "One rank has the weight once, and its gradient is complete.",
        ),
        Mistake(
            "doubled",
            _trained("doubled"),
            "On one rank the gradient of the weight is twice what it should be.",
            "There the weight is one tensor, and autograd has added up.",
        ),
        Mistake(
            "own norm",
            _trained("own norm"),
            "Each rank clips by the norm of its own gradients.",
            "The norm is that of all gradients: squares add up over the ranks.",
        ),
        Mistake(
            "counted twice",
            _trained("counted twice"),
            "The shared weight counts twice in the norm.",
            "It is one weight, and two ranks have it.",
        ),
        Mistake(
            "mean",
            _trained("mean"),
            "The gradient of the shared weight is half of what it should be.",
            "It is used in two places, and the two gradients add up. Nothing is "
            "averaged.",
        ),
        Mistake(
            "apart",
            _apart,
            "After some steps first and last rank have different weights.",
            "Each has the gradient of its own use only. They must be added up.",
        ),
        Mistake(
            "too many bytes",
            both(right, _too_many_bytes),
            "It is right, and a rank sends more than it must.",
            "Only the first and the last rank need the gradient of that weight; of "
            "the norm each rank needs one number.",
        ),
    ],
)
