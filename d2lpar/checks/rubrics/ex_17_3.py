"""17.3 The loss of a split sequence."""

import math
from functools import partial

import torch

from ...sequence.order import positions
from .. import requirements as rows
from ..judging import Case, Exercise, ranks, same
from ..signs import breaks, slips

SLIPS = "own", "mean of means", "all tokens", "padding", "empty texts", "sum"
SLIPS += ("own counts",)


def cases(rng):
    """1 to 8 ranks; pieces of unequal size, empty ones, and a text without targets."""
    for n, T in ((1, 7), (2, 9), (3, 13), (4, 12), (8, 5)):
        losses = torch.from_numpy(rng.uniform(1, 9, size=(4, T)))
        targets = torch.from_numpy(rng.integers(0, 50, size=(4, T)))
        for row, length in enumerate((T, T - 2, 1, 0)):
            targets[row, length:] = -100
        mine = [positions(T, n, r) for r in range(n)]
        given = [(losses[:, at], targets[:, at]) for at in mine]
        true = partial(truth, given)
        text = f"{ranks(n)}, 4 texts of up to {T} tokens"
        yield Case(n, text, [tuple(x.clone() for x in one) for one in given],
                   truth=true)  # fmt: skip


def truth(given, slip=""):
    """Per rank, (the loss, its gradient by the rank's losses)."""
    masks = [targets >= 0 for _, targets in given]
    sums = [(x * on).sum(1) for (x, _), on in zip(given, masks, strict=True)]
    own = [on.sum(1).double() for on in masks]
    if slip == "padding":
        own = [
            torch.full_like(x, on.shape[1]) for x, on in zip(own, masks, strict=True)
        ]
    if slip in ("own", "mean of means"):
        found = [mean_of(s, c, on) for s, c, on in zip(sums, own, masks, strict=True)]
        if slip == "own":
            return found
        whole = sum(loss for loss, _ in found) / len(found)
        return [(whole, gradient / len(found)) for _, gradient in found]
    total, count = sum(sums), sum(own)
    if slip == "all tokens":
        every = count.sum().item()
        return [(total.sum().item() / every, on.double() / every) for on in masks]
    found = [mean_of(total, count, on, slip) for on in masks]
    if slip == "own counts":
        parts = [mean_of(total, c, on)[1] for c, on in zip(own, masks, strict=True)]
        return [(x, part) for (x, _), part in zip(found, parts, strict=True)]
    return found


def mean_of(sums, counts, on, slip=""):
    """(mean over the texts of each one's mean, its gradient)."""
    texts = {"empty texts": len(sums), "sum": 1}.get(slip, int((counts > 0).sum()))
    texts, counts = max(texts, 1), counts.clamp(min=1)
    return (sums / counts).sum().item() / texts, on / counts[:, None] / texts


def agrees(came, wanted, case):
    """A pair: a number, or a tensor of one number, and a tensor."""
    try:
        loss, gradient = came
        near = math.isclose(float(loss), wanted[0], rel_tol=1e-9)
    except (TypeError, ValueError, RuntimeError):
        return False
    return near and same(gradient, wanted[1])


BYTES = rows.bytes_sent(lambda case: 16 * 4 * case.n, exactly=False)

exercise = Exercise(
    "17.3",
    cases,
    [BYTES, rows.from_messages()],
    {**slips(*SLIPS), "too many bytes": breaks(BYTES)},
    agrees=agrees,
)
