"""What the checks of chapter 05 share."""

from d2lpar.sim.cluster import Cluster

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11)  # numbers of ranks
SPARE = 512  # bytes that nobody counts


def some(values, n):
    """Every value on up to five ranks, every other one on more."""
    return values if n < 6 else values[n % 2 :: 2]


def two_nodes(n):
    """Links of unequal speed: what is touched too early comes out wrong here."""
    return {"cluster": Cluster.of(f"{n // 2}x2xT4")}


def distances(n):
    """1, 2, 4, ... below n."""
    return [2**k for k in range((n - 1).bit_length())]
