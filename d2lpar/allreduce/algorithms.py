"""All-reduce in many ways: every rank ends with the sum over ranks.

    algorithm             rounds                bytes of the busiest rank
    naive                 2 (n-1)               (n-1) S
    tree                  2 ceil(log2 n)        ceil(log2 n) S
    direct                n-1                   (n-1) S
    ring                  2 (n-1)               2 (n-1)/n S
    recursive doubling    log2 n                log2 n S
    halving-doubling      2 log2 n              2 (n-1)/n S
    hierarchical          2 (m-1) + 2 (n/m-1)   2 (n-1)/n S, m ranks in a node
    lower bound           ceil(log2 n)          2 (n-1)/n S

n ranks, r this rank, k the step, S bytes; `costs.py` has the exact forms.  All work in
place and return None, and each can stand for `dist.all_reduce` (sum).  Sizes need not
divide, and every rank ends with the same bits.
"""

import contextlib
from itertools import accumulate

import torch
import torch.distributed as dist

from ..messages import exchange, start_exchange
from ..scatter import (
    doublings,
    flat_broadcast,
    flat_reduce,
    members,
    ring_all_gather,
    ring_reduce_scatter,
    tree_broadcast,
    tree_reduce,
)


# Everything to rank 0, and the sum back.
#
#     step   moves
#     0-2    1 -> 0   2 -> 0   3 -> 0     one after the other, by one port
#     3-5    0 -> 1   0 -> 2   0 -> 3
def naive_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, by way of rank 0.

    2(n-1) rounds; rank 0 sends (n-1) S bytes.  D2L's `allreduce`, 13.5.
    """
    with flat_view(tensor) as x:
        flat_reduce(x, 0, group)
        flat_broadcast(x, 0, group)


# Up the tree, and down again.
#
#     step   moves
#     0      2 -> 0   3 -> 1
#     1      1 -> 0
#     2      0 -> 1
#     3      0 -> 2   1 -> 3
def tree_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, by way of a tree.

    2 ceil(log2 n) rounds of S bytes; the root sends ceil(log2 n) S.
    """
    with flat_view(tensor) as x:
        tree_reduce(x, 0, group)
        tree_broadcast(x, 0, group)


# Everyone sends everything to everyone.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     1      to 1      to 2      to 3      to 0
#     2      to 2      to 3      to 0      to 1
#     3      to 3      to 0      to 1      to 2
def direct_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, added in their order.

    n-1 rounds; every rank sends (n-1) S bytes, and holds n tensors.  Floats
    are rounded as in a loop over the ranks, since all terms are there first.
    """
    n, r = members(group)
    with flat_view(tensor) as x:
        terms = [x if i == r else torch.empty_like(x) for i in range(n)]
        for k in range(1, n):
            src = (r - k) % n
            exchange(x, (r + k) % n, terms[src], src, group)
        total = terms[0].clone()
        for term in terms[1:]:
            total += term
        x.copy_(total)


# Chunk i collects its terms on one way round, and the sum goes round again.
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0-2    3 2 1     0 3 2     1 0 3     2 1 0     sent; the neighbour adds
#     then   has 0     has 1     has 2     has 3     complete
#     3-5    0 3 2     1 0 3     2 1 0     3 2 1     sent; the neighbour copies
def ring_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, by a ring of chunks.

    2(n-1) rounds; every rank sends 2(n-1)/n S bytes, the least possible, and
    needs one spare chunk.  Patarasuk and Yuan 2009, section 3.
    """
    n, _ = members(group)
    with flat_view(tensor) as x:
        chunks = x.tensor_split(n)  # n views of [elements / n]
        ring_reduce_scatter(chunks, group)
        ring_all_gather(chunks, group)


# A chunk travels in pieces.  One is added while the next is on its way.
#
#     wire   piece 0    piece 1    piece 2
#     rank              add 0      add 1      add 2
def segmented_ring_allreduce(tensor, group=None, segment=2**20):
    """`tensor` of every rank is the sum over ranks, by a ring in pieces.

    A piece has `segment` elements at most.  Same bytes as the ring, more
    messages, two spare pieces.  Open MPI has it as `ring_segmented`.
    """
    if segment < 1:
        raise ValueError(f"A segment has at least 1 element, not {segment}.")
    n, r = members(group)
    with flat_view(tensor) as x:
        chunks = x.tensor_split(n)
        pieces = max(1, -(-chunks[0].numel() // segment))  # of each chunk
        cut = [chunk.tensor_split(pieces) for chunk in chunks]
        spares = x.new_empty(2, cut[0][0].numel())
        dst, src = (r + 1) % n, (r - 1) % n
        for k in range(n - 1):
            mine, theirs = cut[(r - k - 1) % n], cut[(r - k - 2) % n]
            _add_in_pieces(mine, theirs, spares, dst, src, group)
        ring_all_gather(chunks, group)


def _add_in_pieces(mine, theirs, spares, dst, src, group):
    """What comes from `src` is added, while the next is on its way."""
    waiting = []
    for j, (piece, place) in enumerate(zip(mine, theirs, strict=True)):
        incoming = spares[j % 2][: place.numel()]
        works = start_exchange(piece, dst, incoming, src, group)
        for there, arrived in waiting:
            there += arrived  # now the wire is busy with the next piece
        for work in works:
            work.wait()
        waiting = [(place, incoming)]
    for there, arrived in waiting:
        there += arrived


# The distance doubles, and so does the number of terms that a rank has.
#
#     step   rank 0    1    2    3    4       4 is beyond the power of two
#     fold   from 4              to 0
#     0      with 1    0    3    2
#     1      with 2    3    0    1
#     back   to 4                from 0
def recursive_doubling_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks; partners exchange it all.

    log2 n rounds of S bytes, the fewest possible; two more where n is no power
    of two.  Both partners add the same two numbers, so their bits are equal.
    Thakur, Rabenseifner and Gropp 2005, section 4.5.
    """
    _, r = members(group)
    with flat_view(tensor) as x, _power_of_two(x, group) as p:
        incoming = torch.empty_like(x)
        for d in doublings(p) if r < p else ():
            exchange(x, r ^ d, incoming, r ^ d, group)
            x += incoming  # partial sum of 2d ranks


# Halve what is left, then double it again.  Chunks that a rank works on:
#
#     step   rank 0    rank 1    rank 2    rank 3
#     0      01        01        23        23        with r xor 2, gives others
#     1      0         1         2         3         with r xor 1: complete
#     2      01        01        23        23        with r xor 1
#     3      0123      0123      0123      0123      with r xor 2
def halving_doubling_allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks: few rounds and few bytes.

    2 log2 n rounds and 2(n-1)/n S bytes; where n is no power of two, two more
    rounds of S.  Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, 4.5.
    """
    _, r = members(group)
    with flat_view(tensor) as x, _power_of_two(x, group) as p:
        ends = [0, *accumulate(map(len, x.tensor_split(p)))]  # p + 1 borders
        spare = x.new_empty(ends[p // 2])
        for d in reversed(doublings(p)) if r < p else ():
            mine, theirs = _halves(x, ends, r, d)
            incoming = spare[: len(mine)]
            exchange(theirs, r ^ d, incoming, r ^ d, group)
            mine += incoming
        for d in doublings(p) if r < p else ():
            mine, theirs = _halves(x, ends, r, d)
            exchange(mine, r ^ d, theirs, r ^ d, group)


def _halves(x, ends, r, d):
    """(this rank's d chunks, those of its partner r^d), views of x."""
    first, other = r // d * d, (r ^ d) // d * d
    return x[ends[first] : ends[first + d]], x[ends[other] : ends[other + d]]


# Two nodes with two ranks each.  Each arrow carries half of the tensor.
#
#     inside the nodes     0 <-> 1     2 <-> 3     reduce-scatter
#     between them         0 <-> 2     1 <-> 3     all-reduce of the own chunk
#     inside the nodes     0 <-> 1     2 <-> 3     all-gather
def hierarchical_allreduce(tensor, group):
    """`tensor` of every rank is the sum over ranks: in nodes, then between.

    `group` is the pair that `node_groups` makes.  A rank sends only its own
    chunk to other nodes, so a node sends 2(N-1)/N S bytes, N nodes.
    """
    if not isinstance(group, tuple) or len(group) != 2:
        raise TypeError(
            "hierarchical_allreduce needs the pair that node_groups(per_node) "
            f"makes, not {type(group).__name__}."
        )
    inner, outer = group
    m, r = members(inner)
    with flat_view(tensor) as x:
        chunks = x.tensor_split(m)
        ring_reduce_scatter(chunks, inner)  # chunk r: sum over this node
        ring_allreduce(chunks[r], outer)  # chunk r: sum over all ranks
        ring_all_gather(chunks, inner)


def split_into_nodes(n, per_node):
    """List the ranks of each node; the first has the ranks 0 to per_node-1.

    Raises ValueError if the n ranks do not make nodes of `per_node`.
    """
    if per_node < 1 or n % per_node:
        raise ValueError(
            f"{n} ranks make no nodes of {per_node}: use a divisor of {n}."
        )
    return [list(range(i, i + per_node)) for i in range(0, n, per_node)]


def node_groups(per_node):
    """(group of this rank's node, group of its peers in the other nodes).

    All ranks call it, once, because a group is made by all ranks together.
    """
    n, r = members(None)
    nodes = split_into_nodes(n, per_node)
    peers = zip(*nodes, strict=True)
    inner = [dist.new_group(ranks) for ranks in nodes]
    outer = [dist.new_group(list(ranks)) for ranks in peers]
    return inner[r // per_node], outer[r % per_node]


@contextlib.contextmanager
def flat_view(tensor):
    """A flat view of the tensor, or of a copy that is copied back at last."""
    check_tensor(tensor)
    x = tensor.detach()
    flat = x.contiguous().view(-1)
    yield flat
    if not x.is_contiguous():
        x.copy_(flat.view(x.shape))


@contextlib.contextmanager
def _power_of_two(x, group):
    """p ranks, a power of two, have all terms inside; afterwards all the sum.

    Rank p+i gives its term to rank i before, and gets the sum from it after.
    """
    n, r = members(group)
    p = 2 ** (n.bit_length() - 1)
    if r >= p:
        dist.send(x, group=group, group_dst=r - p)
    elif r + p < n:
        incoming = torch.empty_like(x)
        dist.recv(incoming, group=group, group_src=r + p)
        x += incoming
        del incoming  # not needed any more, and as large as x
    yield p
    if r >= p:
        dist.recv(x, group=group, group_src=r - p)
    elif r + p < n:
        dist.send(x, group=group, group_dst=r + p)


def check_tensor(tensor):
    """It is a tensor; TypeError where it is none."""
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise TypeError(f"An all-reduce needs a tensor, not {kind}.")
