"""05.3 Running sum."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, argument, ranks
from ..signs import both, breaks
from .chapter_05 import (
    SPARE,
    TWO_NODES,
    distances,
    on_ranks,
    to_itself,
    totals,
    two_nodes,
)


def cases(rng):
    """A tensor per rank, empty ones, and a cluster with links of unequal speed."""
    plain = [(n, S, False) for n, S in on_ranks((1, 7, 1000))]
    more = [(2, 0, False), (8, 0, False), (4, 1000, True), (4, 30_011, False)]
    for n, S, unequal in sorted(plain + more, key=lambda which: which[0]):
        terms = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
        yield Case(
            n,
            f"{ranks(n)}, {S:,} elements" + TWO_NODES * unequal,
            [(x.clone(),) for x in terms],
            facts={"S": S},
            options=two_nodes(n) if unequal else {},
            traced=S > 10_000,
            truth=partial(sums, terms),
        )


def sums(terms, slip=""):
    """What each rank has after the steps 1, 2, 4, ...: [n, S] -> n tensors."""
    n = len(terms)
    if slip == "exclusive":
        return [..., *terms.cumsum(0)[:-1]]
    if slip == "total":
        return [terms.sum(0)] * n
    if slip == "mirrored":
        return list(terms.flip(0).cumsum(0).flip(0))
    sums = terms.clone()
    few = {"too few steps": -1, "rounded down": n.bit_length() - 1}
    for d in distances(n)[: few.get(slip)]:
        before = sums if slip == "adds before sending" else sums.clone()
        for r in range(0 if slip == "wraps" else d, n):
            sums[r] += before[r - d]
    return list(sums)


def fewest(case):
    """Messages of all ranks: those who have somebody d places to the right send."""
    return sum(case.n - d for d in distances(case.n))


def size(case):
    """Bytes of one rank's tensor."""
    return 8 * case.facts["S"]


ROUNDS = rows.rounds(lambda case: len(distances(case.n)), exactly=False)
MESSAGES = rows.messages(fewest, exactly=False)
BYTES = rows.bytes_sent(lambda case: len(distances(case.n)) * size(case), exactly=False)
MEMORY = rows.extra_memory(lambda case: 3 * size(case) + SPARE + case.noise)
SLOW = both(breaks(ROUNDS), lambda a: a.case.n > 3)

exercise = Exercise(
    "05.3",
    cases,
    [ROUNDS, MESSAGES, BYTES, MEMORY, rows.from_messages(), rows.all_waited()],
    {
        "to itself": to_itself,
        "not in place": signs.left_alone(),
        **signs.slips("exclusive", "wraps", "total", "mirrored"),
        **signs.slips("adds before sending"),
        "too few steps": signs.slip("too few steps", "rounded down"),
        "touches what leaves": signs.touches_what_leaves,
        "chain": both(SLOW, lambda a: totals(a) == a.case.n - 1),
        "one after the other": both(SLOW, lambda a: totals(a) == fewest(a.case)),
        "single terms": both(
            SLOW, lambda a: totals(a) >= a.case.n * (a.case.n - 1) // 2
        ),
        "idle messages": both(breaks(MESSAGES), lambda a: ROUNDS.holds(a)),
        "lists": breaks(BYTES),
        "buffer": breaks(MEMORY),
    },
    outcome=argument(0),
)
