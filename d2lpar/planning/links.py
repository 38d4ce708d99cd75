"""How long a message takes on the links that an axis of a plan really uses.

A group of n ranks, `stride` apart, in nodes of 8:

    stride 1, n 8     0 1 2 3 4 5 6 7           one node: NVLink
    stride 8, n 4     0 8 16 24                 one rank in each node: its network card
    stride 2, n 8     0 2 4 6 8 10 12 14        four ranks in each of two nodes

All groups of an axis talk at the same time, so those of a node share its cards.
Counted truth: a native collective of the simulator.  NCCL, src/graph/tuning.cc.
"""

from typing import NamedTuple


class Links(NamedTuple):
    """What a group of ranks has between its ranks.

    inside, between       seconds per byte in a node, and between nodes
    here, nodes           ranks of the group in a node, and nodes
    near, far, kinds      seconds per message in a node and between nodes; protocols
    """

    n: int
    here: int
    nodes: int
    inside: float
    between: float
    near: float
    far: float
    kinds: tuple

    @property
    def per_byte(self):
        """Seconds per byte on the slowest link of a ring."""
        if self.nodes == 1:
            return self.inside
        return max(self.inside, self.between) if self.here > 1 else self.between


def links(cluster, n, stride=1):
    """Return the Links of n ranks that are `stride` apart."""
    per_node = cluster.per_node or n * stride
    here = min(n, 1 + (per_node - 1) // stride)
    cards = cluster.cards * here / per_node  # the other groups use the rest
    rate = cluster.network_rate * min(cards, here)
    inside = 1 / (cluster.links_rate or cluster.rate)
    latency = cluster.latency, cluster.network_latency
    return Links(n, here, -(-n // here), inside, 1 / rate, *latency, cluster.protocols)


def allreduce(group, nbytes):
    """Return the seconds of an all-reduce: a ring, or a tree where that is faster."""
    if group.n == 1:
        return 0.0
    ups = (group.here - 1) * group.near + (group.nodes - 1).bit_length() * group.far
    ring = _ring(group, 2), 2 * (group.n - 1) / group.n * nbytes
    ways = [ring, (2 * ups, 2 * nbytes)]
    return _fastest(group, ways)


def gather(group, nbytes):
    """Return the seconds of an all-gather or a reduce-scatter of `nbytes` in all."""
    if group.n == 1:
        return 0.0
    return _fastest(group, [(_ring(group, 1), (group.n - 1) / group.n * nbytes)])


def _ring(group, rounds):
    """Seconds of latency in `rounds` times round the ring."""
    crossing = group.nodes - 1
    return rounds * (crossing * group.far + (group.n - 1 - crossing) * group.near)


def _fastest(group, ways):
    return min(
        alpha * latency + moved * group.per_byte * per_byte
        for alpha, moved in ways
        for latency, per_byte in group.kinds
    )


def message(cluster, nbytes, senders, crosses):
    """Return the seconds of one message to the next pipeline rank.

    `senders` ranks of a node send at the same time, each `nbytes`, and share
    its network cards if the message crosses nodes.
    """
    if not crosses:
        return cluster.latency + nbytes / cluster.rate
    rate = cluster.network_rate * min(1, cluster.cards / senders)
    return cluster.network_latency + nbytes / rate
