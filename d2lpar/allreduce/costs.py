"""What each all-reduce costs, by closed forms: rounds, messages, bytes, seconds.

n ranks have `elements` numbers of `itemsize` bytes each, S = elements * itemsize bytes.
A message of b bytes takes alpha + beta b seconds, and every rank sends one and receives
one at a time (Hockney 1994).  Chunks are those of `torch.tensor_split`: the first
elements % n chunks are one longer.  So the forms are exact, whatever divides what.
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """What one all-reduce costs.

    rounds      the longest chain of messages, one after the other
    messages    how many all ranks send together
    busiest     bytes that the busiest rank sends
    path        bytes that pass one after the other: what time depends on
    """

    rounds: int
    messages: int
    busiest: int
    path: int

    def seconds(self, alpha, beta):
        """alpha for every round, beta for every byte of the path."""
        return self.rounds * alpha + self.path * beta


def chunk_sizes(elements, n):
    """Elements in each of n chunks, as `torch.tensor_split` cuts them."""
    q, longer = divmod(elements, n)
    return [q + 1] * longer + [q] * (n - longer)


def naive_cost(elements, n, itemsize=4):
    """Rank 0 receives n-1 tensors one by one, and sends n-1 one by one."""
    S, rounds = elements * itemsize, 2 * (n - 1)
    return Cost(rounds, 2 * (n - 1), (n - 1) * S, rounds * S)


def tree_cost(elements, n, itemsize=4):
    """Up a binomial tree and down; the root sends one tensor per level."""
    S, levels = elements * itemsize, _ceil_log2(n)
    return Cost(2 * levels, 2 * (n - 1), levels * S, 2 * levels * S)


def direct_cost(elements, n, itemsize=4):
    """Everyone sends everything to everyone."""
    S = elements * itemsize
    return Cost(n - 1, n * (n - 1), (n - 1) * S, (n - 1) * S)


def ring_cost(elements, n, itemsize=4):
    """Two times round, one chunk at a time.

    Rank r sends all chunks but chunk r, then all but chunk r+1.  The path is
    that of the longest chunk, which is on its way in every round.
    """
    chunks, rounds = chunk_sizes(elements, n), 2 * (n - 1)
    kept = min(chunks[r] + chunks[(r + 1) % n] for r in range(n))
    busiest = (2 * elements - kept) * itemsize
    return Cost(rounds, n * rounds, busiest, rounds * chunks[0] * itemsize)


def segmented_ring_cost(elements, n, itemsize=4, segment=2**20):
    """The ring's bytes in more messages: on the first way round, in pieces."""
    whole = ring_cost(elements, n, itemsize)
    pieces = max(1, -(-chunk_sizes(elements, n)[0] // segment))
    rounds = (n - 1) * (pieces + 1)
    return whole._replace(rounds=rounds, messages=n * rounds)


def recursive_doubling_cost(elements, n, itemsize=4):
    """log2 p exchanges of everything, p = 2^k; for ranks beyond p two rounds.

    In the first they give, in the last they get; their partners send it.
    """
    S, k = elements * itemsize, n.bit_length() - 1
    p = 2**k
    rounds, messages = k + 2 * (n > p), p * k + 2 * (n - p)
    return Cost(rounds, messages, (k + (n > p)) * S, rounds * S)


def halving_doubling_cost(elements, n, itemsize=4):
    """log2 p exchanges of S/2, S/4, ..., and back; ranks beyond p as above.

    The first of p chunks is never shorter than another.  So rank 0, which ends
    with it, sends and waits for the most.
    """
    S, k = elements * itemsize, n.bit_length() - 1
    p, chunks = 2**k, chunk_sizes(elements, 2**k)
    windows = [sum(chunks[: 2**i]) * itemsize for i in range(k)]  # 1, 2, 4
    extra = S * (n > p)
    busiest = S + sum(windows[1:]) + extra if n > 1 else 0
    rounds, messages = 2 * k + 2 * (n > p), 2 * p * k + 2 * (n - p)
    return Cost(rounds, messages, busiest, 2 * sum(windows) + 2 * extra)


def hierarchical_cost(elements, per_node, nodes, itemsize=4):
    """(cost inside the nodes, cost between them): two kinds of links.

    Inside, the two halves of a ring.  Between, every rank of a node runs a
    ring of its own chunk, with the ranks of its number in the other nodes.
    The seconds of the two add up.
    """
    inside = ring_cost(elements, per_node, itemsize)
    own = chunk_sizes(elements, per_node)
    rings = [ring_cost(size, nodes, itemsize) for size in own]
    messages = sum(ring.messages for ring in rings)
    busiest = max(ring.busiest for ring in rings)
    between = rings[0]._replace(messages=messages, busiest=busiest)
    return inside._replace(messages=nodes * inside.messages), between


def lower_bound(elements, n, itemsize=4):
    """No all-reduce has fewer rounds, or fewer bytes on its busiest rank.

    Terms of n ranks come together only in ceil(log2 n) rounds.  Each element
    needs 2(n-1) messages: n-1 terms have to leave their ranks, and n-1 ranks
    have to hear of the sum (Patarasuk and Yuan 2009, theorem 1).
    """
    total = 2 * (n - 1) * elements * itemsize
    return _ceil_log2(n), -(-total // n)


def _ceil_log2(n):
    return (n - 1).bit_length()
