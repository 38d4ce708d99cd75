"""What exercise 02.1 asks for: every gradient of a net that has one matrix, by hand."""

import torch
import torch.nn.functional as F

from ..judging import Case, Exercise, Mistake, Requirement, same
from ..signs import both, raises, right, wrong
from .frozen import freeze
from .parts import parts

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "matmul"}
SHAPES = (  # N examples, D features, K classes, L layers
    (1, 2, 3, 1),
    (3, 2, 4, 2),
    (4, 5, 3, 3),
    (7, 3, 2, 5),
)


# 02.1 One matrix, many layers


def tied_cases(rng):
    """x [N, D], y [N], W [D, D], b [D], V [K, D], c [K], and the number of layers."""
    for N, D, K, L in SHAPES:
        x, W, b = _normal(rng, N, D), _normal(rng, D, D), _normal(rng, D)
        V, c = _normal(rng, K, D), _normal(rng, K)
        y = torch.from_numpy(rng.integers(0, K, size=N))
        inputs = x, y, W, b, V, c, L
        yield Case(
            1,
            f"{N} examples, {D} features, {K} classes, {L} layers",
            inputs=[inputs],
            expected=[_Named(zip(NAMES, by_autograd(*inputs), strict=True))],
            facts={"sizes": (N, D, K, L), "inputs": inputs},
            options={"cluster": "1xA100"},  # where operations are written down
        )


NAMES = ("dW", "db", "dV", "dc", "dx")


class _Named(dict):
    """The five gradients; shows the first that is wrong."""

    shown = None

    def __repr__(self):
        name = self.shown or "dW"
        rows = torch.atleast_2d(self[name]).tolist()
        values = [[round(v, 4) for v in row] for row in rows]
        return f"{name}: {values if len(str(values)) < 120 else list(self[name].shape)}"


def _normal(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape))


def by_autograd(x, y, W, b, V, c, L):
    """(dW, db, dV, dc, dx) of the mean loss, by torch."""
    leaves = [p.clone().requires_grad_() for p in (W, b, V, c, x)]
    W, b, V, c, a = leaves
    for _ in range(L):
        a = a + torch.tanh(a @ W.T + b)
    return torch.autograd.grad(F.cross_entropy(a @ V.T + c, y), leaves)


def by_hand(x, y, W, b, V, c, L, shortcut=True, slope="t", last=False, scale=1):
    """The same by the delta rule; the last four can be wrong."""
    a, kept = x, []
    for _ in range(L):
        t = torch.tanh(a @ W.T + b)
        kept.append((a, t))
        a = a + t
    delta = (a @ V.T + c).softmax(1) - F.one_hot(y, len(c))  # [N, K]
    delta = delta * scale / len(x)
    dV, dc = delta.T @ a, delta.sum(0)
    d, dW, db = delta @ V, torch.zeros_like(W), torch.zeros_like(b)  # d: [N, D]
    for layer in range(L, 0, -1):
        before, t = kept[layer - 1]
        s = {"t": 1 - t * t, "a": 1 - (before + t) ** 2, "none": 1}[slope]
        dz = d * s
        if not last or layer == L:
            dW, db = dW + dz.T @ before, db + dz.sum(0)
        d = d * shortcut + dz @ W
    return dW, db, dV, dc, d


def _five(attempt, rank):
    """The five gradients by name, or what came in their place."""
    wanted = attempt.case.expected[rank]
    try:
        came = _Named(zip(NAMES, attempt.values[rank], strict=True))
    except (TypeError, ValueError):
        return attempt.values[rank]
    if not all(map(torch.is_tensor, came.values())):
        return attempt.values[rank]
    bad = [name for name in NAMES if not same(came[name], wanted[name])]
    came.shown = wanted.shown = bad[0] if bad else None
    return came


def _events(attempt):
    return [e for e in attempt.run.timeline.events if e.stream == "compute"]


def _product_flops(attempt):
    return sum(e.flops for e in _events(attempt) if e.name in PRODUCTS)


def _autograd_calls(attempt):
    """Backward operations of torch: nobody writes those by hand."""
    return sum("backward" in e.name for e in _events(attempt))


def _allowed_flops(case):
    N, D, K, L = case.facts["sizes"]
    return 6 * N * (L * D * D + D * K)


def _like(**fault):
    """The answer is what the delta rule gives with this fault."""

    def ask(attempt):
        if not wrong(attempt) or not isinstance(attempt.came[0], dict):
            return False
        fake = by_hand(*attempt.case.facts["inputs"], **fault)
        return same(dict(attempt.came[0]), dict(zip(NAMES, fake, strict=True)))

    return ask


def _unsummed(attempt):
    """A bias has a gradient for each example."""
    came = attempt.came[0]
    if not wrong(attempt) or not isinstance(came, dict):
        return False
    pairs = [(came[k], attempt.case.expected[0][k]) for k in ("db", "dc")]
    return any(a.dim() == b.dim() + 1 for a, b in pairs)


def _transposed(attempt):
    """A matrix lies on its side, or a product did not fit."""
    text = str(attempt.cause)
    if raises(RuntimeError)(attempt) and ("shape" in text or "size" in text):
        return True
    came = attempt.came and attempt.came[0]
    if not wrong(attempt) or not isinstance(came, dict):
        return False
    truth = attempt.case.expected[0]
    return any(
        came[k].dim() == 2 and same(came[k].T.contiguous(), truth[k])
        for k in ("dW", "dV")
        if not same(came[k], truth[k])
    )


def _not_five(attempt):
    return wrong(attempt) and not isinstance(attempt.came[0], dict)


tied = Exercise(
    "02.1",
    "One matrix, many layers",
    tied_cases,
    [
        Requirement(
            "FLOPs of all products", _product_flops, _allowed_flops, exactly=False
        ),
        Requirement(
            "backward operations of torch",
            _autograd_calls,
            lambda case: 0,
            instead=_autograd_calls,
        ),
        Requirement(
            "arguments that were changed",
            lambda a: sum(
                not same(after, before)
                for after, before in zip(
                    a.args[0][:6], a.case.facts["inputs"][:6], strict=True
                )
            ),
            lambda case: 0,
        ),
    ],
    [
        Mistake(
            "not five",
            _not_five,
            "It does not return five tensors.",
            "`return dW, db, dV, dc, dx`, in this order.",
        ),
        Mistake(
            "transposed",
            _transposed,
            "A product has its factors or its transposes the wrong way round.",
            "Write the shapes next to each line: dW is [D, D], out by in.",
        ),
        Mistake(
            "unsummed",
            _unsummed,
            "A bias acts on every example, so its gradient is a sum over them.",
            "`delta.sum(0)` is [D].",
        ),
        Mistake(
            "one use only",
            _like(last=True),
            "W and b are used in every layer, and only the last use counts here.",
            "All layers add their term to the same dW. `+=`, not `=`.",
        ),
        Mistake(
            "no shortcut",
            _like(shortcut=False),
            "The way around the tanh is missing: a^l is a^(l-1) plus something.",
            "What is the derivative of a + f(a)? The 1 hands delta on as it is.",
        ),
        Mistake(
            "slope of the sum",
            _like(slope="a"),
            "The slope of tanh is taken at a^l, but a^l is not the tanh.",
            "tanh' = 1 - t^2 with t = tanh(z) = a^l - a^(l-1).",
        ),
        Mistake(
            "no slope",
            _like(slope="none"),
            "The slope of tanh is left out.",
            "delta of z is delta of a, times 1 - t^2, element by element.",
        ),
        Mistake(
            "sum for mean",
            lambda a: _like(scale=a.case.facts["sizes"][0])(a),
            "All gradients are N times too large: the loss is the mean.",
        ),
        Mistake(
            "by torch",
            both(right, _autograd_calls),
            "The values are right, and autograd has computed them.",
            "The five gradients are products and sums. Start with p - onehot.",
        ),
        Mistake(
            "costly",
            both(right, lambda a: _product_flops(a) > _allowed_flops(a.case)),
            "The values are right, but there are more products than three per layer.",
            "One forward, one for dW, one for delta. Keep what forward computed.",
        ),
    ],
    outcome=_five,
)

EXERCISES = [tied, freeze, parts]
