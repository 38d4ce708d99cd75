"""Seven collectives from messages: who holds which piece before, and who after.

Three ranks hold A, B and C; A1 is piece 1 of A, and +1 is the sum of A1, B1 and C1:

                      before                        after
                      rank 0    rank 1    rank 2    rank 0    rank 1    rank 2
    broadcast         A         B         C         A         A         A
    scatter           A0 A1 A2  .         .         A0        A1        A2
    gather            A         B         C         A B C     .         .
    reduce            A         B         C         A+B+C     B         C
    all-gather        A         B         C         A B C     A B C     A B C
    reduce-scatter    A0 A1 A2  B0 B1 B2  C0 C1 C2  +0        +1        +2
    all-to-all        A0 A1 A2  B0 B1 B2  C0 C1 C2  A0 B0 C0  A1 B1 C1  A2 B2 C2

n ranks, r this rank, k the step.  Ranks in arguments are ranks of the group.  All work
in place and return None, like torch's.  Tensors are contiguous.  One rank sends no
message.
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
    """`tensor` of every rank equals that of rank `src`.

    n-1 rounds, and the root sends (n-1) S bytes.  The tensors have one size
    and dtype.  Raises ValueError where `src` is no rank of the group.
    """
    n, r = members(group, src)
    if r != src:
        dist.recv(tensor, group=group, group_src=src)
        return
    for i in _others(src, n):
        dist.send(tensor, group=group, group_dst=i)


# Everyone who has it passes it on.  Place v is v to the right of the root.
#
#     step   have it          send
#     0      0                0 -> 1
#     1      0 1              0 -> 2   1 -> 3
#     2      0 1 2 3          0 -> 4   1 -> 5   2 -> 6   3 -> 7
def tree_broadcast(tensor, src=0, group=None):
    """`tensor` of every rank equals that of rank `src`.

    ceil(log2 n) rounds, n-1 messages; the root sends ceil(log2 n) S bytes.
    The binomial tree (Thakur, Rabenseifner and Gropp 2005).
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
    """`tensor` of rank i is shard i of the list that rank `src` has.

    Shards may differ in size: each receiver's tensor says how much comes.
    Empty ones do not travel.  The root sends all but its own shard, in n-1
    rounds.  The list stays as it was; the other ranks give none.
    """
    n, r = members(group, src)
    _check_list(scatter_list, r == src, n)
    if r == src:
        for i in _others(src, n):
            if scatter_list[i].numel() > 0:
                dist.send(scatter_list[i], group=group, group_dst=i)
        _copy_own(scatter_list[src], tensor)
    elif tensor.numel() > 0:
        dist.recv(tensor, group=group, group_src=src)


# The scatter with its arrows turned round.
#
#     step   root 0 receives
#     0      shard 1 <- 1
#     1      shard 2 <- 2
#     2      shard 3 <- 3
def gather(tensor, gather_list=None, dst=0, group=None):
    """Entry i of the list on rank `dst` is the tensor of rank i.

    Tensors may differ in size: the entries of the list say how much comes.
    Empty ones do not travel.  n-1 rounds; the root receives all but its own.
    The tensors stay as they were; the other ranks give no list.
    """
    n, r = members(group, dst)
    _check_list(gather_list, r == dst, n)
    if r == dst:
        for i in _others(dst, n):
            if gather_list[i].numel() > 0:
                dist.recv(gather_list[i], group=group, group_src=i)
        _copy_own(tensor, gather_list[dst])
    elif tensor.numel() > 0:
        dist.send(tensor, group=group, group_dst=dst)


# The flat broadcast with its arrows turned round: the root receives, and adds.
@torch.no_grad()
def flat_reduce(tensor, dst=0, group=None):
    """`tensor` of rank `dst` is the sum over ranks; the others keep theirs.

    n-1 rounds, and the root receives (n-1) S bytes into one spare tensor.
    torch leaves undefined what the other ranks hold afterwards.
    """
    n, r = members(group, dst)
    if r != dst:
        dist.send(tensor, group=group, group_dst=dst)
        return
    incoming = torch.empty_like(tensor)
    for i in _others(dst, n):
        dist.recv(incoming, group=group, group_src=i)
        tensor += incoming  # partial sum of the root and the ranks up to i


# The tree broadcast, read backwards: last step first, arrows turned round.
#
#     step   wait              send their sums
#     0      0 1 2 3           4 -> 0   5 -> 1   6 -> 2   7 -> 3
#     1      0 1               2 -> 0   3 -> 1
#     2      0                 1 -> 0
@torch.no_grad()
def tree_reduce(tensor, dst=0, group=None):
    """`tensor` of rank `dst` is the sum over ranks; the others keep theirs.

    ceil(log2 n) rounds, n-1 messages of S bytes.  A rank that receives needs
    at most two spare tensors, one that only sends needs none.
    """
    n, r = members(group, dst)
    v, total = (r - dst) % n, tensor
    for half in reversed(doublings(n)):
        if v < half and v + half < n:
            incoming = torch.empty_like(tensor)
            dist.recv(incoming, group=group, group_src=(r + half) % n)
            total = incoming.add_(total)  # partial sum, in what came
        elif half <= v < 2 * half:
            dist.send(total, group=group, group_dst=(r - half) % n)
    if r == dst:
        tensor.copy_(total)


# Chunk i starts at rank i+1, collects one term per step, and ends at rank i.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0      3 ->      0 ->      1 ->      2 ->     each sends chunk r-1
#     1      2 ->      3 ->      0 ->      1 ->     then what it has added to
#     2      1 ->      2 ->      3 ->      0 ->
#     end    0         1         2         3        is complete here
@torch.no_grad()
def ring_reduce_scatter(chunks, group=None):
    """Chunk r of rank r becomes the sum over ranks, in place.

    `chunks` is a list of n tensors, as a rule views of one; they may differ in
    size and be empty.  The other chunks hold partial sums afterwards.  n-1
    rounds; rank r sends all but chunk r, and needs one spare chunk of memory.
    The ring of Patarasuk and Yuan 2009, first half.
    """
    n, r = members(group)
    _check_list(chunks, True, n)
    spare = chunks[0].new_empty(max(chunk.numel() for chunk in chunks))
    for k in range(n - 1):
        mine, theirs = chunks[(r - k - 1) % n], chunks[(r - k - 2) % n]
        incoming = spare[: theirs.numel()].view(theirs.shape)
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n, group)
        theirs += incoming  # partial sum of k+2 ranks


# The reduce-scatter, read backwards in a mirror.  Nothing is added.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0      0 ->      1 ->      2 ->      3 ->     each sends its own
#     1      3 ->      0 ->      1 ->      2 ->     then what has just come
#     2      2 ->      3 ->      0 ->      1 ->
def ring_all_gather(chunks, group=None):
    """Chunk i of every rank equals chunk i of rank i, in place.

    `chunks` is a list of n tensors; they may differ in size and be empty.
    n-1 rounds; rank r sends all but chunk r+1.  No spare memory.
    """
    n, r = members(group)
    _check_list(chunks, True, n)
    for k in range(n - 1):
        mine, theirs = chunks[(r - k) % n], chunks[(r - k - 1) % n]
        exchange(mine, (r + 1) % n, theirs, (r - 1) % n, group)


def reduce_scatter(output, input_list, group=None):
    """`output` of rank r is the sum over ranks of their input r.

    The inputs stay as they were: the ring works on a copy of them.
    """
    chunks = [chunk.clone() for chunk in input_list]
    ring_reduce_scatter(chunks, group)
    _copy_own(chunks[dist.get_rank(group)], output)


def all_gather(tensor_list, tensor, group=None):
    """Entry i of every rank's list is the tensor of rank i.

    The entries say how much comes from whom; all ranks give the same sizes.
    """
    n, r = members(group)
    _check_list(tensor_list, True, n)
    _copy_own(tensor, tensor_list[r])
    ring_all_gather(tensor_list, group)


# In step k everyone sends k places to the right.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     1      to 1      to 2      to 3      to 0     each its input for it
#     2      to 2      to 3      to 0      to 1
#     3      to 3      to 0      to 1      to 2
def all_to_all(output_list, input_list, group=None):
    """Output i of rank r is input r of rank i.

    Sizes may differ, and the inputs stay as they were.  n-1 rounds; rank r
    sends all but input r, each to another rank.
    """
    n, r = members(group)
    _check_list(input_list, True, n)
    _check_list(output_list, True, n)
    _copy_own(input_list[r], output_list[r])
    for k in range(1, n):
        dst, src = (r + k) % n, (r - k) % n
        exchange(input_list[dst], dst, output_list[src], src, group)


def _others(root, n):
    """All ranks but the root, from its right neighbour round the circle."""
    return [(root + k) % n for k in range(1, n)]


def doublings(n):
    """1, 2, 4, ... below n: how many have it before each step of a tree."""
    return [2**k for k in range((n - 1).bit_length())]


def members(group, root=0):
    """(size of the group, this rank's number in it); the root is in it."""
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r < 0:
        raise ValueError("This rank is not in the group. Only members call.")
    if root not in range(n):
        raise ValueError(f"The root is a rank from 0 to {n - 1}, not {root}.")
    return n, r


def _check_list(tensors, wanted, n):
    """There is one tensor per rank where a list is wanted, none elsewhere."""
    count = 0 if tensors is None else len(tensors)
    if wanted and count != n:
        raise ValueError(f"{n} ranks need a list of {n} tensors, not {count}.")
    if not wanted and count > 0:
        raise ValueError("Only the root gives a list of tensors.")


@torch.no_grad()
def _copy_own(mine, place):
    """What a rank gives to itself is copied; it never travels."""
    if mine.numel() != place.numel():
        raise ValueError(
            f"A rank's own shard has {mine.numel():,} elements, but the "
            f"tensor for it has {place.numel():,}: make them equal."
        )
    place.copy_(mine.reshape(place.shape))
