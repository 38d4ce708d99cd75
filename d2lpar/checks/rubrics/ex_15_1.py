"""15.1 The norm on a mesh."""

import math
from functools import partial

import torch

from .. import requirements as rows
from ..judging import Case, Exercise
from ..showing import as_number
from ..signs import breaks, slip, slips

SIZES = [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (1, 3, 1)]
SIZES += [(2, 2, 2), (3, 1, 2), (1, 3, 2)]  # data, pipeline, tensor


def cases(rng):
    """1 to 8 ranks; every axis alone, and several together."""
    for sizes in SIZES:
        d, p, t = sizes
        draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
        stages = [[("w", draw(2 * t, 3), True), ("b", draw(3), False)]
                  for _ in range(p)]  # fmt: skip
        table = ("token", draw(2 * t, 4), True)
        stages[0].append(table)
        if p > 1:
            stages[-1].append(table)
        held = [part(stages[r // t % p], r % t, t) for r in range(d * p * t)]
        text = f"data {d}, pipeline {p}, tensor {t}"
        given = [(mine, sizes) for mine in held]
        yield Case(len(held), text, given, truth=partial(norms, held, sizes))


def part(stage, r, t):
    """What tensor rank r of t has of a stage's gradients."""
    return [
        (k, x.chunk(t)[r].clone() if cut else x.clone(), cut) for k, x, cut in stage
    ]


def norms(held, sizes, slip=""):
    """Per rank, the norm of the whole gradient; a slip counts something else."""
    d, p, t = sizes
    own = []
    for r, mine in enumerate(held):
        stage, place, total = r // t % p, r % t, 0.0
        if slip == "other order":
            stage, place = r % p, r // p % t
        copy = r // (p * t) > 0 and slip != "copies"
        for name, x, cut in mine:
            again = not cut and place > 0 and slip != "replicated"
            last = stage == p - 1 and (p > 1 or slip == "never") and slip != "tied"
            if slip == "own" or not (copy or again or (name == "token" and last)):
                half = name == "token" and p == 1 and slip == "half"
                square = x.square().sum().item() / (2 if half else 1)
                total += math.sqrt(square) if slip == "each norm" else square
        own.append(total)
    if slip == "own":
        return [math.sqrt(x) for x in own]
    if slip == "sum of norms":
        return [sum(map(math.sqrt, own))] * len(own)
    return [sum(own) if slip in ("square", "each norm") else math.sqrt(sum(own))] * len(
        own
    )


def agrees(came, wanted, case):
    """A number, or a tensor of one number, to nine digits."""
    try:
        return math.isclose(float(came), wanted, rel_tol=1e-9)
    except (TypeError, ValueError, RuntimeError):
        return False


BYTES = rows.bytes_sent(lambda case: 16 * case.n, exactly=False)

exercise = Exercise(
    "15.1",
    cases,
    [BYTES, rows.from_messages()],
    {
        **slips("replicated", "tied", "copies", "own", "square", "other order"),
        "sum of norms": slip("sum of norms", "each norm"),
        "one stage": slip("never", "half"),
        "too many bytes": breaks(BYTES),
    },
    agrees=agrees,
    shows=as_number,
)
