"""02.2 What does freezing save?: step_bytes(widths, frozen, N)."""

from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, numbers, same
from d2lpar.shared.footprint import kept

ex = Exercise(
    "02.2",
    "What does freezing save?",
    agrees=lambda came, wanted, case: same(numbers(came).tolist(), wanted),
)
FIXED = (  # widths, which layers are frozen
    ((5, 4, 3), (False, False)),
    ((5, 4, 3), (True, False)),
    ((5, 4, 3), (False, True)),
    ((6, 5, 4, 3), (True, True, True)),
    ((6, 5, 4, 3), (True, False, True)),
)
LAST = (
    ((3, 2), (False,)),
    ((6, 5, 4, 3), (True, True, False)),
    ((6, 5, 4, 3), (False, True, True)),
)


@ex.cases
def cases(rng):
    """(widths, frozen, N): those that are fixed, more at random, and the last ones."""
    nets = list(FIXED)
    for _ in range(4):
        depth = int(rng.integers(2, 6))
        widths = tuple(int(w) for w in rng.integers(2, 20, size=depth + 1))
        nets.append((widths, tuple(bool(f) for f in rng.random(depth) < 0.5)))
    for widths, frozen in [*nets, *LAST]:
        N = int(rng.integers(1, 30))
        letters = "".join("F" if f else "T" for f in frozen)
        yield Case(
            1,
            f"widths {', '.join(map(str, widths))}, layers {letters}, N = {N}",
            [(list(widths), list(frozen), N)],
            [step_bytes(widths, frozen, N)],
        )


def step_bytes(widths, frozen, N):
    """(gradients, optimizer, activations)."""
    if all(frozen):
        return 0, 0, 0
    layers = [4 * (i + 1) * o for i, o in pairwise(widths)]
    trained = sum(size for size, f in zip(layers, frozen, strict=True) if not f)
    outputs = [4 * N * w for w in widths[frozen.index(False) :]]
    return trained, 2 * trained, sum(outputs) + 8 * N + 4  # the labels, and one number


RETURN = "return trained, 2 * trained, activations"
SUM, LOSS = "sum(widths[low:])", "4 * N * sum(widths[low:]) + 8 * N + 4"
EMPTY = "return 0, 0, 0  # no gradient is wanted, so nothing is kept"
kept_only = lambda outcome: (..., ..., outcome[2])
no_activations = lambda outcome: (*outcome[:2], ...)

ex.mistake("not three numbers", signs.no_numbers, {RETURN: "return activations"}).says("""
    It does not return three numbers: bytes of gradients, optimizer and activations.
    Hint: End with `return gradients, optimizer, activations`.
""")
