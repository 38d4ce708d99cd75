"""06.1 The ring, mirrored."""

from functools import partial

import torch

from ...allreduce import costs
from ...report.units import show_bytes
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, argument, ranks, same
from ..signs import both, breaks

CALLS = [  # S, op, dtype
    (0, "sum", "float64"),
    (1, "max", "int64"),
    (5, "sum", "float64"),
    (12, "sum", "int64"),
    (13, "max", "float64"),
    (1001, "sum", "float64"),
    (1001, "max", "float64"),
]


def cases(rng):
    """Sizes that divide by n and do not, below n, and 0; all values below zero.

    The integers have more digits than a float64.
    """
    for n in range(1, 9):
        large = [(30_011, "sum", "float64")] * (n == 4)
        for S, op, dtype in (*(CALLS if n < 6 else CALLS[2::2]), *large):
            if dtype == "int64":
                terms = -rng.integers(2**54, 2**56, (n, S))
            else:
                terms = rng.normal(size=(n, S)) - 5
            terms = torch.from_numpy(terms)  # [n, S]
            yield Case(
                n,
                f'{ranks(n)}, S = {S}, {dtype}, "{op}"',
                [(x.clone(), op) for x in terms],
                facts={"S": S},
                traced=S > 10_000,
                truth=partial(combined, terms, op),
            )


def combined(terms, op, slip=""):
    """What each rank has afterwards: [n, S] -> n tensors."""
    n, S = terms.shape
    if slip == "unchanged":
        return list(terms)
    if slip == "combined twice" and op == "sum":
        sums = terms.clone()
        for k in (*range(1, n), *range(n - 1)):  # rank r sends chunk r+k
            for r, incoming in enumerate(sums.roll(-1, 0)):
                i = (r + 1 + k) % n
                sums[r].tensor_split(n)[i].add_(incoming.tensor_split(n)[i])
        return list(sums)
    whole = terms.sum(0) if op == "sum" or slip == "op" else terms.amax(0)
    done = S // n * n if slip == "tail" else S
    return [torch.cat([whole[:done], x[done:]]) for x in terms]


def fewest(case):
    """Bytes: all but chunk r on the first way, all but chunk r-1 on the second."""
    S, chunks = case.facts["S"], costs.chunk_sizes(case.facts["S"], case.n)
    return [8 * (2 * S - chunks[r] - chunks[r - 1]) for r in range(case.n)]


def elsewhere(attempt, way=-1):
    """Bytes of each rank to others than its left neighbour (way=1: its right one)."""
    n, traffic = attempt.case.n, attempt.run.traffic
    return [int(sent.sum() - sent[(r + way) % n]) for r, sent in enumerate(traffic)]


def telling(attempt):
    """It ended, and enough ranks and elements tell one way from another."""
    return attempt.error is None and 2 < attempt.case.n <= attempt.case.facts["S"]


def one_hub(attempt):
    """All that is sent is sent by one rank, or to it."""
    traffic = attempt.run.traffic
    return (traffic.sum(0) + traffic.sum(1)).max() == traffic.sum() > 0


def too_few_chunks(attempt):
    """An index is out of range, and in no call in which n divides S."""
    out = signs.raises(IndexError)
    found = [(a.case.n, a.case.facts["S"]) for a in attempt.attempts if out(a)]
    return out(attempt) and all(S % n or S == 0 for n, S in found)


def first_half_right(attempt):
    """The outcome is wrong, and chunk r of rank r is what it should be."""
    n, came, wanted = attempt.case.n, attempt.came, attempt.case.expected
    return signs.wrong(attempt) and all(
        same(*(x[r].tensor_split(n)[r] for x in (came, wanted))) for r in range(n)
    )


def whole_tensors(attempt):
    """Every rank sends n-1 times the whole tensor, whatever n is."""
    every = [a for a in attempt.attempts if telling(a)]
    sent = [8 * (a.case.n - 1) * a.case.facts["S"] for a in every]
    return [{*a.run.bytes_sent} for a in every] == [{each} for each in sent]


BYTES = rows.bytes_sent(fewest)
LEFT = Requirement(
    "bytes to others than the left", elsewhere, lambda case: 0, show=show_bytes
)
ROUNDS = rows.rounds(lambda case: 2 * (case.n - 1), exactly=False)
MEMORY = rows.extra_memory(
    lambda case: 8 * -(-case.facts["S"] // case.n) + 100 + case.noise
)
BITS = rows.same_bits()
SAID = Requirement(
    "ranks that return a value",
    lambda a: sum(value is not None for value in a.values),
    lambda case: 0,
)

exercise = Exercise(
    "06.1",
    cases,
    [rows.from_messages(), rows.all_waited(), BYTES, LEFT, ROUNDS, MEMORY, BITS, SAID],
    {
        "whole tensor": both(telling, whole_tensors),
        "hub": both(telling, one_hub),
        "direction": both(
            telling, lambda a: any(elsewhere(a)) and not any(elsewhere(a, way=1))
        ),
        "too few chunks": too_few_chunks,
        **signs.slips("tail", "unchanged", "combined twice", "op"),
        "second half": signs.always(first_half_right),
        "bits": breaks(BITS),
        "owner": both(
            breaks(BYTES), lambda a: sum(a.run.bytes_sent) == sum(fewest(a.case))
        ),
        "spare": breaks(MEMORY),
        "rounds": both(breaks(ROUNDS), BYTES.holds),
    },
    outcome=argument(0),
)
