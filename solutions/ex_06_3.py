"""06.3 Place the ring: place_ring(hosts)."""

import numpy as np
import torch
import torch.distributed as dist

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Host
from d2lpar.checks.judging import Case, Requirement, on_ranks, ranks
from d2lpar.checks.signs import both, breaks, violates, wrong
from d2lpar.launch.run import run
from d2lpar.messages import exchange
from d2lpar.report.units import show_bytes

HOSTS = {"a": "node1", "b": "node11", "c": "Node1", "d": "node01"}
MESSAGE = 1000  # bytes


def of_ranks(came):
    """A list of integers."""
    integers = int | np.integer
    return isinstance(came, list | tuple) and all(isinstance(r, integers) for r in came)


def is_order(came, n):
    """A list with each rank once."""
    return of_ranks(came) and sorted(came) == list(range(n))


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


LEAVING = Requirement(
    "bytes that leave a host",
    leaving,
    lambda case: MESSAGE * (len({*case.facts["hosts"]}) > 1),
    exactly=False,
    show=show_bytes,
    vital=True,
)
agrees = lambda came, wanted, case: is_order(came, case.n)
ex = Exercise("06.3", agrees=agrees, perform=round_the_ring)
ex.require(ORDER, LEAVING)


@ex.cases
def cases(rng):
    """One host, one rank on each, and hosts with uneven numbers of ranks, shuffled."""
    drawn = [rng.permutation(list(x)) for x in ("aaabb", "aaabbc", "aabbbcdd")]
    for letters in ("a", "aa", "abc", "abbab", "abcba", *drawn):
        n, hosts = len(letters), [HOSTS[letter] for letter in letters]
        yield Case(
            n,
            f"{ranks(n)} on the hosts {', '.join(hosts)}",
            [([*map(Host, hosts)],)] * n,
            [f"each of the ranks 0 to {n - 1}, once"] * n,
            facts={"hosts": np.array(hosts)},
        )


APPEND = "on_host.setdefault(host, []).append(r)"
VALUES, RETURN = "on_host.values()", "[r for ranks in on_host.values() for r in ranks]"

form = both(wrong, lambda a: not of_ranks(a.came[0]))
ex.mistake("form", form, {RETURN: "on_host"}).says("""
    It does not return a single list of ranks.
    Hint: Join the lists of all hosts into one. The position of a name in `hosts` is the
    number of the rank, which belongs into the list.
""")
ex.wrong("form", {RETURN: "[*on_host.values()]"})
ex.wrong("form", {RETURN: "sorted(hosts)"})
lost = both(wrong, lambda a: len({*a.came[0]}) < a.case.n)
ex.mistake("lost", lost, {RETURN: "[ranks[0] for ranks in on_host.values()]"}).says("""
    Some ranks are missing from the order.
    Hint: Hosts may have different numbers of ranks, and a host may come up again later
    in `hosts`.
""")
runs = "on_host[host] = [r] if hosts[r - 1] != host else [*on_host.get(host, []), r]"
ex.wrong("lost", {APPEND: runs})  # a host that comes again replaces its first ranks
ex.mistake("disagree", violates(ORDER), {VALUES: "map(on_host.get, {*hosts})"}).says("""
    The ranks return different orders, so a ring of them would hang.
    Hint: A list is the same everywhere if it follows from `hosts` alone, and not from
    the rank or the order of a `set`.
""")
mine = "sorted(on_host.values(), key=lambda ranks: dist.get_rank() not in ranks)"
ex.wrong("disagree", {VALUES: mine})
evens_first = "sorted(range(len(hosts)), key=lambda r: (r % 2, hosts[r]))"
ex.mistake("twice", breaks(LEAVING), {RETURN: evens_first}).says("""
    The ring leaves some host more than once.
    Hint: Visit all ranks of a host before you go on to the next. The order 0, 1, 2, and
    so on does this only by chance.
""")
ex.wrong("twice", {RETURN: "[*range(len(hosts))]"})
ex.wrong("twice", {RETURN: "sorted(range(len(hosts)), key=lambda r: hosts[r].lower())"})
ex.right({VALUES: "sorted(on_host.values(), key=len)"})


@ex.right
def by_numpy_backwards(hosts):
    return tuple(np.argsort(np.array(hosts, dtype=str), kind="stable")[::-1])
