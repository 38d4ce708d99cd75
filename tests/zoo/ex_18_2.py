"""18.2 Which sum was it?: which_sum(before, after, row)."""

import torch

from zoo import right, wrong

KINDS = "copies", "row", "all", "mean", "nothing"


def made(before, row, flip=False):
    stacked = torch.stack(before)
    n = len(before)
    r = torch.arange(n)
    same = [(r[:, None] % row == r % row).double(), (r[:, None] // row == r // row)]
    column, line = same[::-1] if flip else same
    column, line = column.double(), line.double()
    return {
        "copies": column @ stacked,
        "row": line @ stacked,
        "all": torch.ones(n, n).double() @ stacked,
        "mean": column @ stacked / column.sum(1, keepdim=True),
        "nothing": stacked,
    }


def first(before, after, row, kinds=KINDS, near=torch.allclose, flip=False, upto=None):
    found = made(before, row, flip)
    for kind in kinds:
        if near(found[kind][:upto], torch.stack(after)[:upto]):
            return kind


@right
def as_matrices(before, after, row):
    return first(before, after, row)


@right
def loops(before, after, row):
    n = len(before)
    sums = {kind: [] for kind in KINDS}
    for r in range(n):
        column = [before[s] for s in range(r % row, n, row)]
        begin = r // row * row
        sums["copies"].append(sum(column))
        sums["row"].append(sum(before[begin : begin + row]))
        sums["all"].append(sum(before))
        sums["mean"].append(sum(column) / len(column))
        sums["nothing"].append(before[r])
    fits = lambda kind: all(map(torch.allclose, sums[kind], after))
    return next(kind for kind in KINDS if fits(kind))


@wrong("rank 0 only")
def looks_at_rank_0(before, after, row):
    return first(before, after, row, upto=1)


@wrong("row and column")
def the_other_way_round(before, after, row):
    found = first(before, after, row)
    return {"row": "copies", "copies": "row"}.get(found, found)


@wrong("from the end")
def backwards(before, after, row):
    return first(before, after, row, KINDS[::-1])


@wrong("no rounding")
def every_bit(before, after, row):
    return first(before, after, row, near=torch.equal)


@wrong("no mean")
def never_divides(before, after, row):
    return first(before, after, row, [kind for kind in KINDS if kind != "mean"])
