"""05.2 Broadcast something big: broadcast_big(x, root), in place."""

import time

import torch
import torch.distributed as dist

from d2lpar import allreduce, scatter
from d2lpar.messages import exchange
from zoo import right, wrong


def places(root):
    """(ranks, this rank, its place to the right of the root)."""
    n, r = dist.get_world_size(), dist.get_rank()
    return n, r, (r - root) % n


@right
def halves_down_a_tree_then_the_ring(x, root):
    n, r, v = places(root)
    pieces = x.tensor_split(n)
    starts = [0, *torch.tensor([len(p) for p in pieces]).cumsum(0).tolist()]
    half = 2 ** (n - 1).bit_length() // 2
    while half > 0:
        if v % (2 * half) == 0 and v + half < n:
            end = starts[min(v + 2 * half, n)]
            dist.send(x[starts[v + half] : end], (r + half) % n)
        elif v % (2 * half) == half:
            end = starts[min(v + half, n)]
            dist.recv(x[starts[v] : end], (r - half) % n)
        half //= 2
    scatter.ring_all_gather([pieces[(i - root) % n] for i in range(n)])


def spread(x, bounds, low, high, root):
    """Place `low` has pieces low to high-1; afterwards each place has its own."""
    n, r, v = places(root)
    while high - low > 1:
        middle = low + (high - low + 1) // 2
        upper = x[bounds[middle] : bounds[high]]
        if v == low:
            dist.send(upper, (root + middle) % n)
        if v == middle:
            dist.recv(upper, (root + low) % n)
        low, high = (low, middle) if v < middle else (middle, high)


@right
def recursive_halves_and_a_ring_to_the_left(x, root):
    """Any split in two will do; and nobody sends the root what it has."""
    n, r, v = places(root)
    bounds = [i * len(x) // n for i in range(n + 1)]
    spread(x, bounds, 0, n, root)
    for k in range(n - 1):
        mine, theirs = (v + k) % n, (v + k + 1) % n
        works = []
        if v != 1:  # the root is to the left of place 1
            leaving = x[bounds[mine] : bounds[mine + 1]]
            works.append(dist.isend(leaving, (r - 1) % n) if n > 1 else None)
        if v != 0:
            coming = x[bounds[theirs] : bounds[theirs + 1]]
            works.append(dist.irecv(coming, (r + 1) % n))
        for work in filter(None, works):
            work.wait()


@right
def doubling_back_where_n_is_a_power_of_two(x, root):
    """What the tree has cut is put together by pairs: 2 log2 n rounds."""
    n, r, v = places(root)
    if n & (n - 1):
        return halves_down_a_tree_then_the_ring(x, root)
    bounds = [i * len(x) // n for i in range(n + 1)]
    spread(x, bounds, 0, n, root)
    d = 1
    while d < n:
        mine, theirs = v // d * d, (v ^ d) // d * d
        peer = ((v ^ d) + root) % n
        leaving = x[bounds[mine] : bounds[mine + d]]
        exchange(leaving, peer, x[bounds[theirs] : bounds[theirs + d]], peer)
        d *= 2


def a_pipeline(x, root, count):
    n, r, v = places(root)
    works = []
    for piece in x.tensor_split(count):
        if v > 0:
            dist.recv(piece, (r - 1) % n)
        if v < n - 1:
            works.append(dist.isend(piece, (r + 1) % n))
    for work in works:
        work.wait()


@wrong("chain")
def a_pipeline_of_n_pieces(x, root):
    a_pipeline(x, root, dist.get_world_size())


@wrong("few pieces")
def a_pipeline_of_as_many_pieces_as_rounds_allow(x, root):
    a_pipeline(x, root, (dist.get_world_size() - 1).bit_length() + 1)


@wrong("line")
def hand_it_on(x, root):
    n, r, v = places(root)
    if v > 0:
        dist.recv(x, (r - 1) % n)
    if v < n - 1:
        dist.send(x, (r + 1) % n)


@wrong("flat")
def one_to_all(x, root):
    n, r, v = places(root)
    if v > 0:
        dist.recv(x, root)
    else:
        for peer in range(n):
            if peer != root:
                dist.send(x, peer)


@wrong("tree")
def the_chapters_tree(x, root):
    scatter.tree_broadcast(x, root)


@wrong("one by one")
def scatter_and_all_gather(x, root):
    r = dist.get_rank()
    pieces = list(x.tensor_split(dist.get_world_size()))
    scatter.scatter(pieces[r], pieces if r == root else None, root)
    scatter.ring_all_gather(pieces)


@wrong("one by one")
def scatter_and_a_chain(x, root):
    """No rank gets what it has, yet the root still sends its pieces a second time."""
    n, r, v = places(root)
    pieces = x.tensor_split(n)
    if v == 0:
        for k in range(1, n):
            dist.send(pieces[k], (root + k) % n)
    else:
        dist.recv(pieces[v], root)
    for k in range(n - 1):
        works = []
        if v < n - 1:
            works.append(dist.isend(pieces[(v - k) % n], (r + 1) % n))
        if v > 0:
            works.append(dist.irecv(pieces[(v - 1 - k) % n], (r - 1) % n))
        for work in works:
            work.wait()


@wrong("root")
def always_from_rank_0(x, root):
    a_pipeline_of_n_pieces(x, 0)


@wrong("no way round")
def no_modulo(x, root):
    n, r = dist.get_world_size(), dist.get_rank()
    works = []
    for piece in x.tensor_split(n):
        if r > root:
            dist.recv(piece, r - 1)
        if root <= r < n - 1:
            works.append(dist.isend(piece, r + 1))
    for work in works:
        work.wait()


@wrong("tail")
def n_pieces_of_equal_size(x, root):
    n, r, v = places(root)
    size, works = len(x) // n, []
    for k in range(n):
        piece = x[k * size : (k + 1) * size]
        if v > 0:
            dist.recv(piece, (r - 1) % n)
        if v < n - 1:
            works.append(dist.isend(piece, (r + 1) % n))
    for work in works:
        work.wait()


@wrong("chain")
def receive_then_send(x, root):
    n, r, v = places(root)
    for piece in x.tensor_split(n):
        if v > 0:
            dist.recv(piece, (r - 1) % n)
        if v < n - 1:
            dist.send(piece, (r + 1) % n)


@wrong("chain")
def two_loops(x, root):
    n, r, v = places(root)
    for piece in x.tensor_split(n):
        if v > 0:
            dist.recv(piece, (r - 1) % n)
    for piece in x.tensor_split(n):
        if v < n - 1:
            dist.send(piece, (r + 1) % n)


@wrong("one by one")
def the_others_gather_among_themselves(x, root):
    """The root scatters all of it, and has no part in the ring after that."""
    n, r = dist.get_world_size(), dist.get_rank()
    others = [i for i in range(n) if i != root]
    if not others:
        return
    group = dist.new_group(others)
    pieces = list(x.tensor_split(n - 1))
    if r == root:
        scatter.scatter(x[:0], [*pieces[:root], x[:0], *pieces[root:]], root)
    else:
        scatter.scatter(pieces[others.index(r)], src=root)
        scatter.ring_all_gather(pieces, group)


@wrong("buffer")
def the_half_to_send_is_copied(x, root):
    if dist.get_rank() != root:
        y = torch.empty_like(x)
        halves_down_a_tree_then_the_ring(y, root)
        x.copy_(y)
    else:
        halves_down_a_tree_then_the_ring(x, root)


@wrong("not in place")
def returns_what_came(x, root):
    n, r, v = places(root)
    pieces, works = [p.clone() for p in x.tensor_split(n)], []
    for piece in pieces:
        if v > 0:
            dist.recv(piece, (r - 1) % n)
        if v < n - 1:
            works.append(dist.isend(piece, (r + 1) % n))
    for work in works:
        work.wait()
    return torch.cat(pieces)


@wrong("nothing moves")
def does_nothing(x, root):
    pass


@wrong("nothing moves")
def receives_into_a_copy(x, root):
    y = x.clone()
    a_pipeline_of_n_pieces(y, root)
    x = y


@wrong("too early")
def forwards_before_it_came(x, root):
    n, r, v = places(root)
    works = []
    for piece in x.tensor_split(n):
        if v > 0:
            works.append(dist.irecv(piece, (r - 1) % n))
        if v < n - 1:
            works.append(dist.isend(piece, (r + 1) % n))
    for work in works:
        work.wait()


@wrong("bytes")
def a_line_in_both_directions(x, root):
    n, r, v = places(root)
    near = (n + 1) // 2  # places 0 to near-1 are served to the right
    if 0 < v < near:
        dist.recv(x, (r - 1) % n)
    if v >= near and n > 1:
        dist.recv(x, (r + 1) % n)
    if v < near - 1:
        dist.send(x, (r + 1) % n)
    if (v == 0 or v > near) and n > 1 and near < n:
        dist.send(x, (r - 1) % n)


@wrong("to itself")
def the_root_scatters_to_all(x, root):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = list(x.tensor_split(n))
    works = []
    if r == root:
        works = [dist.isend(piece, i) for i, piece in enumerate(pieces)]
    dist.recv(pieces[r], root)
    for work in works:
        work.wait()
    scatter.ring_all_gather(pieces)


@wrong("all-reduce")
def zeros_and_the_fewest_rounds(x, root):
    if dist.get_rank() != root:
        x.zero_()
    allreduce.halving_doubling_allreduce(x)


@wrong("native collective")
def torch_broadcast(x, root):
    dist.broadcast(x, root)


@wrong("native collective")
def zeros_and_all_reduce(x, root):
    if dist.get_rank() != root:
        x.zero_()
    dist.all_reduce(x)


@wrong("all-reduce")
def zeros_and_the_courses_all_reduce(x, root):
    if dist.get_rank() != root:
        x.zero_()
    allreduce.ring_allreduce(x)


@wrong("hangs")
def the_circle_is_closed(x, root):
    n, r, v = places(root)
    for piece in x.tensor_split(n):
        if v > 0:
            dist.recv(piece, (r - 1) % n)
        dist.send(piece, (r + 1) % n) if n > 1 else None


@wrong("raises")
def a_name_that_is_not_there(x, root):
    return broadcast(x, root)  # noqa: F821


@wrong("error")
def never_ends(x, root):
    while True:
        time.sleep(0.01)


@wrong("buffer")
def the_tensor_is_copied_with_numpy(x, root):
    y = torch.from_numpy(x.numpy().copy())
    halves_down_a_tree_then_the_ring(y, root)
    x.copy_(y)


@wrong("places")
def gathers_by_rank(x, root):
    """The tree deals the pieces by places; the ring takes piece i to be rank i's."""
    n = dist.get_world_size()
    bounds = [i * len(x) // n for i in range(n + 1)]
    spread(x, bounds, 0, n, root)
    scatter.ring_all_gather([x[a:b] for a, b in zip(bounds, bounds[1:], strict=False)])


def tree_and_ring(x, root, pieces, to_the_end=False):
    n, r, v = places(root)
    bounds = [0, *torch.tensor([len(p) for p in pieces]).cumsum(0).tolist()]
    for d in [2**k for k in reversed(range((n - 1).bit_length()))]:
        low = v - v % (2 * d)
        if low + d < n and v in (low, low + d):
            end = bounds[n if to_the_end else min(low + 2 * d, n)]
            upper, there = x[bounds[low + d] : end], v == low
            (dist.send if there else dist.recv)(upper, (r + d if there else r - d) % n)
    scatter.ring_all_gather([pieces[(i - root) % n] for i in range(n)])


@wrong("chunk")
def as_many_chunks_as_there_are(x, root):
    tree_and_ring(x, root, x.chunk(dist.get_world_size()))


@wrong("bytes")
def halves_that_reach_to_the_end(x, root):
    """Not a tree of whole tensors, though the root of eight sends three tensors."""
    tree_and_ring(x, root, x.tensor_split(dist.get_world_size()), to_the_end=True)


@wrong("buffer")
def in_a_padded_copy(x, root):
    n = dist.get_world_size()
    padded = torch.cat([x, x.new_zeros(-len(x) % n)])
    tree_and_ring(padded, root, padded.tensor_split(n))
    x.copy_(padded[: len(x)])
