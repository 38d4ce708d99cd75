"""02.1 One matrix, many layers."""

from functools import partial

import torch
import torch.nn.functional as F

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, same
from ..signs import breaks, either, wrong

NAMES = ("dW", "db", "dV", "dc", "dx")
SHAPES = ((1, 2, 3, 1), (3, 2, 4, 2), (4, 5, 3, 3), (7, 3, 2, 5))  # N, D, K, L


def cases(rng):
    """x [N, D], y [N], W [D, D], b [D], V [K, D], c [K], and the number of layers."""
    for N, D, K, L in SHAPES:
        shapes = ((N, D), (D, D), (D,), (K, D), (K,))
        x, W, b, V, c = (torch.from_numpy(rng.normal(size=s)) for s in shapes)
        inputs = x, torch.from_numpy(rng.integers(0, K, size=N)), W, b, V, c, L
        yield Case(
            1,
            f"{N} examples, {D} features, {K} classes, {L} layers",
            [inputs],
            facts={"N": N, "FLOPs": 6 * N * (L * D * D + D * K)},
            options={"cluster": "1xA100"},  # where operations are written down
            truth=partial(gradients, *inputs),
        )


def gradients(x, y, W, b, V, c, L, slip=""):
    """[(dW, db, dV, dc, dx)] of the mean loss, by the delta rule."""
    A = [x]
    for _ in range(L):
        A.append(A[-1] + torch.tanh(A[-1] @ W.T + b))
    delta = (A[L] @ V.T + c).softmax(1) - F.one_hot(y, len(c))  # [N, K]
    delta = delta / {"sum for mean": 1, "sign": -len(x)}.get(slip, len(x))
    d, dW, dB = delta @ V, torch.zeros_like(W), torch.zeros_like(x)  # d, dB: [N, D]
    for layer in range(L, 0, -1):
        before, after = A[layer - 1 : layer + 1]
        t = {"slope of the sum": after, "no slope": 0}.get(slip, after - before)
        dz = d * (1 - t**2)
        dW = 0 if slip in ("overwritten", "dW overwritten") else dW
        dB = 0 if slip in ("overwritten", "db overwritten") else dB
        if slip != "one use only" or layer == L:
            dW, dB = dW + dz.T @ before, dB + dz
        d = {"no shortcut": dz @ W, "only around": d}.get(slip, d + dz @ W)
    dV = delta.T @ A[L]
    one_is_off = {
        "dW transposed": (dW.T, ..., ..., ..., ...),
        "dV transposed": (..., ..., dV.T, ..., ...),
        "db unsummed": (..., dB, ..., ..., ...),
        "dc unsummed": (..., ..., ..., delta, ...),
        "both unsummed": (..., dB, ..., delta, ...),
        "db over features": (..., dB.sum(1), ..., ..., ...),
        "dc over classes": (..., ..., ..., delta.sum(1), ...),
    }
    return [one_is_off.get(slip, (dW, dB.sum(0), dV, delta.sum(0), d))]


def misfit(attempt):
    """A product had two matrices that do not fit."""
    return "cannot be multiplied" in str(attempt.cause)


def five(came):
    """Are these five tensors?"""
    found = map(torch.is_tensor, came) if isinstance(came, list | tuple) else []
    return list(found) == [True] * 5


def named(came, n):
    return dict(zip(NAMES, came, strict=True)) if five(came) else came


def by_torch(attempt):
    """Backward operations of torch: nobody writes those by hand."""
    return sum("backward" in e.name for e in rows.operations(attempt.run))


def changed(attempt):
    pairs = zip(attempt.args[0], attempt.case.inputs[0], strict=True)
    return sum(not same(after, before) for after, before in pairs)


FLOPS = Requirement(
    "FLOPs of all products",
    lambda a: sum(rows.products(a)),
    lambda case: case.facts["FLOPs"],
    exactly=False,
    least=lambda case: case.facts["FLOPs"] // 3,  # those of the forward pass
)


def too_few(attempt):
    return not FLOPS.least(attempt.case) <= FLOPS.measured(attempt)


BACKWARD = Requirement(
    "backward operations of torch", by_torch, lambda case: 0, instead=by_torch
)
UNTOUCHED = Requirement("arguments that were changed", changed, lambda case: 0)

exercise = Exercise(
    "02.1",
    cases,
    [FLOPS, BACKWARD, UNTOUCHED],
    {
        "not five": lambda a: wrong(a) and not five(a.came[0]),
        "transposed": either(misfit, signs.slip("dW transposed", "dV transposed")),
        "unsummed": signs.slip("db unsummed", "dc unsummed", "both unsummed"),
        "other axis": signs.slip("db over features", "dc over classes"),
        "overwritten": signs.slip("overwritten", "dW overwritten", "db overwritten"),
        **signs.slips("one use only", "no shortcut", "only around"),
        **signs.slips("sum for mean", "sign", "slope of the sum", "no slope"),
        "by torch": breaks(BACKWARD),
        "changed": breaks(UNTOUCHED),
        "uncounted": signs.both(breaks(FLOPS), too_few),
        "costly": breaks(FLOPS),
    },
    shows=named,
)
