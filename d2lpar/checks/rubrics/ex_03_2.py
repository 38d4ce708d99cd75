"""03.2 A product on a grid."""

from functools import partial
from itertools import chain, product
from math import ceil

import torch

from ...shared.played import Wire, put
from .. import signs
from ..judging import Case, Exercise, Requirement, same
from ..signs import both, breaks, violates, wrong
from .chapter_03 import HEARD, OFF_THE_WIRE, UNSENT, wire

GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (4, 1), (1, 5))
SIZES = ((2, 6, 6), (3, 7, 5))  # N, D, O
EMPTY = ((3, 1), (1, 2, 2))  # the last device has no columns of x


def cases(rng):
    """Device (i, j) of a x b has block i of x, block ij of w, block j of dy."""
    for (a, b), (N, D, O) in [*product(GRIDS, SIZES), EMPTY]:  # noqa: E741
        shapes, draw = ((N, D), (D, O), (N, O)), partial(rng.integers, 1, 10)
        x, w, dy = (torch.tensor(draw(shape)).double() for shape in shapes)
        xs, dys = x.tensor_split(a, dim=1), dy.tensor_split(b, dim=1)
        ws = [row.tensor_split(b, dim=1) for row in w.tensor_split(a)]
        blocks = [(xs[i], ws[i][j], dys[j]) for i in range(a) for j in range(b)]
        placed = [[put(x, d) for x in some] for d, some in enumerate(blocks)]
        sizes = [(N * w.shape[1], N * w.shape[0]) for _, w, _ in blocks]  # of y, dx
        yield Case(
            1,
            f"{a} x {b} devices, x [{N}, {D}], w [{D}, {O}]",
            inputs=[(*map(list, zip(*placed, strict=True)), a, b, Wire())],
            facts={
                "needs": [(a > 1) * y + (b > 1) * dx for y, dx in sizes],
                "limits": [
                    2 * (a - 1) * ceil(y / a) + 2 * (b - 1) * ceil(dx / b)
                    for y, dx in sizes
                ],
            },
            truth=partial(step, blocks, a, b),
        )


def step(blocks, a, b, slip=""):
    """What every device returns, for the one process that plays them all."""
    n = a * b
    columns = [range(d % b, n, b) for d in range(n)]
    rows = [range(d - d % b, d - d % b + b) for d in range(n)]
    first_y, first_dx = (
        [group if d == group[0] else [d] for d, group in enumerate(groups)]
        for groups in (columns, rows)
    )
    alone, everyone = [[d] for d in range(n)], [range(n)] * n
    over_y, over_dx = {  # the devices that each one adds over, for y and for dx
        "y is partial": (alone, rows),
        "dx is partial": (columns, alone),
        "both are partial": (alone, alone),
        "stale": (first_y, first_dx),
        "y is stale": (first_y, rows),
        "dx is stale": (columns, first_dx),
        "wrong groups": (rows, columns),
        "all devices": (everyone, everyone),
        "by columns": (
            [range(d - d % a, d - d % a + a) for d in range(n)],
            [range(d % a, n, a) for d in range(n)],
        ),
    }.get(slip, (columns, rows))
    y = added([x @ w for x, w, _ in blocks], over_y)
    dx = added([dy @ w.T for _, w, dy in blocks], over_dx)
    return [{"y": y, "dx": dx, "dw": [x.T @ dy for x, _, dy in blocks]}]


def added(terms, groups):
    """Each device's sum over its group, of the terms that have the shape of its own."""
    return [
        sum(terms[e] for e in group if terms[e].shape == own.shape)
        for own, group in zip(terms, groups, strict=True)
    ]


def lists(attempt, rank):
    """The three lists that were returned, or what was returned in their place."""
    value = attempt.values[rank]
    try:
        named = zip(("y", "dx", "dw"), value, strict=True)
        return {name: [x.as_subclass(torch.Tensor) for x in xs] for name, xs in named}
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return [value] if isinstance(value, dict) else value


def pairs(attempt):
    """[(result, what it should be)] of all lists and devices."""
    came, wanted = attempt.came[0], attempt.case.expected[0]
    return [pair for k in wanted for pair in zip(came[k], wanted[k], strict=False)]


def single(attempt):
    """Some result has another dtype than the tensors that came in."""
    return wrong(attempt) and any(x.dtype != y.dtype for x, y in pairs(attempt))


def too_much(attempt):
    """No number is too small, in all calls that ended; all terms are positive."""
    ended = [pairs(a) for a in attempt.attempts if a.error is None]
    return wrong(attempt) and all(
        x.shape == y.shape and bool((x >= y).all()) for x, y in chain(*ended)
    )


def elsewhere(attempt):
    """Results that are on another device than that of their place in the list."""
    lists = attempt.values[0] if isinstance(attempt.came[0], dict) else []
    pairs = chain(*map(enumerate, lists))
    return sum(getattr(x, "place", d) != d for d, x in pairs)


def changed(attempt):
    """Blocks that are not what they were."""
    after, before = (chain(*x[0][:3]) for x in (attempt.args, attempt.case.inputs))
    return sum(not same(x, old) for x, old in zip(after, before, strict=False))


class PerDevice(Requirement):
    """A requirement with a figure for each device."""

    def texts(self, attempt):
        measured, allowed = super().texts(attempt)
        return measured.replace("(rank ", "(device "), allowed


SHARES = PerDevice(
    "elements sent by a device",
    lambda a: wire(a).elements(len(a.case.facts["limits"])),
    lambda case: case.facts["limits"],
    exactly=False,
)
PLACES = Requirement("results on another device", elsewhere, lambda case: 0)
BLOCKS = Requirement("blocks that were changed", changed, lambda case: 0)

exercise = Exercise(
    "03.2",
    cases,
    [SHARES, PLACES, BLOCKS, HEARD],
    {
        **OFF_THE_WIRE,
        "form": both(wrong, lambda a: not isinstance(a.came[0], dict)),
        "single precision": single,
        "y is partial": signs.slip("y is partial", "both are partial"),
        **signs.slips("dx is partial"),
        "stale": signs.slip("stale", "y is stale", "dx is stale"),
        "wrong groups": signs.slip("wrong groups", "all devices", "by columns"),
        "too much": too_much,
        "changed": violates(BLOCKS),
        **UNSENT,
        "elsewhere": breaks(PLACES),
        "root": breaks(SHARES),
    },
    outcome=lists,
)
