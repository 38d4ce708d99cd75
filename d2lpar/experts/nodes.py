"""Experts on several nodes: tokens that cross a slow link once, and overlap.

A token with k experts on one other node crosses the network k times in chapter 18's
plain dispatch.  Here it crosses once, to the rank with the same number in that node:

    forward     to nodes        among peers, once per node that the token needs
                in the node     plain dispatch, experts, combine
                back            among peers, one sum per node

The second half hides the exchanges of one part of the tokens behind the experts' work
on the part before it.  Serial truth of both: `experts.MoE`.  DeepSeek-V3 2024, 3.2.
"""

import torch

from ..scatter import members
from ..tensor_parallel.trips import Arrive, Depart, wait
from .layer import (
    Exchange,
    ExpertParallel,
    check_tokens,
    combine,
    dispatch,
    gathered,
    plan,
    start,
)


def to_nodes(x, weights, experts, count, outer):
    """Send tokens to the nodes of their experts.

    Returns (x, weights, experts, trip) for this node: rows that came from
    peers, and for each of their k choices the weight and the number of the
    expert in this node, or 0 and -1 where it is on a different node.
    """
    nodes, _ = members(outer)
    each, every = count // nodes, torch.arange(nodes, device=x.device)
    home = experts.div(each, rounding_mode="floor")  # [N, k], -1 stays -1
    wanted = (home[:, None] == every[:, None]).any(-1)  # [N, nodes]
    rows, trip = dispatch(x, every.where(wanted, -1), nodes, outer)
    token, node = trip.order // nodes, trip.order[:, None] % nodes
    here = home[token] == node  # [rows that leave, k]
    local = (experts[token] - node * each).where(here, -1)

    def carry(extra):
        came = Exchange.apply(extra, trip.sent, trip.came, outer)
        return came[trip.sort]

    return rows, carry(weights[token] * here), carry(local), trip


class NodeExperts(ExpertParallel):
    """Send each token to a node once, and share it out inside the node.

    groups    the pair that `allreduce.node_groups` makes
    """

    def __init__(self, moe, groups):
        super().__init__(moe)
        if not isinstance(groups, tuple) or len(groups) != 2:
            text = "NodeExperts needs the pair that node_groups makes"
            raise TypeError(f"{text}, not {type(groups).__name__}.")
        self.inner, self.outer = groups

    def forward(self, x):
        """This rank's tokens [N, D] -> [N, D]."""
        weights, experts = self.choose(x)
        check_tokens(x, experts, self.E)
        nodes, _ = members(self.outer)
        there = to_nodes(x, weights, experts, self.E, self.outer)
        x, weights, experts, away = there
        rows, trip = dispatch(x, experts, self.E // nodes, self.inner)
        sums = combine(self.run(rows, trip), trip, weights)  # a row per node
        return combine(sums, away)


def within_nodes(logits, k, nodes, limit):
    """Return a bias [N, E] for `route`: -inf beyond the best nodes.

    A token may use the experts of `limit` nodes: those whose best k / limit
    experts have the highest sum of probabilities.  DeepSeek-V3 2024, 2.1.2.
    """
    E = logits.shape[-1]
    if E % nodes or not 1 <= limit <= nodes or limit * (E // nodes) < k:
        text = f"{k} experts of {E} cannot be chosen on {limit} of {nodes}"
        raise ValueError(f"{text} nodes. The nodes must divide the experts.")
    p = logits.detach().softmax(-1)
    p = p.unflatten(-1, (nodes, -1))  # [N, nodes, E/nodes]
    each = min(-(-k // limit), E // nodes)
    best = p.topk(each).values.sum(-1)  # [N, nodes]
    chosen = best.sort(dim=-1, descending=True, stable=True).indices[:, :limit]
    closed = torch.ones_like(best, dtype=torch.bool).scatter(-1, chosen, False)
    bias = torch.zeros_like(p).masked_fill(closed[..., None], -torch.inf)
    return bias.flatten(-2)


class Flight:
    """Rows under way, in the four steps that `trips.Depart` describes."""

    def __init__(self, sent, came, group):
        self.sent, self.came, self.group = sent, came, group

    def send_rows(self, x):
        """Start the exchange of rows."""
        self.going = x, start(x, self.sent, self.came, self.group)

    def collect_rows(self):
        """Wait for the rows; return them."""
        _, (rows, works) = self.going
        wait(works)
        return rows

    def send_gradients(self, dy):
        """Start the exchange back of the rows' gradients."""
        self.going = dy, start(dy, self.came, self.sent, self.group)

    def collect_gradients(self, dx):
        """Wait for the gradients; return their sum with `dx`."""
        return self.collect_rows().add_(dx)


def depart(rows, sent, came, group):
    """Start an exchange; return a function that waits for what comes."""
    flight = Flight(sent, came, group)
    _, token = Depart.apply(rows, flight)
    return lambda: Arrive.apply(token, flight)


# Two parts, and what runs at the same time, forward:
#
#     sent         part 0    part 1                 back 0        back 1
#     computed               experts on part 0      experts on part 1
class OverlappedExperts(ExpertParallel):
    """Cut the tokens into parts: one travels while experts work on another.

    parts    how many; all ranks use the same number, even with few tokens
    """

    def __init__(self, moe, parts=2, group=None):
        super().__init__(moe, group)
        if parts < 1:
            raise ValueError(f"A batch has at least 1 part, not {parts}.")
        self.parts = parts

    def forward(self, x):
        """This rank's tokens [N, D] -> [N, D]."""
        weights, experts = self.choose(x)
        check_tokens(x, experts, self.E)
        cut = [t.tensor_split(self.parts) for t in (x, weights, experts)]
        trips = [plan(part, self.E, self.group) for part in cut[2]]
        going, coming = [], []
        for part, trip in zip(cut[0], trips, strict=True):
            rows = part[trip.order // self.k]
            going.append(depart(rows, trip.sent, trip.came, self.group))
        for arrive, trip in zip(going, trips, strict=True):
            y = self.run(arrive()[trip.sort], trip)[trip.sort.argsort()]
            coming.append(depart(y, trip.came, trip.sent, self.group))
        whole = zip(coming, trips, cut[1], strict=True)
        done = [gathered(arrive(), trip, w) for arrive, trip, w in whole]
        return torch.cat(done)
