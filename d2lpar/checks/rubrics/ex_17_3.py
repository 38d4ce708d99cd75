"""17.3 The loss of a split sequence."""

import math
from functools import partial

import torch

from ...sequence.order import positions
from .. import requirements as rows
from ..equality import same
from ..judging import Case, Exercise, ranks
from ..showing import as_number
from ..signs import always, breaks, not_a_number, slip, slips
from ..signs import wrong as not_right

SLIPS = "own", "mean of means", "all tokens", "padding", "empty texts", "sum"
SLIPS += "own part", "own texts", "word 0"


def cases(rng):
    """1 to 8 ranks; pieces of unequal size, empty ones, and a text without targets."""
    for n, T in ((1, 7), (2, 9), (3, 13), (4, 12), (8, 5)):
        losses = torch.from_numpy(rng.uniform(1, 9, size=(4, T)))
        targets = torch.from_numpy(rng.integers(0, 50, size=(4, T)))
        targets[0, 0] = 0  # a word as any other
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
    masks = [targets >= (slip == "word 0") for _, targets in given]
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
    if slip == "own part":
        return [mean_of(s, count, on) for s, on in zip(sums, masks, strict=True)]
    if slip == "own texts":
        pairs = zip(own, masks, strict=True)
        return [mean_of(total, count, on, texts=int((c > 0).sum())) for c, on in pairs]
    if slip.startswith("own counts"):
        texts = int((count > 0).sum()) if slip == "own counts, all texts" else None
        pairs = zip(own, masks, strict=True)
        parts = [mean_of(total, c, on, texts=texts)[1] for c, on in pairs]
        return [(x, part) for (x, _), part in zip(found, parts, strict=True)]
    return found


def mean_of(sums, counts, on, slip="", texts=None):
    """(mean over the texts of each one's mean, its gradient)."""
    if texts is None:
        texts = {"empty texts": len(sums), "sum": 1}.get(slip, int((counts > 0).sum()))
    texts, counts = max(texts, 1), counts.clamp(min=1)
    return (sums / counts).sum().item() / texts, on / counts[:, None] / texts


def shown(outcome, n):
    """A loss in a tensor of one number as this number."""
    if isinstance(outcome, list | tuple) and len(outcome) == 2:
        return as_number(outcome[0]), outcome[1]
    return outcome


def agrees(came, wanted, case):
    """A pair: a number, or a tensor of one number, and a tensor."""
    try:
        loss, gradient = came
        near = math.isclose(float(loss), wanted[0], rel_tol=1e-9)
    except (TypeError, ValueError, RuntimeError):
        return False
    return near and same(gradient, wanted[1])


def no_pair(attempt):
    """Some rank returned something else than a loss with a gradient."""
    pair = lambda x: isinstance(x, list | tuple) and len(x) == 2
    return not_right(attempt) and not all(map(pair, attempt.came))


def padded(attempt):
    """All is right but the gradient at padding."""
    if no_pair(attempt):
        return False
    ranks = zip(attempt.came, attempt.case.expected, attempt.case.inputs, strict=True)
    return not_right(attempt) and all(
        agrees((loss, gradient * (targets >= 0)), wanted, attempt.case)
        for (loss, gradient), wanted, (_, targets) in ranks
    )


BYTES = rows.bytes_sent(lambda case: 16 * 4 * case.n, exactly=False)

exercise = Exercise(
    "17.3",
    cases,
    [BYTES, rows.from_messages()],
    {
        "no pair": no_pair,
        "not a number": not_a_number,
        "gradient of padding": always(padded, not_right),
        **slips(*SLIPS),
        "own counts": slip("own counts", "own counts, all texts"),
        "too many bytes": breaks(BYTES),
    },
    agrees=agrees,
    shows=shown,
)
