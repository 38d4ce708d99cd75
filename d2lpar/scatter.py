"""Build the seven collectives from messages.

The table shows what three ranks hold before and after each of them.  The ranks have the
tensors A, B and C; A1 is piece 1 of A, and +1 is the sum of A1, B1 and C1:

                      before                        after
                      rank 0    rank 1    rank 2    rank 0    rank 1    rank 2
    broadcast         A         B         C         A         A         A
    scatter           A0 A1 A2  .         .         A0        A1        A2
    gather            A         B         C         A B C     .         .
    reduce            A         B         C         A+B+C     B         C
    all-gather        A         B         C         A B C     A B C     A B C
    reduce-scatter    A0 A1 A2  B0 B1 B2  C0 C1 C2  +0        +1        +2
    all-to-all        A0 A1 A2  B0 B1 B2  C0 C1 C2  A0 B0 C0  A1 B1 C1  A2 B2 C2

n is the number of ranks, r this rank, k the step.  A rank in an argument is a rank of
the group.  All functions work in place and return None, as torch's do.  They expect
contiguous tensors.  A group of one rank sends no message.
"""

import torch
import torch.distributed as dist

from .messages import exchange


# The root serves one rank after the other, from its right neighbour on.
#
#     step   root 0 sends to
#     0      1
#     1      2
#     2      3
def flat_broadcast(tensor, src=0, group=None):
    """Copy `tensor` from rank `src` to all ranks, one after the other.

    Takes n-1 rounds, and the root sends (n-1) S bytes.  All tensors have the
    same size and dtype.  Raises ValueError if `src` is no rank of the group.
    """
    n, r = members(group, src)
    if r != src:
        dist.recv(tensor, group=group, group_src=src)
        return
    for k in range(1, n):
        dist.send(tensor, group=group, group_dst=(src + k) % n)


# Every rank that has the tensor passes it on.  v counts from the root.
#
#     step   have it          send
#     0      0                0 -> 1
#     1      0 1              0 -> 2   1 -> 3
#     2      0 1 2 3          0 -> 4   1 -> 5   2 -> 6   3 -> 7
def tree_broadcast(tensor, src=0, group=None):
    """Copy `tensor` from rank `src` to all ranks, along a binomial tree.

    Takes ceil(log2 n) rounds and n-1 messages.  The root sends ceil(log2 n) S
    bytes.  Thakur, Rabenseifner and Gropp 2005.
    """
    n, r = members(group, src)
    v = (r - src) % n
    for have in doublings(n):
        if v < have and v + have < n:
            dist.send(tensor, group=group, group_dst=(r + have) % n)
        elif have <= v < 2 * have:
            dist.recv(tensor, group=group, group_src=(r - have) % n)


# The root cuts, and sends to each rank its shard and no other.
#
#     step   root 0 sends
#     0      shard 1 -> 1
#     1      shard 2 -> 2
#     2      shard 3 -> 3         shard 0 is copied, it does not travel
def scatter(tensor, scatter_list=None, src=0, group=None):
    """Copy shard i of rank `src`'s list into `tensor` of rank i.

    Takes n-1 rounds, and the root sends all shards but its own.  Shards may
    differ in size, and each receiver's tensor has the size of its shard.  An
    empty shard does not travel.  Only the root has a list; it is not changed.
    """
    n, r = members(group, src)
    check_list(scatter_list, r == src, n)
    if r == src:
        for i in [(src + k) % n for k in range(1, n)]:
            if scatter_list[i].numel() > 0:
                dist.send(scatter_list[i], group=group, group_dst=i)
        copy_own(scatter_list[src], tensor)
    elif tensor.numel() > 0:
        dist.recv(tensor, group=group, group_src=src)


# The scatter with its arrows reversed.
#
#     step   root 0 receives
#     0      shard 1 <- 1
#     1      shard 2 <- 2
#     2      shard 3 <- 3
def gather(tensor, gather_list=None, dst=0, group=None):
    """Copy `tensor` of rank i into entry i of rank `dst`'s list.

    Takes n-1 rounds, and the root receives all tensors but its own.  Tensors
    may differ in size, and the entries of the list have their sizes.  An empty
    tensor does not travel.  No tensor is changed; only the root has a list.
    """
    n, r = members(group, dst)
    check_list(gather_list, r == dst, n)
    if r == dst:
        for i in [(dst + k) % n for k in range(1, n)]:
            if gather_list[i].numel() > 0:
                dist.recv(gather_list[i], group=group, group_src=i)
        copy_own(tensor, gather_list[dst])
    elif tensor.numel() > 0:
        dist.send(tensor, group=group, group_dst=dst)


# The flat broadcast with its arrows reversed: the root receives and adds.
@torch.no_grad()
def flat_reduce(tensor, dst=0, group=None):
    """Sum `tensor` over all ranks into rank `dst`, one rank after the other.

    Takes n-1 rounds.  The root receives (n-1) S bytes into one spare tensor.
    The other ranks keep their tensors; torch leaves those undefined.
    """
    n, r = members(group, dst)
    if r != dst:
        dist.send(tensor, group=group, group_dst=dst)
        return
    incoming = torch.empty_like(tensor)
    for k in range(1, n):
        dist.recv(incoming, group=group, group_src=(dst + k) % n)
        tensor += incoming  # partial sum of the root and k other ranks


# The tree broadcast read backwards: last step first, with reversed arrows.
#
#     step   receive           send their sums
#     0      0 1 2 3           4 -> 0   5 -> 1   6 -> 2   7 -> 3
#     1      0 1               2 -> 0   3 -> 1
#     2      0                 1 -> 0
@torch.no_grad()
def tree_reduce(tensor, dst=0, group=None):
    """Sum `tensor` over all ranks into rank `dst`, along a binomial tree.

    Takes ceil(log2 n) rounds and n-1 messages of S bytes.  A rank that only
    sends needs no spare tensor, and one that receives needs up to two.  The
    other ranks keep their tensors.
    """
    n, r = members(group, dst)
    v, total = (r - dst) % n, tensor
    for half in reversed(doublings(n)):
        if v < half and v + half < n:
            incoming = torch.empty_like(tensor)
            dist.recv(incoming, group=group, group_src=(r + half) % n)
            total = incoming.add_(total)  # partial sum, in the new memory
        elif half <= v < 2 * half:
            dist.send(total, group=group, group_dst=(r - half) % n)
    if r == dst:
        tensor.copy_(total)


# Chunk i starts at rank i+1, collects one term per step, and ends at rank i.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0      3 ->      0 ->      1 ->      2 ->     rank r sends chunk r-1,
#     1      2 ->      3 ->      0 ->      1 ->     then the chunk that it
#     2      1 ->      2 ->      3 ->      0 ->     has just added to
#     end    0         1         2         3        is complete here
@torch.no_grad()
def ring_reduce_scatter(chunks, group=None):
    """Sum chunk r over all ranks into chunk r of rank r, in place.

    `chunks` is a list of n tensors, usually views of one tensor.  They may
    differ in size and be empty.  Afterwards the other chunks hold partial
    sums.  Takes n-1 rounds.  Rank r sends all chunks but r and allocates one
    spare chunk.  First half of the ring of Patarasuk and Yuan 2009.
    """
    n, r = members(group)
    check_list(chunks, True, n)
    spare = chunks[0].new_empty(max(chunk.numel() for chunk in chunks))
    for k in range(n - 1):
        mine, theirs = chunks[(r - k - 1) % n], chunks[(r - k - 2) % n]
        incoming = spare[: theirs.numel()].view(theirs.shape)
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n, group)
        theirs += incoming  # partial sum of k+2 ranks


# Every chunk travels once around the ring, and every rank keeps a copy.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0      0 ->      1 ->      2 ->      3 ->     rank r sends chunk r,
#     1      3 ->      0 ->      1 ->      2 ->     then the chunk that
#     2      2 ->      3 ->      0 ->      1 ->     has just arrived
def ring_all_gather(chunks, group=None):
    """Copy chunk i of rank i to all ranks, in place.

    `chunks` is a list of n tensors, which may differ in size and be empty.
    Takes n-1 rounds.  Rank r sends all chunks but r+1 and allocates nothing.
    """
    n, r = members(group)
    check_list(chunks, True, n)
    for k in range(n - 1):
        mine, theirs = chunks[(r - k) % n], chunks[(r - k - 1) % n]
        exchange(mine, (r + 1) % n, theirs, (r - 1) % n, group)


def reduce_scatter(output, input_list, group=None):
    """Sum input r over all ranks into `output` of rank r.

    The inputs are not changed, since the ring works on a copy of them.
    """
    chunks = [chunk.clone() for chunk in input_list]
    ring_reduce_scatter(chunks, group)
    copy_own(chunks[dist.get_rank(group)], output)


def all_gather(tensor_list, tensor, group=None):
    """Copy `tensor` of rank i into entry i of every rank's list.

    The entries have the sizes of the tensors, the same on all ranks.
    """
    n, r = members(group)
    check_list(tensor_list, True, n)
    copy_own(tensor, tensor_list[r])
    ring_all_gather(tensor_list, group)


# In step k every rank sends to the rank k to the right of it.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     1      to 1      to 2      to 3      to 0
#     2      to 2      to 3      to 0      to 1
#     3      to 3      to 0      to 1      to 2
def all_to_all(output_list, input_list, group=None):
    """Copy input r of rank i into output i of rank r.

    Takes n-1 rounds.  Rank r sends each input but its own to a different rank.
    Sizes may differ.  The inputs are not changed.
    """
    n, r = members(group)
    check_list(input_list, True, n)
    check_list(output_list, True, n)
    copy_own(input_list[r], output_list[r])
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        exchange(input_list[dst], dst, output_list[src], src, group)


def doublings(n):
    """Return 1, 2, 4, ... below n: the ranks served before each tree step."""
    return [2**k for k in range((n - 1).bit_length())]


def members(group, root=0):
    """Return (size of the group, this rank's number in it).

    Raises ValueError unless this rank and the root belong to the group.
    """
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r < 0:
        raise ValueError("This rank is not in the group. Only members call.")
    if root not in range(n):
        raise ValueError(f"The root is a rank from 0 to {n - 1}, not {root}.")
    return n, r


def check_list(tensors, wanted, n):
    """Check that the list has n tensors where it is wanted, and else none.

    Raises ValueError.
    """
    count = 0 if tensors is None else len(tensors)
    if wanted and count != n:
        raise ValueError(f"{n} ranks need a list of {n} tensors, not {count}.")
    if not wanted and count > 0:
        raise ValueError("Only the root gives a list of tensors.")


@torch.no_grad()
def copy_own(mine, place):
    """Copy into `place` what a rank gives to itself and does not send.

    Raises ValueError unless both have the same number of elements.
    """
    if mine.numel() != place.numel():
        raise ValueError(
            f"A rank's own shard has {mine.numel():,} elements, but the "
            f"tensor for it has {place.numel():,}: make them equal."
        )
    place.copy_(mine.reshape(place.shape))
