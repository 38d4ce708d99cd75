"""A grid of ranks: data x pipeline x tensor, and a group along each axis.

Eight ranks as 2 x 2 x 2, in the usual order, in which the tensor axis varies fastest:

    data            0                 1
    pipeline     0     1           0     1
    tensor      0 1   0 1         0 1   0 1
    rank        0 1   2 3         4 5   6 7

    groups      tensor      0 1    2 3    4 5    6 7
                pipeline    0 2    1 3    4 6    5 7
                data        0 4    1 5    2 6    3 7

The order decides which ranks are neighbours, and so which links an axis uses.  It
changes no result.
"""

import itertools
import math

import torch.distributed as dist

AXES = ("data", "pipeline", "tensor")


class Mesh:
    """Give each rank three coordinates, as a number has digits.

    order    the axes, slowest first; by default data, pipeline, tensor

    It is only numbers until a rank asks for a group, so it works outside of
    ranks, too.
    """

    def __init__(self, data=1, pipeline=1, tensor=1, order=None):
        self.sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
        for axis, size in self.sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                text = f"{axis} must be a whole number of at least 1"
                raise ValueError(f"{text}, not {size!r}.")
        self.order = tuple(order or AXES)
        if sorted(self.order) != sorted(AXES):
            text = f"An order names {', '.join(AXES)} once each,"
            raise ValueError(f"{text} slowest first, not {order!r}.")
        self.ranks = math.prod(self.sizes.values())
        self.groups = None

    def __repr__(self):
        sizes = ", ".join(f"{axis}={self.sizes[axis]}" for axis in self.order)
        return f"Mesh({sizes}), the last axis varies fastest"

    def coordinates(self, rank):
        """Return {axis: number} of a rank."""
        if not 0 <= rank < self.ranks:
            text = f"This mesh has the ranks 0 to {self.ranks - 1}"
            raise ValueError(f"{text}, not {rank}.")
        found = {}
        for axis in reversed(self.order):
            rank, found[axis] = divmod(rank, self.sizes[axis])
        return {axis: found[axis] for axis in AXES}

    def rank(self, **coordinates):
        """Return the rank with these coordinates; those left out are 0."""
        rank = 0
        for axis in self.order:
            at, size = coordinates.pop(axis, 0), self.sizes[axis]
            if not 0 <= at < size:
                text = f"The {axis} axis has the coordinates 0 to {size - 1}"
                raise ValueError(f"{text}, not {at}.")
            rank = rank * size + at
        if coordinates:
            text = f"A mesh has the axes {', '.join(AXES)}"
            raise ValueError(f"{text}, not {', '.join(coordinates)}.")
        return rank

    def members(self, axis, rank):
        """Return the ranks that differ from `rank` along this axis only."""
        at = self.coordinates(rank)
        return [self.rank(**at | {axis: i}) for i in range(self.sizes[axis])]

    def every_group(self, axis):
        """Return the ranks of all groups along an axis, each rank once."""
        every = (tuple(self.members(axis, rank)) for rank in range(self.ranks))
        return list(dict.fromkeys(every))

    def group(self, axis):
        """Return this rank's group along an axis.

        The first call makes the groups of all axes, so every rank of the
        world has to make it.
        """
        if axis not in AXES:
            text = f"A mesh has the axes {', '.join(AXES)}"
            raise ValueError(f"{text}, not {axis!r}.")
        if self.groups is None:
            self.groups = make_groups(self)
        return self.groups[axis]

    def axis(self, src, dst):
        """Return the axis along which two ranks differ, or None if not one."""
        a, b = self.coordinates(src), self.coordinates(dst)
        differ = [axis for axis in AXES if a[axis] != b[axis]]
        return differ[0] if len(differ) == 1 else None


# `new_group` is itself a collective of the world: all ranks make all groups,
# also those that they are not in, and in the same order.
def make_groups(mesh):
    """Return {axis: the group of this rank}, after making every group."""
    n, r = dist.get_world_size(), dist.get_rank()
    if n != mesh.ranks:
        text = f"{mesh!r} has {mesh.ranks} ranks, but the world has {n}."
        more = "The product of the axes must be the world size."
        raise ValueError(f"{text} {more}")
    mine = {}
    for axis in AXES:
        for ranks in mesh.every_group(axis):
            group = dist.new_group(ranks)
            if r in ranks:
                mine[axis] = group
    return mine


def bytes_per_axis(mesh, traffic):
    """Return {axis: bytes that all ranks together sent along it}.

    `traffic` is that of a `Run`, [n, n] bytes from row to column.  What
    travels along no single axis counts under None.
    """
    sums = dict.fromkeys(AXES, 0)
    for src, dst in itertools.product(range(mesh.ranks), repeat=2):
        if traffic[src][dst]:
            axis = mesh.axis(src, dst)
            sums[axis] = sums.get(axis, 0) + int(traffic[src][dst])
    return sums
