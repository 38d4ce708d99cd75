"""How long a native collective takes on a cluster: what NCCL would do there.

What it sends is counted by `calls.py`, as a flat ring, in every world alike.  Only its
time is told here, for `sim`.  All figures are those of a fast library:

    ring    as many rings at once as the group has network cards in each node.  The
            ranks of a node follow each other, so every ring enters and leaves a node
            once, and all links of a GPU carry a part
    tree    all-reduce over several nodes: a chain in each node, two trees between
            them.  log2(nodes) messages instead of 2(nodes-1), but 2 S bytes per node

Of the two, and of NCCL's protocols (`Cluster.protocols`), the fastest counts.  Gather,
scatter and all-to-all send all messages directly.

Source: NCCL, src/graph/tuning.cc, `ncclTopoTuneModel` (NVIDIA), without its
corrections for medium sizes.
"""

from collections import Counter, defaultdict

from ..report.calls import RINGS


def plan(cluster, kind, ranks, cost):
    """(seconds, names of the shared links in use) of one call by these ranks."""
    if not cost.edges:
        return 0.0, ()
    if kind == "all_to_all":
        return _exchange(cluster, ranks, cost), _links(cluster, ranks)
    if kind not in RINGS:
        return _star(cluster, ranks, cost)
    ways = [_ring(cluster, ranks, cost)]
    if kind == "all_reduce":
        ways.append(_tree(cluster, ranks, cost))
    seconds = min(
        latency * alpha + beta * moved
        for alpha, moved in ways
        for latency, beta in cluster.protocols
    )
    return seconds, _links(cluster, ranks)


def _ring(cluster, ranks, cost):
    """(seconds of latency, seconds of the bytes): a chunk goes round the ring."""
    nodes = len(_nodes(cluster, ranks))
    between = cost.latencies // (len(ranks) - 1) * (nodes - 1)
    alpha = between * cluster.network_latency
    alpha += (cost.latencies - between) * cluster.latency
    return alpha, sum(cost.steps) * _per_byte(cluster, ranks)


def _tree(cluster, ranks, cost):
    """The same of a tree: every node gets and sends the whole tensor twice."""
    nodes = _nodes(cluster, ranks)
    up = (max(nodes.values()) - 1) * cluster.latency
    up += (len(nodes) - 1).bit_length() * cluster.network_latency
    return 2 * up, 2 * len(ranks) * cost.steps[0] * _per_byte(cluster, ranks)


def _per_byte(cluster, ranks):
    """Seconds per byte of a rank, in rings that use all links and all cards."""
    nodes = _nodes(cluster, ranks)
    inside = 1 / (cluster.links_rate or cluster.rate)
    if len(nodes) == 1:
        return inside
    between = 1 / (cluster.network_rate * _cards(cluster, ranks))
    return max(inside, between) if len(nodes) < len(ranks) else between


def _exchange(cluster, ranks, cost):
    """All-to-all: each rank has one port, and the ranks of a node share its cards."""
    inside, nodes = sum(cost.steps), _nodes(cluster, ranks)
    if len(nodes) == 1:
        rate = cluster.links_rate or cluster.rate
        return cost.latencies * cluster.latency + inside / rate
    most = max(nodes.values())  # ranks of one node
    leaving = inside * most * (len(ranks) - most) / (len(ranks) - 1)
    rate = cluster.network_rate * _cards(cluster, ranks)
    return cost.latencies * cluster.network_latency + leaving / rate


def _star(cluster, ranks, cost):
    """(seconds, links): the root's port is the limit, whatever the way."""
    paths = [cluster.path(ranks[i], ranks[j]) for i, j in cost.edges]
    alpha = max(path[0] for path in paths)
    per_byte = max(1 / rate for _, rate, _ in paths)
    links = dict.fromkeys(link for *_, shared in paths for link in shared)
    return cost.latencies * alpha + per_byte * sum(cost.steps), tuple(links)


def _nodes(cluster, ranks):
    """{node: how many ranks of the group it has}."""
    return Counter(map(cluster.node, ranks))


def _cards(cluster, ranks):
    """Network cards that the group has in every node: so many rings run at once."""
    cards = defaultdict(set)
    for rank in ranks:
        cards[cluster.node(rank)].add(cluster.card(rank))
    return min(map(len, cards.values()))


def _links(cluster, ranks):
    """Shared links that a ring in order of the nodes uses."""
    order = sorted(ranks)
    pairs = zip(order, order[1:] + order[:1], strict=True)
    links = [link for a, b in pairs for link in cluster.path(a, b)[2]]
    if len(_nodes(cluster, ranks)) > 1:  # and the other rings, over the other cards
        ends = [(cluster.node(rank), cluster.card(rank)) for rank in order]
        links += [f"node{a}.{way}{card}" for a, card in ends for way in ("out", "in")]
    return tuple(dict.fromkeys(links))
