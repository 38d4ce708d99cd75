"""12.1 A grid: grid_product(x, w, row, column)."""

from functools import partial
from math import isqrt

import torch.distributed as dist

from d2lpar.checks.backward import NO_WAY_BACK, agrees, by_name, drawn, forth_and_back
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_ranks

# Edge of the grid, then of the matrices: N, D, O
SIZES = ((1, 4, 3, 5), (1, 1, 1, 1), (2, 4, 6, 10), (2, 2, 12, 4), (2, 8, 2, 6))
SIZES += ((2, 24, 16, 20), (3, 3, 3, 3), (3, 6, 9, 3), (3, 3, 6, 12))


def perform(fn, case, **options):
    """The function gets the groups of this rank's row and column."""
    return on_ranks(partial(on_grid, fn), case, **options)


def on_grid(fn, x, w, dy):
    """(y, gradients) of `fn(x, w, row, column)`."""
    r, q = dist.get_rank(), isqrt(dist.get_world_size())
    row = [dist.new_group([i * q + j for j in range(q)]) for i in range(q)][r // q]
    column = [dist.new_group([i * q + j for i in range(q)]) for j in range(q)][r % q]
    return forth_and_back(fn, (x, w), (row, column), dy)


form = {"agrees": agrees, "perform": perform, "processes": (4,)}
form["shows"] = by_name("y", "x.grad", "w.grad")
ex = Exercise("12.1", "grid_reference", **form)


@ex.cases
def cases(rng, reference):
    """Grids of 1, 4 and 9 ranks; long, wide and narrow matrices."""
    for q, N, D, O in SIZES:  # noqa: E741
        whole = drawn(rng, (N, D), (D, O), (N, O))
        given = [[rows.chunk(q, 1) for rows in matrix.chunk(q)] for matrix in whole]
        y, dx, dw = map(by_rank, reference(*given))
        x, w, dy = map(by_rank, given)
        inputs = [*zip(x, w, dy, strict=True)]
        expected = [(block, grads) for block, *grads in zip(y, dx, dw, strict=True)]
        text = f"a grid of {q} x {q} ranks, x {N} x {D}, w {D} x {O}"
        yield Case(q * q, text, inputs, expected)


def by_rank(blocks):
    """Blocks in the order of ranks, each in memory of its own."""
    return [block.clone().contiguous() for row in blocks for block in row]


def allowed(case):
    """Bytes of q - 1 times the blocks of x and w, there and back."""
    x, w, _ = case.inputs[0]
    return 2 * (isqrt(case.n) - 1) * 8 * (x.numel() + w.numel())


edges = lambda case: [edge for block in case.inputs[0] for edge in block.shape]
ex.boundaries(
    "one rank",
    "no power of two",
    smallest_grid=lambda case: case.n == 4,
    one_row_in_a_block=lambda case: edges(case)[0] == 1 < min(edges(case)[1:4]),
    one_column_in_a_block=lambda case: edges(case)[1] == 1 < edges(case)[0],
    one_number_in_a_block=lambda case: case.n > 1 and set(edges(case)) == {1},
)
ex.at_most(bytes=allowed)

# Texts of the answer, for edits

X, W = "Gather.apply(x, 1, row)", "Gather.apply(w, 0, column)"
JOIN = "d2lpar.tensor_parallel.Join"
BACK = "d2lpar.allreduce.ring_allreduce(dy, ctx.group); "
BACK += "mine = dy.chunk(n, ctx.dim)[dist.get_rank(ctx.group)]"
RETURN, SCATTER = f"return {X} @ {W}", "reduce_scatter(mine, parts, ctx.group)"
GATHERED, MINE = "ring_all_gather(parts, group)", "return mine, None"

# Mistakes of its own

lost = {RETURN: f"with torch.no_grad():\n        {RETURN}"}
ex.mistake("no way back", NO_WAY_BACK, lost).says("""
    Autograd does not find its way back from y to x and w.
    Hint: Autograd does not know where a received tensor comes from. Write a
    `torch.autograd.Function` whose backward pass sends the gradients back.
""")
ex.wrong("no way back", {W: W.replace("w", "w.detach()", 1)})

y_alone = lambda outcome: (outcome[0], ...)
swapped = {X: "Gather.apply(x, 1, column)", W: "Gather.apply(w, 0, row)"}
ex.slip("groups", swapped, about=y_alone).says("""
    It collects blocks of x from the column, or blocks of w from the row.
    Hint: Which ranks have the blocks that this rank multiplies? The ranks of a row have
    the same i, so together they have row i of x.
""")
for text in swapped:
    ex.slip("groups", {text: swapped[text]})
for texts in (X, W), (X,), (W,):
    joined = {text: text.replace("Gather", JOIN) for text in texts}
    ex.slip("own gradient", joined).says("""
        y is right, but dx, dw or both come from this rank's own y alone.
        Hint: Who else used this block? All ranks of a row used a block of x, and each
        of them has a term of its gradient. `Join` drops the terms of the others, but a
        reduce-scatter adds them up.
    """)
KEEPS = f"y, dy = {X} @ {W}, []; y.register_hook(dy.append)"
FOR_X = "Gather.apply(dy[0], 1, row) @ Gather.apply(w, 1, column).T"
FOR_W = "Gather.apply(x, 0, row).T @ Gather.apply(dy[0], 0, column)"
HOOKS = f"x.register_hook(lambda _: {FOR_X})", f"w.register_hook(lambda _: {FOR_W})"
for hooks in ("; ".join(HOOKS), *HOOKS):
    ex.slip("transposed", {RETURN: f"{KEEPS}; {hooks}; return y"}).says("""
        The sum for a gradient is taken over the blocks that the forward pass
        multiplied, which are the wrong ones.
        Hint: By which blocks of w is block (i, j) of x multiplied? By the blocks
        w[j][k] of row j, and not by the w[k][j] of the rank's own column.
    """)
ex.slip("mean", {MINE: "return mine / n, None"}).says("""
    It averages the gradients over the row or column instead of adding them.
    Hint: How often is one block of x used? Its gradient is the sum of q terms.
""")

# Answers to which the general sentences apply

ex.wrong("pattern", {RETURN: "return x @ w"})
ex.wrong("wrong", {RETURN: f"return [{X} @ {W}]"})
rows = f"Gather.apply({X}, 0, column).chunk(dist.get_world_size(row))"
ex.wrong("costly", {SCATTER: f"dy = dy.contiguous(); {BACK}"})
ex.wrong("costly", {X: f"{rows}[dist.get_rank(column)]"})
ex.right({GATHERED: "dist.all_gather(parts, parts[r], group=group)"})
ex.right({SCATTER: "dist.reduce_scatter(mine, parts, group=ctx.group)"})
