"""What exercise 12.1 asks for: a product on a grid of ranks."""

from functools import partial
from math import isqrt

import torch
import torch.distributed as dist

from ..judging import Case, Exercise, Mistake, on_ranks
from ..requirements import bytes_sent
from ..signs import both, right
from .split_layers import agrees, drawn, halves, no_gradient, outcomes_are


def cases(rng):
    """Grids of 1, 4 and 9 ranks; long, wide and narrow matrices."""
    for q, shapes in {
        1: [(4, 3, 5)],
        2: [(4, 6, 10), (2, 12, 4), (8, 2, 6), (24, 16, 20)],
        3: [(6, 9, 3), (3, 6, 12)],
    }.items():
        for shape in shapes:
            yield _case(rng, q, *shape)


def blocks(matrix, q):
    """Block (i, j) of a q x q grid at place i q + j."""
    return [b for rows in matrix.chunk(q) for b in rows.chunk(q, 1)]


def _case(rng, q, N, D, O):  # noqa: E741
    x, w, dy = drawn(rng, N, D), drawn(rng, D, O), drawn(rng, N, O)
    truth = zip(blocks(x @ w, q), blocks(dy @ w.T, q), blocks(x.T @ dy, q), strict=True)
    each = zip(blocks(x, q), blocks(w, q), blocks(dy, q), strict=True)
    return Case(
        q * q,
        f"a grid of {q} x {q} ranks, x {N} x {D}, w {D} x {O}",
        inputs=[tuple(b.clone() for b in three) for three in each],
        expected=[(y, [dx, dw]) for y, dx, dw in truth],
        facts={"q": q, "x": x, "w": w, "dy": dy},
    )


def perform(fn, case, **options):
    """The function gets the groups of this rank's row and column."""
    return on_ranks(partial(_on_grid, fn), case, **options)


def _on_grid(fn, x, w, dy):
    n, r = dist.get_world_size(), dist.get_rank()
    q = isqrt(n)
    rows = [dist.new_group([i * q + j for j in range(q)]) for i in range(q)]
    columns = [dist.new_group([i * q + j for i in range(q)]) for j in range(q)]
    return halves(fn, (rows[r // q], columns[r % q]), (x, w), (), dy)


def _allowed(case):
    x, w, _ = case.inputs[0]
    return 2 * (case.facts["q"] - 1) * 8 * (x.numel() + w.numel())


# What the usual mistakes give: (y, [dx, dw]) for each rank


def _parts(case):
    """For each rank: its q, i, j, and all blocks of x, w and dy as grids."""
    q = case.facts["q"]
    grids = []
    for name in ("x", "w", "dy"):
        flat = blocks(case.facts[name], q)
        grids.append([flat[i * q : i * q + q] for i in range(q)])
    for i in range(q):
        for j in range(q):
            yield q, i, j, *grids


def _row_of(grid, i):
    return torch.cat(grid[i], 1)


def _column_of(grid, j):
    return torch.cat([row[j] for row in grid])


def _own_term(case):
    """The gradients of this rank's y alone: nothing comes back from the others."""
    for q, i, j, x, w, dy in _parts(case):
        dx = dy[i][j] @ _column_of(w, j).T
        dw = _row_of(x, i).T @ dy[i][j]
        yield None, [dx.chunk(q, 1)[j], dw.chunk(q)[i]]


def _own_blocks(case):
    for _, i, j, x, w, _ in _parts(case):
        yield x[i][j] @ w[i][j], [None, None]


def _wrong_groups(case):
    """Blocks of x gathered in the column, those of w in the row."""
    for q, i, j, x, w, _ in _parts(case):
        left = torch.cat([x[k][j] for k in range(q)], 1)
        yield left @ torch.cat(w[i]), [None, None]


def _mean(case):
    q = case.facts["q"]
    for y, (dx, dw) in case.expected:
        yield y, [dx / q, dw / q]


def _large(fake):
    """Only where there is more than one rank."""
    return both(lambda a: a.case.n > 1, outcomes_are(lambda case: list(fake(case))))


def _sends(least, most):
    """It is right, and the bytes are so many times those allowed."""

    def ask(attempt):
        allowed = _allowed(attempt.case)
        times = max(attempt.run.bytes_sent) / allowed if allowed else 0
        return least < times <= most

    return both(right, ask)


exercise = Exercise(
    "12.1",
    "A grid",
    cases,
    [bytes_sent(_allowed, exactly=False)],
    [
        Mistake(
            "no way back",
            no_gradient,
            "autograd finds no way from y back to x and w.",
            "What is received has no history. Write a torch.autograd.Function.",
        ),
        Mistake(
            "own blocks",
            _large(_own_blocks),
            "It multiplies the rank's own blocks, and one block of y has q terms.",
            "y of (i, j) needs row i of blocks of x, and column j of blocks of w.",
        ),
        Mistake(
            "wrong groups",
            _large(_wrong_groups),
            "Blocks of x come from the column, and those of w from the row.",
            "The ranks of a row have the same i: together they have row i of x.",
        ),
        Mistake(
            "own gradient",
            _large(_own_term),
            "y is right, but dx and dw come from this rank's own y alone.",
            "A block of x was used by all ranks of its row. `Join` drops what the "
            "others know about it. Which move adds it up?",
        ),
        Mistake(
            "mean",
            _large(_mean),
            "The gradients are averaged over the row or column, and should be added.",
            "One x, used q times: its gradient is the sum of q terms.",
        ),
        Mistake(
            "all-reduce back",
            _sends(1, 1.5),
            "On the way back more is sent than each rank keeps.",
            "A rank wants the sum for its own block only: that is a reduce-scatter.",
        ),
        Mistake(
            "too much",
            _sends(1.5, float("inf")),
            "Ranks get blocks that they do not multiply, or get them twice.",
            "Only ranks of the same row or column need each other's blocks.",
        ),
        Mistake(
            "no tensor",
            lambda a: (
                a.came is not None and any(not torch.is_tensor(y) for y, _ in a.came)
            ),
            "It does not return a tensor.",
        ),
    ],
    agrees=agrees,
    perform=perform,
    processes=(4,),
)
