"""05.1 Deal a batch like cards."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_05 import on_ranks, to_itself


def cases(rng):
    """Batches of B rows on the root only; B < n, B a multiple of n, and between."""
    plans = [*((*each, 3) for each in on_ranks((0, 1, 5, 8, 11))), (3, 7, 2)]
    return sorted((draw(rng, *plan) for plan in plans), key=lambda case: case.n)


def draw(rng, n, B, features):
    root = int(rng.integers(n))
    batch = torch.from_numpy(rng.normal(size=(B, features)))
    return Case(
        n,
        f"{ranks(n)}, root {root}, B = {B} rows of {features}",
        [(batch if r == root else None, root, B, features) for r in range(n)],
        facts={"root": root, "S": B},
        truth=partial(hands, batch, n, root),
    )


def hands(batch, n, root, slip=""):
    """The rows of each rank: [B, features] -> n tensors."""
    if slip == "blocks":
        return batch.tensor_split(n)
    first = root if slip == "root first" else 0
    return [batch[(r - first) % n :: n] for r in range(n)]


def leaving(case):
    """The bytes of the messages that the root has to send."""
    sizes = [hand.nbytes for hand in case.expected]
    return [size for r, size in enumerate(sizes) if r != case.facts["root"] and size]


def for_no_row(attempt):
    """All who wait, wait for a message of no rows."""
    case = attempt.case
    rowless = {case.rank(part) for part in range(case.facts["S"], case.n)}
    ends = {r if way == "src" else peer for r, way, peer in signs.waiting(attempt)}
    return len(rowless) < case.n and bool(ends) and ends <= rowless


def other_dtype_of_none(attempt):
    """Only ranks without rows are wrong, and their tensors have the right shape."""
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return all(
        signs.same(x, hand)
        or (torch.is_tensor(x) and x.shape == hand.shape and not len(hand))
        for x, hand in pairs
    )


def neither_root_nor_first(attempt):
    """That is rank 0, or in a variation the rank that plays its part."""
    case = attempt.case
    return attempt.error.rank not in (0, case.rank(0), case.rank(case.facts["root"]))


def root_is_rank_0(attempt):
    """It has nothing to deal, and deals, or is waited for by all who receive."""
    sources = {peer for _, way, peer in signs.waiting(attempt) if way == "src"}
    return USES_NONE(attempt) or (sources == {0} and attempt.case.facts["root"])


USES_NONE = signs.says("NoneType")
BYTES = rows.bytes_sent(
    lambda case: [sum(leaving(case)) * (r == case.facts["root"]) for r in range(case.n)]
)
MESSAGES = rows.messages(lambda case: len(leaving(case)), exactly=False)
UNTOUCHED = rows.untouched()

exercise = Exercise(
    "05.1",
    cases,
    [BYTES, MESSAGES, rows.from_messages(), rows.all_waited(), UNTOUCHED],
    {
        "strided": signs.strided,
        "to itself": to_itself,
        "dtype": signs.other_dtype,
        **signs.slips("blocks", "root first"),
        "empty dtype": signs.always(other_dtype_of_none, signs.wrong),
        "no batch": both(USES_NONE, neither_root_nor_first),
        "root": root_is_rank_0,
        "rowless": both(
            for_no_row,
            signs.only(lambda c: c.facts["S"] % c.n or c.facts["S"] == 0, signs.hangs),
        ),
        "nothing returned": signs.returns_none,
        "no tensor": signs.not_a_tensor,
        "whole batch": breaks(BYTES),
        "empty messages": both(
            breaks(MESSAGES), lambda a: a.case.facts["S"] < a.case.n
        ),
        "row by row": breaks(MESSAGES),
        "batch changed": breaks(UNTOUCHED),
    },
)
