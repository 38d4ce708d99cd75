"""07.2 The last batches."""

import copy
from functools import partial

import torch
from torch.nn import functional as F

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, either
from .chapter_07 import batch, equal_nets, idle, near, ring_bytes, sizes, weights

RATE = 0.5
COUNTS = [[2], [2, 2], [1, 2], [3, 1], [2, 0], [2, 1, 3], [1, 4, 0, 2], [1, 1, 2, 3, 1]]


def cases(rng):
    """Ranks with other numbers of batches, of other numbers of rows."""
    for counts in COUNTS:
        data = [[batch(rng, int(rng.integers(1, 6))) for _ in range(m)] for m in counts]
        nets = equal_nets(rng, len(counts))
        yield Case(
            len(counts),
            f"{ranks(len(counts))} with {counts} batches",
            inputs=[(net, mine, RATE) for net, mine in zip(nets, data, strict=True)],
            facts={"counts": counts},
            truth=partial(trained, nets[0], data),
        )


def trained(net, data, slip=""):
    """The weights of each rank after all steps, computed in one process."""
    net, counts, number = copy.deepcopy(net), [len(mine) for mine in data], 0
    for k in range(min(counts) if slip == "too few steps" else max(counts)):
        old, before = [p.grad for p in net.parameters()], number
        net.zero_grad()
        last = [mine[-1:] if slip == "again" else [] for mine in data]
        found = [mine[k : k + 1] or old for mine, old in zip(data, last, strict=True)]
        active = [pair for pairs in found for pair in pairs]
        firsts = [mine[0] for mine in data if mine[k : k + 1]]
        rows = [len(y) for _, y in (firsts if slip == "first rows" else active)]
        number = sum(rows)
        for count, (x, y) in zip(rows, active, strict=True):
            share = {"all ranks": 1 / len(data), "mean of means": 1 / len(active)}
            loss = F.cross_entropy(net(x), y)
            (share.get(slip, count / number) * loss).backward()
        kept = {"stale": 1, "stale mean": 1 / number, "stale sum": before / number}
        idle = (len(data) - len(active)) * kept.get(slip, 0)
        with torch.no_grad():
            for p, grad in zip(net.parameters(), old, strict=True):
                p.grad += idle * grad if idle and k else 0
                p -= RATE * p.grad
    return [weights(net)] * len(data)


def stops_early(attempt):
    """A rank that has fewer batches than others has returned, and they wait for it."""
    counts, error = attempt.case.facts["counts"], attempt.error
    gone = signs.hangs(attempt) and "has returned" in str(error)
    return gone and counts[error.rank] < max(counts)


def small(case):
    """All-reduces of up to n numbers that are allowed: one a step, and one more."""
    return max(case.facts["counts"]) + 1


def most_bytes(case):
    """Bytes of rings over the gradients of each step, and of the small ones."""
    gradients = max(case.facts["counts"]) * ring_bytes(sizes(case), case.n)
    return gradients + small(case) * ring_bytes([case.n], case.n)


def most_messages(case):
    """Messages of all ranks in as many rings."""
    rings = max(case.facts["counts"]) * len(sizes(case)) + small(case)
    return rings * 2 * (case.n - 1) * case.n


BYTES = rows.bytes_sent(most_bytes, exactly=False)
MESSAGES = rows.messages(most_messages, exactly=False)

exercise = Exercise(
    "07.2",
    cases,
    [BYTES, MESSAGES, rows.from_messages()],
    {
        "no batch at all": both(signs.only(idle), signs.raises(BaseException)),
        "runs out": stops_early,
        **signs.slips("too few steps", "again", "all ranks", "mean of means"),
        **signs.slips("first rows"),
        "stale": signs.slip("stale", "stale mean", "stale sum"),
        "replicas differ": lambda a: (
            signs.wrong(a)
            and not signs.not_a_number(a)
            and not a.gives([a.came[0]] * a.case.n)
        ),
        "talk": either(breaks(BYTES), breaks(MESSAGES)),
    },
    outcome=lambda attempt, rank: weights(attempt.args[rank][0]),
    agrees=near,
)
