"""12.1 A grid: grid_product(x, w, row, column)."""

import torch
import torch.distributed as dist

from d2lpar.scatter import flat_broadcast, flat_reduce, reduce_scatter, ring_all_gather
from d2lpar.tensor_parallel import Enter, Join
from zoo import right, wrong


def gathered(x, dim, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    parts = [x.contiguous() if i == r else torch.empty_like(x) for i in range(n)]
    ring_all_gather(parts, group)
    return torch.cat(parts, dim)


class Gather(torch.autograd.Function):
    """All blocks together; each gets back the sum of its gradients."""

    @staticmethod
    def forward(ctx, x, dim, group, scale=1.0, turn=0):
        ctx.dim, ctx.group, ctx.scale, ctx.turn = dim, group, scale, turn
        return gathered(x, dim, group)

    @staticmethod
    def backward(ctx, dy):
        n = dist.get_world_size(ctx.group)
        parts = [part.contiguous() for part in dy.chunk(n, ctx.dim)]
        mine = torch.empty_like(parts[0])
        reduce_scatter(mine, parts[ctx.turn :] + parts[: ctx.turn], ctx.group)
        return mine * ctx.scale, None, None, None, None


@right
def gather_and_multiply(x, w, row, column):
    return Gather.apply(x, 1, row) @ Gather.apply(w, 0, column)


class Summa(torch.autograd.Function):
    """One block column and block row after the other, each broadcast by its owner."""

    @staticmethod
    def forward(ctx, x, w, row, column):
        ctx.groups = row, column
        q, kept, y = dist.get_world_size(row), [], 0
        for k in range(q):
            left = x.clone() if dist.get_rank(row) == k else torch.empty_like(x)
            below = w.clone() if dist.get_rank(column) == k else torch.empty_like(w)
            flat_broadcast(left, k, row)
            flat_broadcast(below, k, column)
            kept += [left, below]
            y = y + left @ below
        ctx.save_for_backward(*kept)
        return y

    @staticmethod
    def backward(ctx, dy):
        (row, column), kept = ctx.groups, ctx.saved_tensors
        for k in range(len(kept) // 2):
            dx, dw = dy @ kept[2 * k + 1].T, kept[2 * k].T @ dy
            flat_reduce(dx, k, row)
            flat_reduce(dw, k, column)
            if dist.get_rank(row) == k:
                mine_x = dx
            if dist.get_rank(column) == k:
                mine_w = dw
        return mine_x, mine_w, None, None


@right
def summa(x, w, row, column):
    return Summa.apply(x, w, row, column)


class NativeGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, dy):
        n = dist.get_world_size(ctx.group)
        parts = [part.contiguous() for part in dy.chunk(n, ctx.dim)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.group)
        return mine, None, None


@right
def native(x, w, row, column):
    return NativeGather.apply(x, 1, row) @ NativeGather.apply(w, 0, column)


@wrong("own gradient")
def joined(x, w, row, column):
    return Join.apply(x, 1, row) @ Join.apply(w, 0, column)


@wrong("own gradient")
def joined_below(x, w, row, column):
    return Gather.apply(x, 1, row) @ Join.apply(w, 0, column)


@wrong("next block")
def one_further_in_the_column(x, w, row, column):
    return Gather.apply(x, 1, row) @ Gather.apply(w, 0, column, 1.0, 1)


@wrong("next block")
def one_further_in_both(x, w, row, column):
    left = Gather.apply(x, 1, row, 1.0, 1)
    return left @ Gather.apply(w, 0, column, 1.0, 1)


class Forward(torch.autograd.Function):
    """The way back uses the blocks that are here since the way forward."""

    @staticmethod
    def forward(ctx, x, w, row, column):
        left, below = gathered(x, 1, row), gathered(w, 0, column)
        ctx.groups, ctx.blocks = (row, column), (left, below)
        return left @ below

    @staticmethod
    def backward(ctx, dy):
        (row, column), (left, below) = ctx.groups, ctx.blocks
        q = dist.get_world_size(row)
        dys = gathered(dy, 1, row).chunk(q, 1)
        dx = sum(d @ block.T for d, block in zip(dys, below.chunk(q), strict=True))
        parts = [(part.T @ dy).contiguous() for part in left.chunk(q, 1)]
        dw = torch.empty_like(parts[0])
        reduce_scatter(dw, parts, column)
        return dx, dw, None, None


@wrong("transposed")
def the_blocks_at_hand(x, w, row, column):
    return Forward.apply(x, w, row, column)


@wrong("all-reduce back")
def entered_and_joined(x, w, row, column):
    x = Enter.apply(Join.apply(x, 1, row), row)
    return x @ Enter.apply(Join.apply(w, 0, column), column)


@wrong("no way back")
def without_history(x, w, row, column):
    with torch.no_grad():
        return gathered(x, 1, row) @ gathered(w, 0, column)


@wrong("no way back")
def a_part_with_history(x, w, row, column):
    return Gather.apply(x, 1, row) @ gathered(w.detach(), 0, column)


@wrong("own blocks")
def alone(x, w, row, column):
    return x @ w


@wrong("wrong groups")
def row_and_column_exchanged(x, w, row, column):
    return Gather.apply(x, 1, column) @ Gather.apply(w, 0, row)


@wrong("mean")
def averaged(x, w, row, column):
    scale = 1 / dist.get_world_size(row)
    return Gather.apply(x, 1, row, scale) @ Gather.apply(w, 0, column, scale)


@wrong("too much")
def everything_everywhere(x, w, row, column):
    q = dist.get_world_size(row)
    i, j = dist.get_rank(column), dist.get_rank(row)

    def all_of(block):
        rows = Gather.apply(block, 1, row)
        return Gather.apply(rows, 0, column)

    whole_x, whole_w = all_of(x), all_of(w)
    return whole_x.chunk(q)[i] @ whole_w.chunk(q, 1)[j]


@wrong("no tensor")
def in_a_list(x, w, row, column):
    return [Gather.apply(x, 1, row) @ Gather.apply(w, 0, column)]
