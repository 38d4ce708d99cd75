"""15.3 Which axis inside the node: best_order(sizes, per_node, sent)."""

import itertools

from d2lpar.mesh import Mesh
from zoo import right, wrong

AXES = "data", "pipeline", "tensor"
ORDERS = list(itertools.permutations(AXES))


def bytes_out(order, sizes, per_node, sent, ring=True):
    mesh, total = Mesh(*sizes, order=order), 0
    for axis, each in zip(AXES, sent, strict=True):
        for rank in range(mesh.ranks):
            group = mesh.members(axis, rank)
            k = group.index(rank) + 1
            if k < len(group) or ring:
                total += each * (rank // per_node != group[k % len(group)] // per_node)
    return total


@right
def all_six(sizes, per_node, sent):
    return min(ORDERS, key=lambda order: bytes_out(order, sizes, per_node, sent))


@right
def sorted_pairs(sizes, per_node, sent):
    costs = [bytes_out(order, sizes, per_node, sent) for order in ORDERS]
    return list(ORDERS[min(range(6), key=lambda k: (costs[k], k))])


@right
def strides_alone(sizes, per_node, sent):
    """No mesh: ranks are counted with the axes' strides."""
    size, found = dict(zip(AXES, sizes, strict=True)), None
    n = sizes[0] * sizes[1] * sizes[2]
    for order in ORDERS:
        stride, step = 1, {}
        for axis in reversed(order):
            step[axis], stride = stride, stride * size[axis]
        total = 0
        for axis, each in zip(AXES, sent, strict=True):
            for r in range(n):
                at = r // step[axis] % size[axis]
                to = r + ((at + 1) % size[axis] - at) * step[axis]
                total += each * (r // per_node != to // per_node)
        if found is None or total < found[0]:
            found = total, order
    return found[1]


@wrong("most bytes last")
def sorts_by_bytes(sizes, per_node, sent):
    return tuple(sorted(AXES, key=lambda axis: sent[AXES.index(axis)]))


@wrong("tensor last")
def follows_the_advice(sizes, per_node, sent):
    return AXES


@wrong("no ring")
def forgets_the_way_back(sizes, per_node, sent):
    return min(ORDERS, key=lambda o: bytes_out(o, sizes, per_node, sent, ring=False))


@wrong("per group")
def counts_groups(sizes, per_node, sent):
    def cost(order):
        mesh, total = Mesh(*sizes, order=order), 0
        for axis, each in zip(AXES, sent, strict=True):
            for group in mesh.every_group(axis):
                total += each * (len({r // per_node for r in group}) > 1)
        return total

    return min(ORDERS, key=cost)


@wrong("last of equal")
def takes_the_last(sizes, per_node, sent):
    return min(ORDERS[::-1], key=lambda order: bytes_out(order, sizes, per_node, sent))


@wrong("reversed")
def fastest_first(sizes, per_node, sent):
    return all_six(sizes, per_node, sent)[::-1]


@wrong("no order")
def returns_the_bytes(sizes, per_node, sent):
    return min(bytes_out(order, sizes, per_node, sent) for order in ORDERS)


@wrong("sizes in that order")
def gives_the_mesh_turned_sizes(sizes, per_node, sent):
    size, each = dict(zip(AXES, sizes, strict=True)), dict(zip(AXES, sent, strict=True))

    def cost(order):
        total, mesh = 0, Mesh(*(size[axis] for axis in order), order=order)
        for axis in AXES:
            for group in mesh.every_group(axis):
                pairs = itertools.pairwise([*group, group[0]])
                away = [a // per_node != b // per_node for a, b in pairs]
                total += each[axis] * sum(away)
        return total

    return min(ORDERS, key=cost)


@wrong("most bytes last")
def sorts_by_the_bytes_of_all_ranks(sizes, per_node, sent):
    total = {k: a * b for k, a, b in zip(AXES, sizes, sent, strict=True)}
    return sorted(AXES, key=total.get)


@wrong("the most")
def the_worst(sizes, per_node, sent):
    return max(ORDERS, key=lambda order: bytes_out(order, sizes, per_node, sent))
