"""05.5 Transpose what no rank can hold."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_05 import SPARE, TWO_NODES, on_ranks, to_itself, two_nodes


def cases(rng):
    """Square matrices cut by rows, also with fewer rows than ranks."""
    plain = [(n, N, False) for n, N in on_ranks((1, 5, 8, 64, 67))]
    more = [(4, 67, True), (4, 203, False)]
    for n, N, unequal in sorted(plain + more, key=lambda which: which[0]):
        whole = torch.from_numpy(rng.uniform(1, 9, size=(N, N)))
        yield Case(
            n,
            f"{ranks(n)}, N = {N}" + TWO_NODES * unequal,
            [(rows.clone(),) for rows in whole.tensor_split(n)],
            facts={"S": N, "rows": [len(rows) for rows in whole.tensor_split(n)]},
            options=two_nodes(n) if unequal else {},
            traced=N > 100,
            truth=partial(transposed, whole, n),
        )


def transposed(whole, n, slip=""):
    """Each rank's rows of the transposed matrix: [N, N] -> n tensors [rows, N].

    Anything where two slips make blocks of other shapes.
    """
    shards = whole.tensor_split(n)
    sizes = [len(shard) for shard in shards]
    blocks = [shard.split(sizes, dim=1) for shard in shards]  # i has, and j needs
    if slip == "columns":
        return whole.tensor_split(n, dim=1)
    if not slip:
        return whole.t().tensor_split(n)
    if len(whole) % n:
        return [...] * n
    if slip == "not moved":
        blocks = [[block.t() for block in line] for line in blocks]
    else:
        blocks = zip(*blocks, strict=True)
    return [torch.cat(list(line), dim=1) for line in blocks]


def blocks_of_others(case):
    """Bytes that each rank sends."""
    return [8 * own * (case.facts["S"] - own) for own in case.facts["rows"]]


def result_and_four_blocks(case):
    N, sizes = case.facts["S"], case.facts["rows"]
    blocks = 4 * sizes[0] ** 2
    return [8 * (own * N + blocks) + SPARE + case.noise for own in sizes]


def whole_somewhere(attempt):
    """On four ranks and less, or in a small matrix, a few shards are as large."""
    n, N = attempt.case.n, attempt.case.facts["S"]
    return n > 4 and N > 60 and max(attempt.run.peak_memory) >= 8 * N * N


BYTES = rows.bytes_sent(blocks_of_others)
MESSAGES = rows.messages(lambda case: case.n * (case.n - 1), exactly=False)
ROUNDS = rows.rounds(lambda case: case.n - 1, exactly=False)
MEMORY = rows.extra_memory(result_and_four_blocks)

exercise = Exercise(
    "05.5",
    cases,
    [
        *(BYTES, MESSAGES, ROUNDS, MEMORY),
        *(rows.from_messages(), rows.all_waited(), rows.untouched()),
    ],
    {
        "strided": signs.strided,
        "to itself": to_itself,
        "dtype": signs.other_dtype,
        "block sizes": signs.mismatched,
        **signs.slips("not transposed", "not moved", "columns"),
        "shapes": both(signs.says("shape"), lambda a: a.case.facts["S"] % a.case.n),
        "touches what leaves": signs.touches_what_leaves,
        "whole matrix": both(breaks(MEMORY), whole_somewhere),
        "too much sent": breaks(BYTES),
        "row by row": breaks(MESSAGES),
        "many blocks": breaks(MEMORY),
        "in turn": breaks(ROUNDS),
    },
)
