"""12.1 A grid."""

from functools import partial
from math import isqrt

import torch
import torch.distributed as dist

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, on_ranks
from ..signs import both, breaks
from .chapter_12 import NO_WAY_BACK, agrees, by_name, drawn, forth_and_back

SIZES = ((1, 4, 3, 5), (2, 4, 6, 10), (2, 2, 12, 4), (2, 8, 2, 6), (2, 24, 16, 20))
SIZES += ((3, 6, 9, 3), (3, 3, 6, 12))
ONE_BLOCK = {"own blocks": "ijnd,ijdo->ijno", "wrong groups": "kjnd,ikdo->ijno"}

RIGHT = "ikno,jkdo->ijnd", "kind,kjno->ijdo"
GRADIENTS = {
    "own gradient": ("ijno,jjdo->ijnd", "iind,ijno->ijdo"),
    "transposed": ("ikno,kjdo->ijnd", "iknd,kjno->ijdo"),
}


def either_or_both(slip):
    """This slip in both gradients, or in one alone."""
    return signs.slip(slip, f"{slip}, x", f"{slip}, w")


def cases(rng):
    """Grids of 1, 4 and 9 ranks; long, wide and narrow matrices."""
    for q, N, D, O in SIZES:  # noqa: E741
        whole = drawn(rng, (N, D), (D, O), (N, O))
        x, w, dy = (blocks(matrix, q) for matrix in whole)
        each = [grid.flatten(0, 1) for grid in (x, w, dy)]
        yield Case(
            q * q,
            f"a grid of {q} x {q} ranks, x {N} x {D}, w {D} x {O}",
            list(zip(*each, strict=True)),
            truth=partial(product, x, w, dy),
        )


def blocks(matrix, q):
    """[q, q, rows of a block, columns of a block]."""
    N, D = matrix.shape
    return matrix.reshape(q, N // q, q, D // q).transpose(1, 2).contiguous()


def product(x, w, dy, slip=""):
    """Per rank, its block of y, and of the gradients of x and w."""
    y = torch.einsum(ONE_BLOCK.get(slip, "iknd,kjdo->ijno"), x, w).flatten(0, 1)
    if slip in ONE_BLOCK:
        return [(block, ...) for block in y]
    of, _, only = slip.partition(", ")  # the gradient of x, that of w, or both
    for_x, for_w = GRADIENTS.get(of, RIGHT)
    dx = torch.einsum(RIGHT[0] if only == "w" else for_x, dy, w)
    dw = torch.einsum(RIGHT[1] if only == "x" else for_w, x, dy)
    if of == "next block":
        dx, dw = (dx.roll(-(only != "w"), 1), dw.roll(-(only != "x"), 0))
    terms = len(x) if slip == "mean" else 1
    dx, dw = (grad.flatten(0, 1) / terms for grad in (dx, dw))
    return [(block, list(grads)) for block, *grads in zip(y, dx, dw, strict=True)]


def perform(fn, case, **options):
    """The function gets the groups of this rank's row and column."""
    return on_ranks(partial(on_grid, fn), case, **options)


def on_grid(fn, x, w, dy):
    """(y, gradients) of `fn(x, w, row, column)`."""
    r, q = dist.get_rank(), isqrt(dist.get_world_size())
    row = [dist.new_group([i * q + j for j in range(q)]) for i in range(q)][r // q]
    column = [dist.new_group([i * q + j for i in range(q)]) for j in range(q)][r % q]
    return forth_and_back(fn, (x, w), (row, column), dy)


def allowed(case):
    """Bytes of q - 1 times the blocks of x and w, there and back."""
    x, w, _ = case.inputs[0]
    return 2 * (isqrt(case.n) - 1) * 8 * (x.numel() + w.numel())


BYTES = rows.bytes_sent(allowed, exactly=False)

exercise = Exercise(
    "12.1",
    cases,
    [BYTES],
    {
        "no way back": NO_WAY_BACK,
        **signs.slips("own blocks", "wrong groups"),
        "own gradient": either_or_both("own gradient"),
        **signs.slips("mean"),
        "next block": either_or_both("next block"),
        "transposed": either_or_both("transposed"),
        "all-reduce back": both(
            breaks(BYTES), lambda a: max(a.run.bytes_sent) <= 1.5 * allowed(a.case)
        ),
        "too much": breaks(BYTES),
        "no tensor": lambda a: any(not torch.is_tensor(y) for y, _ in a.came or []),
    },
    agrees=agrees,
    perform=perform,
    shows=by_name("y", "x.grad", "w.grad"),
    processes=(4,),
)
