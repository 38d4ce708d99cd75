"""All-reduces to be judged in exercise 06.5: right ones, and wrong ones by their fault.

All of them look alike from outside.
"""

from functools import partial

import torch
import torch.distributed as dist

from ... import allreduce as family
from ...scatter import all_gather, all_to_all, flat_broadcast, flat_reduce


def disguised(body, *arguments):
    """`body(*arguments, tensor, group)` behind a name that says nothing."""

    def allreduce(tensor, group=None):
        return body(*arguments, tensor, group)

    return allreduce


# Right: 2(n-1)/n S bytes from each rank, rounded up to whole chunks


def owner_by_owner(x, group):
    """Chunk i is reduced to rank i and sent to all from there, one after the other."""
    for i, chunk in enumerate(x.tensor_split(dist.get_world_size(group))):
        flat_reduce(chunk, i, group)
        flat_broadcast(chunk, i, group)


def all_owners_at_once(x, group):
    """Everyone gives chunk i to rank i, which adds them and gives the sum to all."""
    chunks = list(x.tensor_split(dist.get_world_size(group)))
    terms = [torch.empty_like(chunks[dist.get_rank(group)]) for _ in chunks]
    all_to_all(terms, chunks, group)
    all_gather(chunks, sum(terms), group)


def by_halves(x, group):
    """Halving and doubling for powers of two, else a ring."""
    n = dist.get_world_size(group)
    way = family.ring_allreduce if n & (n - 1) else family.halving_doubling_allreduce
    way(x, group)


def in_equal_chunks(x, group, more=0):
    """A ring whose last chunk is filled up: it sends all that is allowed, or more."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    filled = torch.cat([x, x.new_zeros(-len(x) % n)])
    family.ring_allreduce(filled, group)
    x.copy_(filled[: len(x)])
    for _ in range(more if n > 1 else 0):
        chunk = filled[: len(filled) // n]
        work = dist.isend(chunk, group=group, group_dst=(r + 1) % n)
        dist.recv(torch.empty_like(chunk), group=group, group_src=(r - 1) % n)
        work.wait()


RIGHT = {  # what it does: the function
    "the ring": family.ring_allreduce,
    "the ring in small pieces": partial(family.segmented_ring_allreduce, segment=2),
    "torch's own": lambda x, group: dist.all_reduce(x, group=group),
    "one owner of a chunk after the other": owner_by_owner,
    "all owners of chunks at once": all_owners_at_once,
    "halving and doubling where n is a power of two": by_halves,
}


# Wrong


COUNTED = {  # slip: (r, n) -> is what rank r of n has in the sum?
    "rank 0 everywhere": lambda r, n: r == 0,
    "without the last": lambda r, n: n == 1 or r < n - 1,
    "powers of two": lambda r, n: r < 2 ** (n.bit_length() - 1),
}


def slipped(slip, base, x, group):
    """What this slip makes of `base`, a right one."""
    n, r, y = dist.get_world_size(group), dist.get_rank(group), x.clone()
    odd = n > 1 and n % 2
    if slip in COUNTED:
        x *= COUNTED[slip](r, n)
    if slip == "raises if few" and 0 < len(x) < n:
        raise ValueError("fewer elements than ranks")
    if slip == "knot of odd ranks" and odd:
        dist.send(x, group=group, group_dst=(r + 1) % n)
        dist.recv(y, group=group, group_src=(r - 1) % n)
    match slip:
        case "own times n":
            x *= n
        case "tail":
            base(x[: len(x) // n * n], group)
        case "returns another" | "forgets another":
            base(y, group)
        case "integers":
            base(y := x.float(), group)
            x.copy_(y)
        case "nothing if few" if len(x) < n:
            pass
        case "the odd one leaves" if odd and r == n - 1:
            pass
        case _:
            base(x, group)
    if slip == "rank 0" and r > 0:
        x.copy_(y)
    if slip == "average":
        x.copy_(x / n)
    return {"returns": x, "returns another": y}.get(slip)


def by_the_last(x, group):
    """Only the last rank sends too much; the sum over ranks is that of a ring."""
    hub = dist.get_world_size(group) - 1
    flat_reduce(x, hub, group)
    flat_broadcast(x, hub, group)


FAULTS = {  # fault: the slips that lead to it, or all-reduces that have it
    "equal but wrong": ["rank 0 everywhere", "without the last"],
    "powers of two": ["powers of two"],
    "tail": ["tail"],
    "rank 0": ["rank 0"],
    "rebinding": ["returns another", "forgets another"],
    "returns": ["returns"],
    "average": ["average"],
    "own times n": ["own times n"],
    "integers": ["integers"],
    "few elements": ["nothing if few", "raises if few"],
    "bytes": [
        family.tree_allreduce,
        family.naive_allreduce,
        family.direct_allreduce,
        family.recursive_doubling_allreduce,
    ],
    "deadlock": ["knot of odd ranks", "the odd one leaves"],
}


def draw(rng):
    """[(all-reduce, what it is in RIGHT or FAULTS)]: 3 right ones, 19 wrong ones.

    Every fault is there, in two forms at most.  The generator decides which right
    ones there are, where a fault is put in, and the order; two are always the last.
    """
    ways = list(RIGHT.values())
    names = [list(RIGHT)[i] for i in rng.permutation(len(RIGHT))[:2]]
    found = [(disguised(RIGHT[name]), name) for name in names]
    found.append((disguised(in_equal_chunks), "a ring of equal chunks"))
    for fault, forms in FAULTS.items():
        for i in rng.permutation(len(forms))[:2]:
            base, form = ways[rng.integers(len(ways))], forms[i]
            body = (form,) if callable(form) else (slipped, form, base)
            found.append((disguised(*body), fault))
    order = rng.permutation(len(found))
    last = by_the_last, partial(in_equal_chunks, more=1)
    return [found[i] for i in order] + [(disguised(body), "bytes") for body in last]
