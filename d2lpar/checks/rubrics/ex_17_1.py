"""17.1 Merge what ranks have seen."""

import math
from functools import partial

import torch

from ...sequence.online_softmax import merge
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import breaks, slips

SHAPE = 2, 3, 4  # heads, queries, features


def cases(rng):
    """1 to 8 ranks; small scores, some very large ones, and a rank without keys."""
    for n in (1, 2, 3, 4, 8):
        for kind in ("small scores", "some scores of 10,000", "one rank without keys"):
            draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
            outs, lses = draw(n, *SHAPE), 2 * draw(n, *SHAPE[:-1])
            if kind == "some scores of 10,000":
                lses[..., 1:] += 10_000  # those of the first query are small
            if kind == "one rank without keys" and n > 1:
                outs[-1], lses[-1] = 0, -math.inf
            given = [(x.clone(), y.clone()) for x, y in zip(outs, lses, strict=True)]
            text, true = f"{ranks(n)}, {kind}", partial(whole, outs, lses)
            yield Case(n, text, given, truth=true)


def whole(outs, lses, slip=""):
    """Per rank, the average over the keys of all ranks."""
    n = len(outs)
    if slip == "own":
        return list(outs)
    if slip in ("mean", "sum"):
        return [outs.sum(0) / (n if slip == "mean" else 1)] * n
    if slip == "largest":
        best = lses.argmax(0)[None, ..., None].expand(1, *outs.shape[1:])
        return [outs.gather(0, best)[0]] * n
    if slip == "old sum":
        out, lse = outs[0], lses[0]
        for more in zip(outs[1:], lses[1:], strict=True):
            out, _ = merge(out, lse, *more)
        return [out] * n
    if slip == "not divided":
        return [((lses - lses.amax(0)).exp()[..., None] * outs).sum(0)] * n
    return [(lses.softmax(0)[..., None] * outs).sum(0)] * n


def limit(case):
    """Twice the averages, and the log-sum-exps of n ranks."""
    heads, queries, d = SHAPE
    return 8 * heads * queries * (2 * d + case.n)


def no_numbers(attempt):
    """What came is not a number where all numbers are finite."""
    there = [x for x in attempt.came or [] if torch.is_tensor(x)]
    return signs.wrong(attempt) and any(x.isnan().any() for x in there)


BYTES = rows.bytes_sent(limit, exactly=False)

exercise = Exercise(
    "17.1",
    cases,
    [BYTES, rows.from_messages()],
    {
        "not a number": no_numbers,
        **slips("own", "mean", "sum", "largest", "old sum", "not divided"),
        "too many bytes": breaks(BYTES),
    },
)
