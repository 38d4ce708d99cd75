"""06.3 Place the ring: place_ring(hosts)."""

from itertools import groupby, zip_longest

import numpy as np
import torch.distributed as dist

from zoo import right, wrong


def groups(hosts):
    """Ranks of each host, hosts in the order of their first rank."""
    found = {}
    for r, host in enumerate(hosts):
        found.setdefault(host, []).append(r)
    return list(found.values())


@right
def largest_host_first(hosts):
    return [r for ranks in sorted(groups(hosts), key=len)[::-1] for r in ranks]


@right
def by_numpy_backwards(hosts):
    return tuple(np.argsort(np.array(hosts, dtype=str), kind="stable")[::-1])


@right
def one_rank_after_the_other(hosts):
    """Each time the next rank of the same host, else the lowest rank that is left."""
    order, left = [], list(range(len(hosts)))
    while left:
        same = [r for r in left if order and hosts[r] == hosts[order[-1]]]
        order.append((same or left)[0])
        left.remove(order[-1])
    return order


@wrong("rank order")
def as_they_come(hosts):
    return list(range(len(hosts)))


@wrong("twice")
def round_robin(hosts):
    rows = zip_longest(*groups(hosts))
    return [r for row in rows for r in row if r is not None]


@wrong("twice")
def halves(hosts):
    """Even ranks of each host first, the odd ones on the way back."""
    order = sorted(range(len(hosts)), key=lambda r: hosts[r])
    return [r for r in order if r % 2 == 0] + [r for r in order if r % 2 == 1]


@wrong("lost")
def zip_stops_early(hosts):
    columns = list(zip(*groups(hosts), strict=False))
    return [r for ranks in zip(*columns, strict=True) for r in ranks]


@wrong("lost")
def leaders_only(hosts):
    return [ranks[0] for ranks in groups(hosts)]


@wrong("disagree")
def order_of_a_set(hosts):
    return [r for host in set(hosts) for r in range(len(hosts)) if hosts[r] == host]


@wrong("disagree")
def own_host_first(hosts):
    mine = hosts[dist.get_rank()]
    key = [(host != mine, host) for host in hosts]
    return sorted(range(len(hosts)), key=lambda r: key[r])


@wrong("nested")
def a_list_for_each_host(hosts):
    return groups(hosts)


@wrong("names")
def sorted_names(hosts):
    return sorted(hosts)


@wrong("lost")
def runs_overwrite_each_other(hosts):
    """groupby without sorting: a host that comes again replaces its first ranks."""
    found = {}
    for host, pairs in groupby(enumerate(hosts), key=lambda pair: pair[1]):
        found[host] = [r for r, _ in pairs]
    return [r for ranks in found.values() for r in ranks]


@wrong("no list")
def a_dictionary(hosts):
    return dict(enumerate(groups(hosts)))


@wrong("twice")
def names_without_case(hosts):
    """Names are compared without case."""
    return sorted(range(len(hosts)), key=lambda r: hosts[r].lower())
