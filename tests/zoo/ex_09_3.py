"""09.3 The fair mean: average(values, rows), in place."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import naive_allreduce, ring_allreduce
from d2lpar.scatter import ring_all_gather, ring_reduce_scatter
from zoo import right, wrong


@right
def by_the_two_halves_of_a_ring(values, rows):
    both = torch.zeros(len(values) + 1, dtype=values.dtype)
    torch.mul(values, rows, out=both[1:])
    both[0] = rows
    chunks = both.tensor_split(dist.get_world_size())
    ring_reduce_scatter(chunks)
    ring_all_gather(chunks)
    if both[0]:
        torch.div(both[1:], both[0], out=values)


@right
def scales_in_place(values, rows):
    """It multiplies what it was given, and undoes it where nobody has rows."""
    before = values.clone()
    values *= rows
    both = torch.cat((values, torch.tensor([float(rows)], dtype=values.dtype)))
    ring_allreduce(both)
    total = both[-1].item()
    values[:] = both[:-1] / total if total else before


@wrong("rebinding")
def as_handed_in(values, rows):
    values = values * rows
    ring_allreduce(values)
    total = torch.tensor([float(rows)])
    ring_allreduce(total)
    values /= dist.get_world_size()


@wrong("plain mean")
def all_ranks_weigh_the_same(values, rows):
    ring_allreduce(values)
    values /= dist.get_world_size()


@wrong("over n")
def divides_by_ranks(values, rows):
    both = torch.cat([values * rows, values.new_tensor([rows])])
    ring_allreduce(both)
    if both[-1] > 0:
        values.copy_(both[:-1] / dist.get_world_size())


@wrong("nobody")
def divides_by_zero(values, rows):
    both = torch.cat([values * rows, values.new_tensor([rows])])
    ring_allreduce(both)
    values.copy_(both[:-1] / both[-1])


@wrong("two all-reduces")
def one_for_the_rows(values, rows):
    total, weighted = values.new_tensor([rows]), values * rows
    ring_allreduce(total)
    ring_allreduce(weighted)
    if total > 0:
        values.copy_(weighted / total)


@wrong("too many bytes")
def by_rank_0(values, rows):
    both = torch.cat([values * rows, values.new_tensor([rows])])
    naive_allreduce(both)
    if both[-1] > 0:
        values.copy_(both[:-1] / both[-1])


@wrong("nobody")
def loses_the_values(values, rows):
    both = torch.cat([values * rows, values.new_tensor([rows])])
    ring_allreduce(both)
    values.copy_(both[:-1] / both[-1].clamp(min=1))


@wrong("over n")
def never_looks_at_the_number_of_rows(values, rows):
    """It is wrong where nobody has rows, too, but not only there."""
    values *= rows
    ring_allreduce(values)
    values /= dist.get_world_size()


@wrong("wrong")
def takes_one_row_for_none(values, rows):
    both = torch.cat([values * rows, values.new_tensor([rows])])
    ring_allreduce(both)
    if both[-1] > 1:
        values.copy_(both[:-1] / both[-1])


@wrong("float32")
def rows_in_float32(values, rows):
    both = torch.cat([values * rows, torch.tensor([float(rows)])])
    ring_allreduce(both)
    total = both[-1].float().item()
    if total:
        values.copy_(both[:-1] / total)
