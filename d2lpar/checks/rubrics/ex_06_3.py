"""06.3 Place the ring."""

import zlib

import numpy as np
import torch
import torch.distributed as dist

from ...launch.run import run
from ...messages import exchange
from ...report.units import show_bytes
from ..judging import Case, Exercise, Requirement, on_ranks, ranks
from ..signs import both, breaks, violates, wrong

HOSTS = {"a": "node1", "b": "node11", "c": "Node1", "d": "node01"}
MESSAGE = 1000  # bytes


class Host(str):
    """A host name whose hash differs from rank to rank, as on real processes."""

    def __hash__(self):
        rank = dist.get_rank() if dist.is_initialized() else -1
        return zlib.crc32(f"{rank} {str(self)}".encode())


def cases(rng):
    """One host, one rank on each, and hosts with uneven numbers of ranks, shuffled."""
    drawn = [rng.permutation(list(x)) for x in ("aaabb", "aaabbc", "aabbbcdd")]
    for letters in ("a", "aa", "abc", "abbab", "abcba", *drawn):
        n, hosts = len(letters), [HOSTS[letter] for letter in letters]
        yield Case(
            n,
            f"{ranks(n)} on the hosts {', '.join(hosts)}",
            [([*map(Host, hosts)],)] * n,
            expected=[f"each of the ranks 0 to {n - 1}, once"] * n,
            facts={"hosts": np.array(hosts)},
        )


def is_order(came, n):
    """A list with each rank once."""
    if not isinstance(came, list | tuple):
        return False
    whole = all(isinstance(r, int | np.integer) for r in came)
    return whole and sorted(came) == list(range(n))


ORDER = Requirement(
    "ranks with another order than rank 0",
    lambda a: sum(str(value) != str(a.values[0]) for value in a.values),
    lambda case: 0,
    vital=True,
)


def round_the_ring(fn, case, **options):
    """The attempt, and if its order is one, the Run of a message that follows it."""
    attempt = on_ranks(fn, case, **options)
    order = attempt.values and attempt.values[0]
    if is_order(order, case.n) and ORDER.holds(attempt):
        options = {"backend": "sim", "device": "cpu", **options}
        attempt.run = run(pass_on, [*map(int, order)], world_size=case.n, **options)
    return attempt


def pass_on(order):
    """Every rank sends one message to the next in the order."""
    n, i = len(order), order.index(dist.get_rank())
    mine = torch.zeros(MESSAGE, dtype=torch.uint8)
    if n > 1:
        exchange(mine, order[(i + 1) % n], torch.empty_like(mine), order[i - 1])


def leaving(attempt):
    """Bytes that leave the host from which most do."""
    hosts, traffic = attempt.case.facts["hosts"], attempt.run.traffic
    away = [traffic[hosts == host][:, hosts != host].sum() for host in set(hosts)]
    return int(max(away))


def flat(came):
    """What is in a list of lists, one after the other."""
    if isinstance(came, list | tuple):
        return [x for item in came for x in flat(item)]
    return [came]


LEAVING = Requirement(
    "bytes that leave a host",
    leaving,
    lambda case: MESSAGE * (len({*case.facts["hosts"]}) > 1),
    exactly=False,
    show=show_bytes,
    vital=True,
)

exercise = Exercise(
    "06.3",
    cases,
    [ORDER, LEAVING],
    {
        "no list": both(wrong, lambda a: not isinstance(a.came[0], list | tuple)),
        "nested": both(wrong, lambda a: is_order(flat(a.came[0]), a.case.n)),
        "names": both(wrong, lambda a: HOSTS["a"] in flat(a.came[0])),
        "lost": both(wrong, lambda a: len({*map(str, flat(a.came[0]))}) < a.case.n),
        "disagree": violates(ORDER),
        "rank order": both(
            breaks(LEAVING), lambda a: sorted(a.came[0]) == [*a.came[0]]
        ),
        "twice": breaks(LEAVING),
    },
    agrees=lambda came, wanted, case: is_order(came, case.n),
    perform=round_the_ring,
)
