"""05.5 Transpose what no rank can hold: transpose(shard)."""

import torch
import torch.distributed as dist

from d2lpar import scatter
from d2lpar.messages import exchange
from zoo import right, wrong


def setting(shard):
    """(n, r, N, rows of each rank)."""
    n, r, N = dist.get_world_size(), dist.get_rank(), shard.shape[1]
    return n, r, N, [N // n + (i < N % n) for i in range(n)]


@right
def blocks_come_and_are_turned(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[src], rows[r], dtype=shard.dtype)
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


@right
def turned_before_they_leave(shard):
    """Leftwards, flat buffers, and a result that is built by columns."""
    n, r, N, rows = setting(shard)
    starts = [sum(rows[:i]) for i in range(n)]
    result = torch.zeros(N, rows[r]).double()
    result[starts[r] : starts[r] + rows[r]] = shard[:, starts[r] : starts[r] + rows[r]]
    for k in range(1, n):
        dst, src = (r - k) % n, (r + k) % n
        columns = shard[:, starts[dst] : starts[dst] + rows[dst]]
        leaving = columns.contiguous().flatten()
        work = dist.isend(leaving, dst)
        dist.recv(result[starts[src] : starts[src] + rows[src]], src)
        work.wait()
        del leaving
    return result.t()


@right
def no_message_for_no_element(shard):
    n, r, N, rows = setting(shard)
    mine = list(shard.split(rows, dim=1))
    parts = torch.empty(rows[r], N, dtype=shard.dtype)
    parts.split(rows, 1)[r][:] = mine[r].T
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        calls = []
        if rows[r] * rows[src]:
            came = torch.empty(rows[r], rows[src], dtype=shard.dtype)
            calls.append(dist.P2POp(dist.irecv, came, src))
        if rows[r] * rows[dst]:
            turned = mine[dst].T.contiguous()
            calls.append(dist.P2POp(dist.isend, turned, dst))
        for work in dist.batch_isend_irecv(calls) if calls else []:
            work.wait()
        if rows[r] * rows[src]:
            parts.split(rows, 1)[src][:] = came
    return parts


@wrong("whole matrix")
def gathered_on_rank_0(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    whole = torch.empty(N, N, dtype=shard.dtype) if r == 0 else None
    scatter.gather(shard, list(whole.split(rows)) if r == 0 else None)
    turned = list(whole.t().contiguous().split(rows)) if r == 0 else None
    scatter.scatter(result, turned)
    return result


@wrong("whole matrix")
def gathered_everywhere(shard):
    n, r, N, rows = setting(shard)
    whole = torch.empty(N, N, dtype=shard.dtype)
    scatter.all_gather(list(whole.split(rows)), shard)
    return whole.split(rows, dim=1)[r].t().contiguous()


@wrong("too much sent")
def all_its_rows_to_everybody(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    places = result.split(rows, dim=1)
    places[r].copy_(shard.split(rows, dim=1)[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[src], N, dtype=shard.dtype)
        exchange(shard, dst, incoming, src)
        places[src].copy_(incoming.split(rows, dim=1)[r].t())
        del incoming
    return result


@wrong("many blocks")
def the_librarys_all_to_all(shard):
    n, r, N, rows = setting(shard)
    leaving = [block.contiguous() for block in shard.split(rows, dim=1)]
    coming = [torch.empty(rows[i], rows[r], dtype=shard.dtype) for i in range(n)]
    scatter.all_to_all(coming, leaving)
    return torch.cat([block.t() for block in coming], dim=1)


@wrong("not transposed")
def swapped_only(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r])
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[r], rows[src], dtype=shard.dtype)
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming)
    return result


@wrong("not moved")
def turned_only(shard):
    n, r, N, rows = setting(shard)
    result = shard.clone()
    if N % n == 0:
        for block in result.split(rows, dim=1):
            block.copy_(block.t().clone())
    return result


@wrong("strided")
def sends_a_view(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[src], rows[r], dtype=shard.dtype)
        exchange(blocks[dst], dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


@wrong("strided")
def receives_into_columns(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        exchange(blocks[dst].t().contiguous(), dst, places[src], src)
    return result


@wrong("shapes")
def equal_blocks(shard):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = shard.view(len(shard), n, -1)  # [rows, n, N/n]
    result = torch.empty_like(shards)
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(len(shard), shards.shape[2], dtype=shard.dtype)
        exchange(shards[:, dst].contiguous(), dst, incoming, src)
        result[:, src] = incoming.t()
    result[:, r] = shards[:, r].t()
    return result.view(shard.shape)


@wrong("shapes")
def one_shape_for_all_blocks(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[r], rows[src], dtype=shard.dtype)
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


@wrong("block sizes")
def as_large_as_its_own(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[r], rows[r], dtype=shard.dtype)
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


@wrong("columns")
def rows_and_columns_of_the_result(shard):
    return blocks_come_and_are_turned(shard).t()


@wrong("to itself")
def its_own_block_too(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    for k in range(n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[src], rows[r], dtype=shard.dtype)
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


@wrong("row by row")
def a_message_per_row(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        works = [dist.isend(row, dst) for row in blocks[dst]]
        for column in places[src].t():
            spare = torch.empty(len(column), dtype=shard.dtype)
            dist.recv(spare, src)
            column.copy_(spare)
        for work in works:
            work.wait()
    return result


@wrong("in turn")
def one_pair_after_the_other(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for i in range(n):
        for j in range(i):
            if r in (i, j):
                other = i + j - r
                incoming = torch.empty(rows[other], rows[r], dtype=shard.dtype)
                exchange(blocks[other].contiguous(), other, incoming, other)
                places[other].copy_(incoming.t())
    return result


@wrong("touches what leaves")
def one_spare_for_all_that_leave(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    spare, works = torch.empty(rows[0] ** 2, dtype=shard.dtype), []
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        leaving = spare[: blocks[dst].numel()].view(blocks[dst].shape)
        leaving.copy_(blocks[dst])
        works.append(dist.isend(leaving, dst))
        incoming = torch.empty(rows[src], rows[r], dtype=shard.dtype)
        dist.recv(incoming, src)
        places[src].copy_(incoming.t())
    for work in works:
        work.wait()
    return result


@wrong("native collective")
def torch_all_to_all(shard):
    n, r, N, rows = setting(shard)
    leaving = [block.contiguous() for block in shard.split(rows, dim=1)]
    coming = [torch.empty(rows[i], rows[r], dtype=shard.dtype) for i in range(n)]
    dist.all_to_all(coming, leaving)
    return torch.cat([block.t() for block in coming], dim=1)


@wrong("dtype")
def forgets_the_dtype(shard):
    n, r, N, rows = setting(shard)
    result = torch.empty(rows[r], N, dtype=shard.dtype)
    blocks, places = shard.split(rows, dim=1), result.split(rows, dim=1)
    places[r].copy_(blocks[r].t())
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        incoming = torch.empty(rows[src], rows[r])
        exchange(blocks[dst].contiguous(), dst, incoming, src)
        places[src].copy_(incoming.t())
    return result


def with_spare_blocks(shard, count):
    """It holds so many blocks more than it needs."""
    n, r, N, rows = setting(shard)
    spare = [torch.empty(rows[0], rows[0], dtype=shard.dtype) for _ in range(count)]
    result = blocks_come_and_are_turned(shard)
    del spare
    return result


@right
def four_blocks(shard):
    """One that leaves, one that comes, and two to spare."""
    return with_spare_blocks(shard, 2)


@wrong("many blocks")
def five_blocks(shard):
    return with_spare_blocks(shard, 3)
