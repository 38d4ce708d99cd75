"""What the exercises of chapter 06 ask for."""

import operator
import threading
import zlib

import numpy as np
import torch

from ... import costs
from ...errors import RankError
from ...messages import exchange
from ...show.units import show_bytes
from ...world.launch import run
from ...world.progress import time_limit
from ...world.threads import interrupt_thread
from ..judging import (
    Attempt,
    Case,
    Exercise,
    Mistake,
    Requirement,
    argument,
    on_ranks,
    ranks,
    same,
)
from ..requirements import (
    all_waited,
    bytes_sent,
    extra_memory,
    from_messages,
    messages,
    rounds,
    same_bits,
)
from ..signs import both, gives, left_alone, raises, right, wrong
from . import candidates

ITEM = 8  # bytes of a float64 or an int64


# 06.1 The ring, mirrored

RING_CALLS = [  # S, op, dtype
    (0, "sum", torch.float64),
    (1, "max", torch.int64),
    (5, "sum", torch.float64),
    (12, "sum", torch.int64),
    (13, "max", torch.float64),
    (1001, "sum", torch.float64),
    (1001, "max", torch.float64),
]


def ring_cases(rng):
    """Sizes that divide by n and do not, below n, and 0; all values below zero."""
    for n in range(1, 9):
        large = [(30_011, "sum", torch.float64)] * (n == 4)
        for S, op, dtype in (*(RING_CALLS if n < 6 else RING_CALLS[2::2]), *large):
            xs = [_below_zero(rng, S, dtype) for _ in range(n)]
            kind = str(dtype).removeprefix("torch.")
            yield Case(
                n,
                f'{ranks(n)}, S = {S}, {kind}, "{op}"',
                inputs=[(x, op) for x in xs],
                expected=[_combined(xs, op)] * n,
                facts={"S": S, "op": op, "xs": xs},
                traced=S > 10_000,
            )


def _below_zero(rng, S, dtype):
    """Not one is 0 or above; the integers have more digits than a float64."""
    if dtype == torch.int64:
        return -torch.from_numpy(rng.integers(2**54, 2**56, S))
    return torch.from_numpy(rng.normal(size=S) - 5)


def _combined(xs, op):
    whole = torch.stack(xs)  # [n, S]
    return whole.sum(0) if op == "sum" else whole.amax(0)


def _chunks(case):
    return costs.chunk_sizes(case.facts["S"], case.n)


def _ring_bytes(case):
    """All but chunk r on the first way, all but chunk r-1 on the second."""
    chunks, S = _chunks(case), case.facts["S"]
    return [ITEM * (2 * S - chunks[r] - chunks[r - 1]) for r in range(case.n)]


def _one_chunk(case):
    return ITEM * _chunks(case)[0] + 100 + case.noise


def _past_the_left(attempt):
    """Bytes that each rank sends to others than its left neighbour."""
    traffic, n = attempt.run.traffic, attempt.case.n
    return [int(traffic[r].sum() - traffic[r, r - 1]) for r in range(n)]


def _spoken(attempt):
    return sum(value is not None for value in attempt.values)


# What gives the ring's mistakes away


def _telling(attempt):
    """Enough ranks and elements to tell one way from another, and it has ended."""
    n, S = attempt.case.n, attempt.case.facts["S"]
    return attempt.error is None and n > 2 and n <= S


def _whole_round(attempt):
    n, S = attempt.case.n, attempt.case.facts["S"]
    return attempt.run.bytes_sent == [(n - 1) * S * ITEM] * n


def _one_hub(attempt):
    """All that is sent is sent by one rank, or to it."""
    traffic = attempt.run.traffic
    hubs = traffic.sum(0) + traffic.sum(1) == traffic.sum()
    return bool(traffic.sum() and hubs.any())


def _to_the_right(attempt):
    traffic, n = attempt.run.traffic, attempt.case.n
    return traffic.sum() and all(
        traffic[r].sum() == traffic[r, (r + 1) % n] for r in range(n)
    )


def _tail_lost(attempt):
    n, S = attempt.case.n, attempt.case.facts["S"]
    head = S // n * n
    return 0 < head < S and all(
        same(came[:head], wanted[:head])
        for came, wanted in zip(attempt.came, attempt.case.expected, strict=True)
    )


def _combined_twice(case):
    """What is there if the second way round combines too, instead of copying."""
    n, op, xs = case.n, case.facts["op"], [x.clone() for x in case.facts["xs"]]
    chunks = [x.tensor_split(n) for x in xs]
    for k in range(2 * n - 2):
        way = k + 1 if k < n - 1 else k - (n - 1)  # rank r sends chunk r + way
        news = [chunks[(r + 1) % n][(r + 1 + way) % n].clone() for r in range(n)]
        for r in range(n):
            mine = chunks[r][(r + 1 + way) % n]
            mine.copy_(_combined([mine, news[r]], op))
    return xs


def _own_chunk_right(attempt):
    n = attempt.case.n
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return all(
        same(came.tensor_split(n)[r], wanted.tensor_split(n)[r])
        for r, (came, wanted) in enumerate(pairs)
    )


def _other_bits(attempt):
    return any(not torch.equal(x, attempt.came[0]) for x in attempt.came)


def _others_share(attempt):
    """Together all ranks send the right amount, but one more and another less."""
    sent, wanted = attempt.run.bytes_sent, _ring_bytes(attempt.case)
    return sent != wanted and sum(sent) == sum(wanted)


def _above(figure, allowed):
    """It ended, and a figure of some rank is above the allowed one."""
    return lambda a: right(a) and any(x > allowed(a.case) for x in figure(a.run))


ring = Exercise(
    "06.1",
    "The ring, mirrored",
    ring_cases,
    [
        from_messages(),
        all_waited(),
        bytes_sent(_ring_bytes),
        Requirement(
            "bytes to others than the left",
            _past_the_left,
            lambda case: 0,
            show=show_bytes,
        ),
        rounds(lambda case: 2 * (case.n - 1), exactly=False),
        extra_memory(_one_chunk),
        same_bits(),
        Requirement("ranks that return a value", _spoken, lambda case: 0),
    ],
    [
        Mistake(
            "whole tensor",
            both(_telling, _whole_round),
            "Every rank sends n-1 times the whole tensor: correct, and no faster than "
            "sending everything to everyone.",
            "Cut the tensor into n chunks; each step sends one of them.",
        ),
        Mistake(
            "hub",
            both(_telling, _one_hub),
            "One rank receives everything and sends everything: that is no ring.",
            "Every rank sends to its left neighbour only, one chunk in each step.",
        ),
        Mistake(
            "direction",
            both(_telling, _to_the_right),
            "It goes round as in the chapter: each rank sends to its right.",
            "Rank r sends to r-1 and receives from r+1. Which chunk is it then?",
        ),
        Mistake(
            "too few chunks",
            both(raises(IndexError), lambda a: a.case.facts["S"] % a.case.n != 0),
            "There are fewer chunks than ranks.",
            "torch.chunk makes 3 chunks of 5 elements for 4 ranks; tensor_split makes "
            "4, some of them shorter or empty.",
        ),
        Mistake(
            "tail",
            both(wrong, _tail_lost),
            "The last S mod n elements are left out.",
            "S // n elements in each chunk are not all: see tensor_split.",
        ),
        Mistake(
            "unchanged",
            both(left_alone(0), lambda a: a.case.facts["S"] > 0),
            "The tensor is as it was before; the result, if any, is in another one.",
            "`x = x + y` makes a new tensor; `x += y` and `x.copy_(y)` change x.",
        ),
        Mistake(
            "combined twice",
            gives(_combined_twice),
            "The second way round combines again; the sums are complete by then.",
            "What comes on the second way replaces what is there.",
        ),
        Mistake(
            "op",
            both(
                lambda a: a.case.facts["op"] == "max",
                gives(lambda case: [_combined(case.facts["xs"], "sum")] * case.n),
            ),
            'It adds although `op` is "max".',
            "torch.maximum(a, b, out=a) keeps the larger of two, element by element.",
        ),
        Mistake(
            "second half",
            both(wrong, lambda a: a.case.facts["S"] > 0, _own_chunk_right),
            "Chunk r of rank r is right, the others are not: the first half is good, "
            "the second is not.",
            "At half time rank r sends chunk r. What has it got one step later?",
        ),
        Mistake(
            "bits",
            both(right, _other_bits),
            "The ranks' results differ in their last digits.",
            "A sum is rounded once, by the rank that completes it; the others copy it.",
        ),
        Mistake(
            "owner",
            both(right, _others_share),
            "All ranks together send the right amount, but not each its own share.",
            "Chunk r, as tensor_split cuts it, is complete on rank r at half time. "
            "So rank r never sends it on the first way.",
        ),
        Mistake(
            "spare",
            _above(lambda r: r.peak_memory, _one_chunk),
            "It asks for more memory than one chunk at a time.",
            "A buffer that is made anew in each step exists twice for a moment; "
            "`a + b` makes a third. Make one before the loop, and use `out=`.",
        ),
        Mistake(
            "rounds",
            _above(lambda r: [r.rounds], lambda case: 2 * (case.n - 1)),
            "The ranks take turns; all could send at the same time.",
            "Receive while you send: `exchange`, or isend and irecv, then wait.",
        ),
    ],
    outcome=argument(0),
)


# 06.2 Where is the maximum?


def max_cases(rng):
    """Negative values, the maximum on several ranks, and values near 2^62."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 16):
        largest = 2**62 + rng.integers(0, 99, n)
        tied = rng.integers(-9, -4, n)
        tied[rng.permutation(n)[: max(1, n - 2)]] = -3
        for values in (rng.permutation(-np.arange(1, n + 1)), tied, largest):
            values = [int(value) for value in values]
            answer = max(values), values.index(max(values))
            yield Case(
                n,
                f"{ranks(n)} with {in_words(values)}",
                inputs=[(value,) for value in values],
                expected=[answer] * n,
                facts={"ties": values.count(answer[0]) > 1},
            )


def in_words(values):
    """The first of some whole numbers, in a line."""
    text = ", ".join(map(_short, values[:8]))
    return text + ", ..." * (len(values) > 8)


def _short(value):
    return f"2^62+{value - 2**62}" if value >= 2**62 else str(value)


def _small(attempt):
    """No value is near the limits of its type."""
    return all(abs(arguments[0]) < 2**20 for arguments in attempt.case.inputs)


def _levels(case):
    return (case.n - 1).bit_length()  # ceil(log2 n)


def _numbers(came):
    """(value, rank) as Python's own integers; None where it is no such pair."""
    try:
        value, rank = came
        return operator.index(value), operator.index(rank)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _all_numbers(test):
    """It ended, and test(came, expected) holds for the pairs of all ranks."""

    def holds(attempt):
        if attempt.error is not None:
            return False
        pairs = zip(map(_numbers, attempt.came), attempt.case.expected, strict=True)
        return all(came is not None and test(came, wanted) for came, wanted in pairs)

    return holds


def _rounded(came, wanted):
    return abs(came[0] - wanted[0]) <= 1e-5 * abs(wanted[0])


def _overflows(attempt):
    """A large value has become one that no rank has, or has raised an error."""
    values = [value for (value,) in attempt.case.inputs]
    if attempt.error is not None:
        return "verflow" in str(attempt.cause)
    came = [_numbers(came)[0] for came in attempt.came]
    strange = [x for x in came if x not in values and 2**40 < abs(x) < 2**64]
    return max(values) > 2**60 and len(strange) > 0


def _count(messages, rounds):
    """It is right, and these functions of n give its messages and its rounds."""

    def holds(a):
        n = a.case.n
        exact = sum(a.run.messages) == messages(n) and a.run.rounds == rounds(n)
        return exact and a.run.rounds > _levels(a.case)

    return both(right, holds)


def _no_power(attempt):
    return bool(attempt.case.n & (attempt.case.n - 1))


where_max = Exercise(
    "06.2",
    "Where is the maximum?",
    max_cases,
    [
        from_messages(),
        all_waited(),
        rounds(_levels, exactly=False),
        messages(lambda case: case.n * _levels(case), exactly=False),
        bytes_sent(lambda case: 16 * _levels(case), exactly=False),
    ],
    [
        Mistake(
            "no pair",
            lambda a: a.error is None and None in map(_numbers, a.came),
            "Some rank does not return a pair of two whole numbers.",
            "Every rank returns (value, rank), not only rank 0.",
        ),
        Mistake(
            "ties",
            both(
                wrong,
                lambda a: a.case.facts["ties"],
                _all_numbers(lambda came, wanted: came[0] == wanted[0]),
            ),
            "Where several ranks have the maximum, it is not always the lowest one.",
            "Compare the ranks too where the values are equal, on both sides alike.",
        ),
        Mistake(
            "starts at zero",
            both(wrong, lambda a: 0 in [_numbers(came)[0] for came in a.came]),
            "It finds a maximum of 0, which no rank has.",
            "Start from your own value, not from zero.",
        ),
        Mistake(
            "powers of two",
            both(wrong, _no_power, lambda a: not a.case.facts["ties"], _small),
            "It is wrong where the number of ranks is no power of two.",
            "A partner that does not exist cannot be left out: its news is missing. "
            "Send to one rank and receive from another.",
        ),
        Mistake(
            "rounded",
            both(wrong, _all_numbers(_rounded)),
            "The values are nearly right: large whole numbers do not fit into floats.",
            "A float64 has 53 binary digits, a float32 has 24, an int64 has 63.",
        ),
        Mistake(
            "packed",
            _overflows,
            "Large values go wrong: there is no room for the rank in the same number.",
            "A message may hold two numbers.",
        ),
        Mistake(
            "powers of two",
            both(_no_power, lambda a: "group has ranks" in str(a.cause)),
            "It works only where the number of ranks is a power of two.",
            "Send to one rank and receive from another: both exist for any n, "
            "if you count round the circle.",
        ),
        Mistake(
            "two messages",
            both(
                right,
                lambda a: sum(a.run.messages) == 2 * a.case.n * _levels(a.case) > 0,
                lambda a: max(a.run.bytes_sent) <= 16 * _levels(a.case),
            ),
            "Value and rank travel in two messages.",
            "Put both into one tensor.",
        ),
        Mistake(
            "ring",
            _count(lambda n: n * (n - 1), lambda n: n - 1),
            "Each rank learns of one more rank in each round.",
            "After a round you know two values, your own and another. Pass on both.",
        ),
        Mistake(
            "there and back",
            lambda a: any(
                _count(lambda n: 2 * (n - 1), back)(a)
                for back in (lambda n: 2 * (n - 1).bit_length(), lambda n: 2 * (n - 1))
            ),
            "It gathers on one rank and sends back from there: twice the way.",
            "In each round every rank can learn something, not only half of them.",
        ),
        Mistake(
            "fold",
            both(right, _no_power, lambda a: a.run.rounds == a.case.n.bit_length() + 1),
            "The ranks beyond the power of two cost a round before and one after.",
            "A sum may not count a term twice. May a maximum?",
        ),
    ],
    agrees=lambda came, wanted, case: _numbers(came) == wanted,
)


# 06.3 Place the ring


class Host(str):
    """A host name whose hash differs from rank to rank, as on real processes."""

    def __new__(cls, name, salt):
        self = super().__new__(cls, name)
        self.salt = salt
        return self

    def __hash__(self):
        return zlib.crc32(f"{self.salt} {str(self)}".encode())

    def __reduce__(self):
        return Host, (str(self), self.salt)


HOSTS = {"a": "node1", "b": "node11", "c": "Node1", "d": "node01"}


def place_cases(rng):
    """One host, one rank on each, and hosts with uneven numbers of ranks, shuffled."""
    fixed = ["a", "aa", "abc", "abbab", "abcba"]
    drawn = ["aaabb", "aaabbc", "aabbbcdd"]
    drawn = ["".join(rng.permutation(list(names))) for names in drawn]
    for names in fixed + drawn:
        n, hosts = len(names), [HOSTS[name] for name in names]
        yield Case(
            n,
            f"{ranks(n)} on the hosts {', '.join(hosts)}",
            inputs=[([Host(host, r) for host in hosts],) for r in range(n)],
            expected=[f"each of the ranks 0 to {n - 1}, once"] * n,
            facts={"hosts": hosts, "fixed": names in fixed},
        )


def _is_order(came, n):
    """A list with each rank once."""
    listed = isinstance(came, list | tuple)
    whole = listed and all(isinstance(r, int | np.integer) for r in came)
    return whole and sorted(came) == list(range(n))


def round_the_ring(fn, case, **options):
    """The attempt, and if its order is one, the Run of a message that follows it."""
    attempt = on_ranks(fn, case, **options)
    if attempt.error is None and _is_order(attempt.values[0], case.n):
        if _differing(attempt) == 0:
            order = [int(rank) for rank in attempt.values[0]]
            options = {"backend": "sim", "device": "cpu", **options}
            attempt.run = run(_pass_on, order, world_size=case.n, **options)
    return attempt


MESSAGE = 1000  # bytes


def _pass_on(order):
    """Every rank sends one message to the next in the order."""
    n, r = torch.distributed.get_world_size(), torch.distributed.get_rank()
    i = order.index(r)
    mine = torch.zeros(MESSAGE, dtype=torch.uint8)
    if n > 1:
        exchange(mine, order[(i + 1) % n], torch.empty_like(mine), order[i - 1])


def _differing(attempt):
    orders = [str(value) for value in attempt.values]
    return sum(order != orders[0] for order in orders)


def _leaving(attempt):
    """Bytes that leave the host from which most do."""
    hosts, traffic = np.array(attempt.case.facts["hosts"]), attempt.run.traffic
    away = [traffic[hosts == host][:, hosts != host].sum() for host in set(hosts)]
    return int(max(away))


def _least_leaving(case):
    return MESSAGE * (len(set(case.facts["hosts"])) > 1)


def _flat(came):
    if isinstance(came, list | tuple):
        return [x for item in came for x in _flat(item)]
    return [came]


place = Exercise(
    "06.3",
    "Place the ring",
    place_cases,
    [
        Requirement(
            "ranks with another order than rank 0",
            _differing,
            lambda case: 0,
            vital=True,
        ),
        Requirement(
            "bytes that leave a host",
            _leaving,
            _least_leaving,
            exactly=False,
            show=show_bytes,
            vital=True,
        ),
    ],
    [
        Mistake(
            "no list",
            both(wrong, lambda a: not isinstance(a.came[0], list | tuple)),
            "It does not return a list.",
        ),
        Mistake(
            "nested",
            both(wrong, lambda a: _is_order(_flat(a.came[0]), a.case.n)),
            "It returns a list for each host; wanted is one list of ranks.",
            "Put the lists behind each other.",
        ),
        Mistake(
            "names",
            both(wrong, lambda a: any(isinstance(x, str) for x in _flat(a.came[0]))),
            "There are host names in the list; wanted are ranks.",
            "The place of a name in `hosts` is the rank.",
        ),
        Mistake(
            "lost",
            both(wrong, lambda a: len(set(map(str, _flat(a.came[0])))) < a.case.n),
            "Not every rank is in the order.",
            "Hosts may have different numbers of ranks: zip stops at the shortest.",
        ),
        Mistake(
            "disagree",
            lambda a: a.error is None and _differing(a) > 0,
            "The ranks return different orders, so a ring of them would hang.",
            "Each process goes through a set of names in its own order. Sort them.",
        ),
        Mistake(
            "rank order",
            lambda a: (
                a.case.facts["fixed"]
                and right(a)
                and list(a.came[0]) == list(range(a.case.n))
            ),
            "It is the order of the ranks, wherever they are.",
            "Which ranks should be neighbours in the ring?",
        ),
        Mistake(
            "twice",
            both(right, lambda a: _leaving(a) > _least_leaving(a.case)),
            "The ring leaves some host more than once.",
            "Visit all ranks of a host before you go on to the next.",
        ),
    ],
    agrees=lambda came, wanted, case: _is_order(came, case.n),
    perform=round_the_ring,
)


# 06.4 Which one, when

COSTS = {
    "naive": costs.naive_cost,
    "tree": costs.tree_cost,
    "direct": costs.direct_cost,
    "ring": costs.ring_cost,
    "recursive doubling": costs.recursive_doubling_cost,
    "halving-doubling": costs.halving_doubling_cost,
}
CHUNKED = ("ring", "halving-doubling")
CLUSTERS = [  # ranks, and how many times alpha the tensor's bytes take
    (1, 3.0),
    (2, 0.1),
    (3, 0.2),
    (3, 50.0),
    (4, 0.1),
    (4, 30.0),
    (5, 0.3),
    (6, 20.0),
    (7, 0.2),
    (8, 0.5),
    (8, 100.0),
    (12, 0.3),
    (12, 4.0),
    (12, 200.0),
    (64, 0.5),
    (64, 1000.0),
    (100, 1e4),
]


def which_cases(rng):
    """Small and large tensors on few and many ranks, powers of two or not."""
    for n, ratio in CLUSTERS:
        alpha = float(np.exp(rng.uniform(np.log(2e-6), np.log(1e-3))))
        beta = float(np.exp(rng.uniform(np.log(1e-11), np.log(1e-9))))
        elements = max(100 * n, round(ratio * alpha / beta / ITEM))
        seconds = {
            name: cost(elements, n, ITEM).seconds(alpha, beta)
            for name, cost in COSTS.items()
        }
        best = min(seconds, key=seconds.get)
        S = elements * ITEM
        text = f"S = {show_bytes(S)}, {ranks(n)}, alpha {alpha:.3g} s, beta {beta:.3g}"
        yield Case(
            1,
            text,
            inputs=[(S, n, alpha, beta)],
            expected=[(best, seconds[best])],
            facts={"seconds": seconds, "best": best},
        )


def _choice(attempt):
    """(name, seconds) if it is such a pair, else None."""
    came = attempt.values[0]
    pair = isinstance(came, list | tuple) and len(came) == 2
    if not pair or not isinstance(came[0], str) or came[0] not in COSTS:
        return None
    try:
        return came[0], float(came[1])
    except (TypeError, ValueError, RuntimeError):
        return None


def _fast_enough(came, wanted, case):
    seconds = case.facts["seconds"]
    pair = isinstance(came, list | tuple) and len(came) == 2
    known = pair and isinstance(came[0], str) and came[0] in seconds
    return known and seconds[came[0]] <= 1.05 * seconds[case.facts["best"]]


def _error(attempt):
    """By how much the seconds differ from those of the algorithm that is named."""
    if (choice := _choice(attempt)) is None:
        return float("inf")
    name, seconds = choice
    true = attempt.case.facts["seconds"][name]
    return abs(seconds - true) / true if true else float(seconds != 0)


def _as_if(seconds):
    """The seconds are those of its algorithm at seconds(cost, alpha, beta) instead."""

    def holds(attempt):
        if attempt.error is not None or _error(attempt) <= 0.05:
            return False
        name, came = _choice(attempt) or ("naive", float("nan"))
        S, n, alpha, beta = attempt.case.inputs[0]
        other = seconds(COSTS[name](S // ITEM, n, ITEM), alpha, beta)
        return abs(came - other) <= 0.02 * other

    return holds


def _slow_kind(kinds):
    """It names one of these, and one that is none of these is faster."""

    def holds(attempt):
        if not wrong(attempt) or not _choice(attempt):
            return False
        name, best = _choice(attempt)[0], attempt.case.facts["best"]
        return (name in kinds) and (best not in kinds)

    return holds


def _optimistic(attempt):
    """It promises less than its algorithm needs where n is no power of two."""
    n = attempt.case.inputs[0][1]
    if attempt.error is not None or not _choice(attempt) or not n & (n - 1):
        return False
    name, seconds = _choice(attempt)
    folds = name in ("recursive doubling", "halving-doubling")
    return folds and 0.52 < seconds / attempt.case.facts["seconds"][name] < 0.95


which = Exercise(
    "06.4",
    "Which one, when",
    which_cases,
    [
        Requirement(
            "seconds are off by",
            _error,
            lambda case: 0.05,
            exactly=False,
            show="{:.1%}".format,
        )
    ],
    [
        Mistake(
            "no pair",
            lambda a: a.error is None and _choice(a) is None,
            "It does not return one of the six names and a number of seconds.",
            'For example ("ring", 0.003). The names are in the text.',
        ),
        Mistake(
            "no alpha",
            _as_if(lambda cost, alpha, beta: cost.seconds(0, beta)),
            "The seconds have no alpha in them.",
            "Every round costs alpha, however small its messages are.",
        ),
        Mistake(
            "no beta",
            _as_if(lambda cost, alpha, beta: cost.seconds(alpha, 0)),
            "The seconds have no beta in them.",
            "A message of b bytes takes alpha + beta b.",
        ),
        Mistake(
            "bits",
            _as_if(lambda cost, alpha, beta: cost.seconds(alpha, 8 * beta)),
            "It counts eight times the bytes.",
            "S is in bytes and beta in seconds per byte.",
        ),
        Mistake(
            "fold",
            _optimistic,
            "It forgets what ranks beyond a power of two cost.",
            "Such a rank gives its tensor to another one before, and gets it back "
            "after: two rounds of S bytes more, and log2 of the power of two below n.",
        ),
        Mistake(
            "large",
            _slow_kind([name for name in COSTS if name not in CHUNKED]),
            "For a tensor so large, a way that cuts it into chunks is faster.",
            "In a round of the ring a rank sends S/n bytes, not S.",
        ),
        Mistake(
            "small",
            _slow_kind(CHUNKED),
            "For a tensor so small, a way with fewer rounds is faster.",
            "Compute the seconds of all six, then take the smallest.",
        ),
        Mistake(
            "seconds",
            both(right, lambda a: _error(a) > 0.05),
            "The choice is right, the number of seconds is not.",
            "Which message is the longest in each round? Add alpha + beta b over them.",
        ),
    ],
    agrees=_fast_enough,
)


# 06.5 Be the checker

LONGEST = 15.0  # seconds for one judgement


class _TooLong(BaseException):
    """Ends a judge that does not come to an end."""


def judge_cases(rng):
    """Three right all-reduces and the wrong ones, mixed."""
    for allreduce, fault, what in candidates.draw(rng):
        yield Case(
            1,
            f"an all-reduce that {what}",
            inputs=[(allreduce,)],
            expected=[fault is None],
            facts={"fault": fault},
        )


def in_this_process(fn, case, **options):
    """Tried outside of the ranks, since a judge starts ranks itself.

    It runs in a thread of its own, so that it can be left where it does not end.
    """
    attempt, outcome = Attempt(case), {}

    def work():
        try:
            outcome["value"] = fn(*case.inputs[0])
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, name="judge", daemon=True)
    with time_limit(LONGEST):
        thread.start()
        try:
            thread.join(LONGEST)
            ended = not thread.is_alive()
        finally:
            _end(thread)
    if not ended:
        text = f"no progress: the judge is not at an end after {LONGEST:g} s"
        attempt.error = RankError(text)
    elif "error" in outcome:
        cause = outcome["error"]
        attempt.error = RankError(f"the judge raised {type(cause).__name__}: {cause}")
        attempt.error.__cause__ = cause
    else:
        attempt.values, attempt.args = [outcome["value"]], [case.inputs[0]]
    return attempt


def _end(thread):
    """The thread has ended, or it swallows everything and is left behind."""
    for _ in range(50):
        if not thread.is_alive():
            return
        interrupt_thread(thread, _TooLong)
        thread.join(0.02)


def _verdict(came):
    """True or False; None where it is neither."""
    return bool(came) if isinstance(came, bool | np.bool_) else None


def _accepts(fault):
    def holds(attempt):
        seen = attempt.error is None and attempt.case.facts["fault"] == fault
        return seen and _verdict(attempt.came[0]) is True

    return holds


judge = Exercise(
    "06.5",
    "Be the checker",
    judge_cases,
    mistakes=[
        Mistake(
            "uncaught",
            raises(RankError),
            "An all-reduce that hangs or raises is wrong; your judge fails with it.",
            "Catch d2lpar.RankError, and return False.",
        ),
        Mistake(
            "raises",
            raises(BaseException),
            "The judge itself fails: see the error above.",
        ),
        Mistake(
            "no verdict",
            lambda a: a.error is None and _verdict(a.came[0]) is None,
            "The judge returns neither True nor False.",
        ),
        Mistake(
            "too strict",
            lambda a: wrong(a) and a.case.facts["fault"] is None,
            "It rejects an all-reduce that is right.",
            "The limit on bytes is that of whole chunks, and floats are rounded in "
            "another order: integers make equality exact.",
        ),
        *(
            Mistake(
                fault, _accepts(fault), f"It accepts an all-reduce that {what}.", more
            )
            for fault, (what, more, _) in candidates.FAULTS.items()
        ),
    ],
    agrees=lambda came, wanted, case: _verdict(came) is wanted,
    perform=in_this_process,
)

EXERCISES = [ring, where_max, place, which, judge]
