"""05.4 Reduce-scatter with unequal shards: reduce_shards(x, sizes)."""

import torch
import torch.distributed as dist

from d2lpar import allreduce, scatter
from d2lpar.messages import exchange
from zoo import right, wrong


@right
def each_to_its_owner(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total = shards[r].clone()
    incoming = torch.empty_like(total)
    for k in range(1, n):
        exchange(shards[(r + k) % n], (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@right
def a_ring_of_partial_sums(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = list(x.split(sizes))
    leaving = shards[(r - 1) % n]
    for k in range(1, n):
        mine = shards[(r - 1 - k) % n]
        incoming = torch.empty_like(mine)
        exchange(leaving, (r + 1) % n, incoming, (r - 1) % n)
        leaving = incoming.add_(mine)
    return leaving.clone() if n == 1 else leaving


@right
def no_empty_messages_and_the_other_way(x, sizes):
    """Leftwards, sends begun first; an empty shard travels from nobody to nobody."""
    n, r = dist.get_world_size(), dist.get_rank()
    starts = [sum(sizes[:i]) for i in range(n)]
    total = torch.zeros(sizes[r], dtype=torch.float64)
    total += x[starts[r] : starts[r] + sizes[r]]
    incoming = torch.empty_like(total)
    for peer, other in [((r - k) % n, (r + k) % n) for k in range(1, n)]:
        work = None
        if sizes[peer]:
            work = dist.isend(x[starts[peer] : starts[peer] + sizes[peer]], peer)
        if sizes[r]:
            dist.recv(incoming, other)
            total += incoming
        if work:
            work.wait()
    return total


@right
def a_new_spare_each_time(x, sizes):
    """Python keeps the old spare until the name has the new one: three shards."""
    n, r = dist.get_world_size(), dist.get_rank()
    total = None
    for k in range(1, n):
        incoming = torch.empty(sizes[r], dtype=x.dtype)
        leaving = list(x.split(sizes))[r - k]
        exchange(leaving, (r - k) % n, incoming, (r + k) % n)
        total = incoming if total is None else total.add_(incoming)
    mine = x[sum(sizes[:r]) : sum(sizes[: r + 1])]
    return mine.clone() if total is None else total.add_(mine)


@wrong("bytes")
def all_reduce_and_slice(x, sizes):
    y = x.clone()
    allreduce.ring_allreduce(y)
    return y.split(sizes)[dist.get_rank()].clone()


@wrong("native collective")
def torch_all_reduce(x, sizes):
    y = x.clone()
    dist.all_reduce(y)
    return y.split(sizes)[dist.get_rank()].clone()


@wrong("memory")
def the_librarys(x, sizes):
    total = torch.empty(sizes[dist.get_rank()], dtype=torch.float64)
    scatter.reduce_scatter(total, list(x.split(sizes)))
    return total


@wrong("memory")
def a_ring_on_a_clone(x, sizes):
    chunks = list(x.clone().split(sizes))
    scatter.ring_reduce_scatter(chunks)
    return chunks[dist.get_rank()].clone()


@wrong("memory")
def a_buffer_for_each_rank(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    terms = [torch.empty(sizes[r], dtype=torch.float64) for _ in range(n)]
    scatter.all_to_all(terms, list(x.split(sizes)))
    return torch.stack(terms).sum(0)


@wrong("input changed")
def a_ring_in_place(x, sizes):
    chunks = list(x.split(sizes))
    scatter.ring_reduce_scatter(chunks)
    return chunks[dist.get_rank()].clone()


@wrong("in turn")
def one_owner_after_the_other(x, sizes):
    r, mine = dist.get_rank(), None
    for owner, shard in enumerate(x.split(sizes)):
        if owner == r:
            shard = mine = shard.clone()
        scatter.flat_reduce(shard, owner)
    return mine


@wrong("equal shards")
def tensor_split(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.tensor_split(n)
    total = shards[r].clone()
    incoming = torch.empty_like(total)
    for k in range(1, n):
        exchange(shards[(r + k) % n], (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@wrong("equal shards")
def a_table_of_n_rows(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.view(n, -1)
    total = shards[r].clone()
    incoming = torch.empty_like(total)
    for k in range(1, n):
        exchange(shards[(r + k) % n], (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@wrong("empty shard")
def sends_no_empty_shard(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total = shards[r].clone()
    incoming = torch.empty_like(total)
    for k in range(1, n):
        dst, work = (r + k) % n, None
        if sizes[dst]:
            work = dist.isend(shards[dst], dst)
        dist.recv(incoming, (r - k) % n)
        if work:
            work.wait()
        total += incoming
    return total


@wrong("owner")
def the_ring_ends_one_too_far(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = list(x.split(sizes))
    leaving = shards[r]
    for k in range(1, n):
        mine = shards[(r - k) % n]
        incoming = torch.empty_like(mine)
        exchange(leaving, (r + 1) % n, incoming, (r - 1) % n)
        leaving = incoming.add_(mine)
    return leaving.clone()


@wrong("sizes")
def receives_as_much_as_it_sends(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total = shards[r].clone()
    for k in range(1, n):
        leaving = shards[(r + k) % n]
        incoming = torch.empty_like(leaving)
        exchange(leaving, (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@wrong("nothing added")
def only_its_own(x, sizes):
    return x.split(sizes)[dist.get_rank()].clone()


@wrong("touches what leaves")
def one_spare_for_both(x, sizes):
    """The partial sum is still leaving when the next one is written over it."""
    n, r = dist.get_world_size(), dist.get_rank()
    shards = list(x.split(sizes))
    spare = torch.empty(max(sizes), dtype=torch.float64)
    leaving, works = shards[(r - 1) % n], []
    for k in range(1, n):
        mine = shards[(r - 1 - k) % n]
        incoming = torch.empty_like(mine)
        works.append(dist.isend(leaving, (r + 1) % n))
        dist.recv(incoming, (r - 1) % n)
        leaving = spare[: len(mine)].copy_(incoming).add_(mine)
    for work in works:
        work.wait()
    return leaving.clone()


@wrong("to itself")
def from_everybody(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total = torch.zeros_like(shards[r])
    incoming = torch.empty_like(total)
    for k in range(n):
        exchange(shards[(r + k) % n], (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@wrong("wrong")
def own_term_twice(x, sizes):
    """The own term counts twice (total starts with it, and it is added again)"""
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total, come = shards[r].clone(), torch.empty_like(shards[r])
    for k in range(1, n):
        exchange(shards[(r + k) % n], (r + k) % n, come, (r - k) % n)
        total += come
    return total.add_(shards[r])


@wrong("memory")
def the_input_is_kept_as_a_list(x, sizes):
    """The ring works in the input, which a list of numbers brings back."""
    before = x.tolist()
    chunks = list(x.split(sizes))
    scatter.ring_reduce_scatter(chunks)
    result = chunks[dist.get_rank()].clone()
    x.copy_(torch.tensor(before, dtype=x.dtype))
    return result


@wrong("dtype")
def forgets_the_dtype(x, sizes):
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total, incoming = shards[r].clone(), torch.empty(sizes[r])
    for k in range(1, n):
        exchange(shards[(r + k) % n], (r + k) % n, incoming, (r - k) % n)
        total += incoming
    return total


@wrong("hangs")
def everybody_receives_first(x, sizes):
    """Whatever the sizes are: an empty shard is not the reason."""
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total, incoming = shards[r].clone(), torch.empty_like(shards[r])
    for k in range(1, n):
        dist.recv(incoming, (r - k) % n)
        dist.send(shards[(r + k) % n], (r + k) % n)
        total += incoming
    return total


@wrong("memory")
def four_shards(x, sizes):
    """One more than is allowed: the result, what comes, and two copies that leave."""
    n, r = dist.get_world_size(), dist.get_rank()
    shards = x.split(sizes)
    total, incoming = shards[r].clone(), torch.empty_like(shards[r])
    for k in range(1, n):
        copies = [shards[(r + k) % n].clone() for _ in range(2)]
        exchange(copies[0], (r + k) % n, incoming, (r - k) % n)
        total += incoming
        del copies
    return total
