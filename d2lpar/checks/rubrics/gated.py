"""What exercise 12.2 asks for: a gated MLP with one all-reduce each way."""

import torch
from torch.nn import functional as F

from ..judging import Case, Exercise, Mistake, ranks
from ..signs import both, right
from .split_layers import (
    FREE_START,
    agrees,
    all_reduces,
    both_ways,
    drawn,
    gradients,
    near,
    no_way_back,
    one_each_way,
    outcomes_are,
)


def cases(rng):
    """Hidden features that the ranks divide, for a batch and for tokens."""
    for n, shape, D, H in [
        (1, (3,), 4, 5),
        (2, (4,), 6, 4),
        (2, (2, 4), 6, 8),
        (3, (4,), 6, 9),
        (4, (4,), 8, 12),
        (4, (2, 4), 8, 4),
    ]:
        yield _case(rng, n, shape, D, H)


def gated_mlp(x, both_weights, down, bias):
    """On one device: silu(gate) times up, then down."""
    gate, up = (x @ both_weights.T).chunk(2, -1)  # [..., H] each
    return (F.silu(gate) * up) @ down.T + bias


def _case(rng, n, shape, D, H):
    x, weights = drawn(rng, *shape, D), drawn(rng, 2 * H, D)
    down, bias, dy = drawn(rng, D, H), drawn(rng, D), drawn(rng, *shape, D)
    leaves = (x, weights, down, bias)
    y, grads = gradients(gated_mlp, leaves, dy)
    inputs, expected = [], []
    for r in range(n):
        inputs.append(([leaf.clone() for leaf in leaves], (), dy))
        expected.append((y, [grads[0], *_own(grads, n, r), grads[3]]))
    facts = {"leaves": leaves, "dy": dy, "grads": grads, "one": x.numel()}
    return Case(
        n,
        f"{ranks(n)}, x {list(x.shape)}, {H} hidden features",
        inputs,
        expected,
        facts,
        options={"cluster": FREE_START},
    )


def _own(grads, n, r):
    """Gradients of the two weights: zero in what other ranks work on."""
    gate, up = grads[1].chunk(2)
    parts = [_only(half, n, r, 0) for half in (gate, up)]
    return torch.cat(parts), _only(grads[2], n, r, 1)


def _only(grad, n, r, dim):
    masked = torch.zeros_like(grad)
    masked.chunk(n, dim)[r].copy_(grad.chunk(n, dim)[r])
    return masked


# What the usual mistakes give


def _summed(case, part):
    """y if every rank adds `part(r, x, weights, down)` to the sum."""
    x, weights, down, bias = case.facts["leaves"]
    return sum(part(r, x, weights, down) for r in range(case.n)) + bias


def _y_is(part):
    def fake(case):
        y = _summed(case, lambda r, *leaves: part(case.n, r, *leaves))
        return [(y, [None] * 4)] * case.n

    return both(lambda a: a.case.n > 1, outcomes_are(fake))


def _chunked(n, r, x, weights, down):
    """The 2H rows are cut in n, and that part in halves."""
    gate, up = (x @ weights.chunk(n)[r].T).chunk(2, -1)
    return (F.silu(gate) * up) @ down.chunk(n, 1)[r].T


def _exchanged(n, r, x, weights, down):
    """silu of the second half, not of the first."""
    gate, up = (half.chunk(n)[r] for half in weights.chunk(2))
    return ((x @ gate.T) * F.silu(x @ up.T)) @ down.chunk(n, 1)[r].T


def _partial_dx(attempt):
    """All is right but dx, and the ranks' dx add up to it."""
    if attempt.error is not None or attempt.right or attempt.case.n == 1:
        return False
    pairs = list(zip(attempt.came, attempt.case.expected, strict=True))
    rest = all(
        near(y, true) and all(map(near, grads[1:], wanted[1:]))
        for (y, grads), (true, wanted) in pairs
    )
    return rest and near(sum(grads[0] for _, grads in attempt.came), pairs[0][1][1][0])


def _many_biases(attempt):
    """y has the bias n times."""
    case = attempt.case
    if attempt.error is not None or case.n == 1:
        return False
    bias = case.facts["leaves"][3]
    pairs = zip(attempt.came, case.expected, strict=True)
    return all(near(y, true + (case.n - 1) * bias) for (y, _), (true, _) in pairs)


def _weights_summed(attempt):
    """y and dx are right, and a weight's gradient is n times as large or whole."""
    if attempt.error is not None or attempt.right or attempt.case.n == 1:
        return False
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return all(
        near(y, true) and not near(grads[1], wanted[1]) and near(grads[0], wanted[0])
        for (y, grads), (true, wanted) in pairs
    )


def _three(attempt):
    return right(attempt) and all_reduces(attempt) == 3


def _more(attempt):
    return right(attempt) and all_reduces(attempt) > 2.01


exercise = Exercise(
    "12.2",
    "One all-reduce each way",
    cases,
    [one_each_way],
    [
        no_way_back,
        Mistake(
            "cut as one",
            _y_is(_chunked),
            "The 2H rows are cut as if they were one layer: rank 0 has gates only.",
            "Cut the gates and the others apart. A rank needs both for a feature.",
        ),
        Mistake(
            "wrong half",
            _y_is(_exchanged),
            "silu is taken of the second half, and the gates are the first.",
            "The first H rows are the gates.",
        ),
        Mistake(
            "many biases",
            _many_biases,
            "Each rank adds the bias to its partial sums: it is there n times.",
            "Add it after the sum.",
        ),
        Mistake(
            "partial dx",
            _partial_dx,
            "dx is a partial sum on each rank.",
            "x stands on n ranks. Which move says so?",
        ),
        Mistake(
            "enters twice",
            _three,
            "It is right with one all-reduce too many: x enters for each half.",
            "dx of the two halves can be added before it is sent.",
        ),
        Mistake(
            "other gradients",
            _weights_summed,
            "The gradient of a weight covers more than the rank's own part.",
            "Rank r works on its features only, and the rest is zero.",
        ),
        Mistake(
            "too much",
            _more,
            "It is right, and more is sent than one all-reduce each way.",
            "Between the two layers nothing has to move.",
        ),
    ],
    agrees=agrees,
    perform=both_ways,
)
