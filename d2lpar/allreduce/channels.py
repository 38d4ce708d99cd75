"""All-reduce over several channels at once, the way NCCL does it.

A channel carries a slice of the tensor along a way of its own.  Two kinds of ways:

    rings   each ring leaves a node through another network card
    trees   two binary trees; who is a leaf of one is an inner node of the other

Both keep every port busy.  The rings send as few bytes as any algorithm can; the trees
send a little more, in a number of rounds that grows with log n and not with n.
"""

import torch
import torch.distributed as dist

from ..messages import start_exchange
from ..scatter import members
from .algorithms import flat_view, split_into_nodes


# Two nodes of three GPUs, three rings: each crosses by other ranks.
#
#     ring 0   0 1 2 | 3 4 5 |     leaves by rank 2, enters by rank 3
#     ring 1   1 2 0 | 4 5 3 |     leaves by rank 0, enters by rank 4
#     ring 2   2 0 1 | 5 3 4 |     leaves by rank 1, enters by rank 5
def node_rings(n, per_node):
    """List the orders of `per_node` rings; each leaves a node by its own rank.

    Raises ValueError if the n ranks do not make nodes of `per_node`.
    """
    nodes = split_into_nodes(n, per_node)
    return [
        [rank for node in nodes for rank in node[k:] + node[:k]]
        for k in range(per_node)
    ]


def multi_ring_allreduce(tensor, orders, group=None):
    """Sum `tensor` over all ranks, in place; slice c goes round `orders[c]`.

    Every order lists all ranks of the group.  The rings move at the same time;
    each rank sends 2(n-1)/n S bytes in all, as with one ring.
    """
    n, r = members(group)
    if any(sorted(order) != list(range(n)) for order in orders) or not orders:
        raise ValueError(f"A ring has to visit each of the {n} ranks once.")
    with flat_view(tensor) as x:
        slices = x.tensor_split(len(orders))
        rings = [
            (order, order.index(r), part.tensor_split(n))
            for order, part in zip(orders, slices, strict=True)
        ]
        for k in range(2 * (n - 1)):
            steps = [_start_step(k, *ring, group) for ring in rings]
            for works, place, incoming in steps:
                _wait(works)
                if k < n - 1:
                    place += incoming


def _start_step(k, order, i, chunks, group):
    """Start step k of one ring: (works, chunk that receives, what arrives)."""
    n = len(order)
    mine, place = chunks[(i - k - 1) % n], chunks[(i - k - 2) % n]
    incoming = torch.empty_like(place) if k < n - 1 else place
    right, left = order[(i + 1) % n], order[i - 1]
    return start_exchange(mine, right, incoming, left, group), place, incoming


# Eight ranks.  The second tree is the first one, moved by one rank.
#
#     first tree           0                   second tree          7
#                          4                                        3
#                     2         6                              1         5
#                   1   3     5   7                          0   2     4   6
def binary_tree(n):
    """List the parent of each of n positions (None at the root, position 0).

    Odd positions are leaves, nobody has more than two children, and the depth
    is at most ceil(log2 n).
    """
    parents = [None] * n

    def hang(low, high, parent):
        if low < high:
            middle = max(range(low, high), key=lambda p: p & -p or n)
            parents[middle] = parent
            hang(low, middle, middle)
            hang(middle + 1, high, middle)

    hang(0, n, None)
    return parents


def tree_neighbours(r, n, shift):
    """(parent, children) of rank r in the tree moved by `shift` ranks."""
    parents = binary_tree(n)
    at = (r + shift) % n
    above = None if parents[at] is None else (parents[at] - shift) % n
    return above, [(p - shift) % n for p in range(n) if parents[p] == at]


def tree_groups():
    """Make a group of all ranks for each of the two trees.

    In a group of its own, a tree's message to a parent never meets the other
    tree's message from it, so NCCL may run a pair's messages in turn.
    All ranks call it, once.
    """
    ranks = list(range(dist.get_world_size()))
    return dist.new_group(ranks), dist.new_group(ranks)


def double_tree_allreduce(tensor, groups, segment=2**16):
    """Sum `tensor` over all ranks, in place, each half over a tree of its own.

    `groups` is the pair that `tree_groups` makes.  Pieces of at most `segment`
    elements follow each other up the trees, then down again, over ceil(log2 n)
    levels.  A rank talks to four others at most and sends at most 2 S bytes.
    Sanders, Speck and Traeff 2009, section 3.
    """
    n, r = members(groups[0])
    with flat_view(tensor) as x:
        trees = [
            (*tree_neighbours(r, n, t), _pieces(half, segment), groups[t])
            for t, half in enumerate(x.tensor_split(2))
        ]
        trees.sort(key=lambda tree: len(tree[1]))  # a leaf can send at once
        _wait([work for tree in trees for work in _up(*tree)])
        trees.reverse()  # but others wait for what an inner node hands on
        coming = [_from_parent(*tree) for tree in trees]
        ways = zip(trees, coming, strict=True)
        _wait([work for tree, sums in ways for work in _down(sums, *tree)])


def _pieces(half, segment):
    if segment < 1:
        raise ValueError(f"A segment has at least 1 element, not {segment}.")
    return half.tensor_split(max(1, -(-len(half) // segment)))


def _up(parent, children, pieces, group):
    """Add the children's terms to each piece, and start to send it up."""
    for piece in pieces:
        incoming = [torch.empty_like(piece) for _ in children]
        pairs = zip(incoming, children, strict=True)
        _wait([dist.irecv(x, group=group, group_src=src) for x, src in pairs])
        for term in incoming:
            piece += term
        if parent is not None:
            yield dist.isend(piece, group=group, group_dst=parent)


def _from_parent(parent, children, pieces, group):
    """Start to receive the sum of each piece; the root has it already."""
    if parent is None:
        return []
    return [dist.irecv(x, group=group, group_src=parent) for x in pieces]


def _down(coming, parent, children, pieces, group):
    """Start to send each piece to the children as soon as it is there."""
    for j, piece in enumerate(pieces):
        _wait(coming[j : j + 1])
        for child in children:
            yield dist.isend(piece, group=group, group_dst=child)


def _wait(works):
    for work in works:
        work.wait()
