"""What exercises of chapter 05 share."""

from ...sim.cluster import Cluster
from .. import signs

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11)
SPARE = 512  # bytes that nobody counts
TWO_NODES = ", on nodes of two T4"


def some(values, n):
    """Every value on up to five ranks, every other one on more."""
    return values if n < 6 else values[n % 2 :: 2]


def on_ranks(values):
    """(ranks, value) for all numbers of ranks."""
    return [(n, value) for n in SIZES for value in some(values, n)]


def two_nodes(n):
    """Links of unequal speed: what is touched too early comes out wrong here."""
    return {"cluster": Cluster.of(f"{n // 2}x2xT4")}


def to_itself(attempt):
    """A rank sends to itself, even where it is alone."""
    alone = [other for other in attempt.attempts if other.case.n == 1]
    return signs.to_itself(attempt) and any(map(signs.to_itself, alone))


def totals(attempt):
    """Messages of all ranks."""
    return sum(attempt.run.messages)


def distances(n):
    """1, 2, 4, ... below n."""
    return [2**k for k in range((n - 1).bit_length())]
