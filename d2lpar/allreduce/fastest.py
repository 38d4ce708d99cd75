"""The all-reduce that should be fastest: for this tensor, these ranks, their links."""

import functools
import os
from collections import Counter

import torch.distributed as dist

from ..launch.run import simulated_cluster
from ..scatter import doublings, members
from .algorithms import (
    check_tensor,
    halving_doubling_allreduce,
    hierarchical_allreduce,
    recursive_doubling_allreduce,
    ring_allreduce,
)
from .costs import halving_doubling_cost, recursive_doubling_cost, ring_cost
from .shared_memory import shared_memory_allreduce

# Seconds per message and per byte where no cluster says them, round figures:
# Gloo between processes, NCCL between GPUs.
USUAL_PACE = {"cpu": (1e-4, 1e-9), "cuda": (1e-5, 1e-11)}


def allreduce(tensor, group=None):
    """`tensor` of every rank is the sum over ranks, by the fastest way here.

    In the simulator: the smallest predicted time on its cluster.  On processes
    of one host: their shared memory.  Elsewhere: by the device's usual pace.
    With the pair of `node_groups`: hierarchical.  All ranks choose the same.
    """
    if isinstance(group, tuple):
        return hierarchical_allreduce(tensor, group)
    check_tensor(tensor)
    members(group)
    return fastest(tensor, group)(tensor, group)


def fastest(tensor, group):
    """The function that should be fastest for this tensor in this group."""
    cluster, kind = simulated_cluster(), tensor.device.type
    if cluster is None and kind == "cpu" and one_host():
        return shared_memory_allreduce
    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    n = len(ranks)

    def seconds(algorithm):
        cost, steps = CANDIDATES[algorithm]
        pace = USUAL_PACE.get(kind, USUAL_PACE["cpu"])
        if cluster is not None:
            pace = pace_on(cluster, ranks, steps)
        return cost(tensor.numel(), n, tensor.element_size()).seconds(*pace)

    return min(CANDIDATES, key=seconds)


@functools.lru_cache
def pace_on(cluster, ranks, steps):
    """(alpha, beta), means over the steps; a step's slowest message counts.

    The bytes of messages that share a link take turns.  A step weighs as its bytes do.
    """
    alphas, betas, sizes = [0.0], [0.0], [0]
    for size, edges in steps(len(ranks)):
        paths = [cluster.path(ranks[i], ranks[j]) for i, j in edges]
        users = Counter(link for *_, links in paths for link in links)
        turns = [max(map(users.get, links), default=1) for *_, links in paths]
        both = list(zip(turns, paths, strict=True))
        alphas.append(max(latency for latency, *_ in paths))
        betas.append(size * max(t / rate for t, (_, rate, _) in both))
        sizes.append(size)
    count = max(1, len(sizes) - 1)
    return sum(alphas) / count, sum(betas) / max(1, sum(sizes))


# The steps of an algorithm: relative size of a message, and who sends to whom.
def _ring_steps(n):
    return [(1, [(i, (i + 1) % n) for i in range(n)])]


def _doubling_steps(n):
    partners, fold = _partners(n)
    return [(1, edges) for edges in (*partners, *fold, *fold)]


def _halving_steps(n):
    partners, fold = _partners(n)
    every = 2 ** len(partners)  # chunks, while a step halves or doubles some
    return [(2**k, e) for k, e in enumerate(partners)] + [(every, e) for e in fold]


def _partners(n):
    """Pairs at distance 1, 2, 4, ..., and the step of the ranks beyond p."""
    p = 2 ** (n.bit_length() - 1)
    partners = [[(i, i ^ d) for i in range(p)] for d in doublings(p)]
    return partners, [[(i, i - p) for i in range(p, n)]] * (n > p)


CANDIDATES = {
    recursive_doubling_allreduce: (recursive_doubling_cost, _doubling_steps),
    halving_doubling_allreduce: (halving_doubling_cost, _halving_steps),
    ring_allreduce: (ring_cost, _ring_steps),
}


def one_host():
    """Do all ranks run on this machine?  Launchers say how many of them do."""
    n = os.environ.get("WORLD_SIZE")
    return n is None or n == os.environ.get("LOCAL_WORLD_SIZE")
