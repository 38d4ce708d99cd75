"""05.4 Reduce-scatter with unequal shards."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_05 import SIZES, SPARE, TWO_NODES, some, to_itself, two_nodes


def cases(rng):
    """Shards of equal and unequal sizes, some of them empty."""
    for n in SIZES:
        one = [7 * (r == n // 2) for r in range(n)]  # one rank has everything
        small = [int(size) for size in rng.integers(1, 6, n)]
        gaps = [size * (r % 3 != 1) for r, size in enumerate(small)]
        large = [int(size) for size in rng.permutation(n) * 40 + 110]
        all_sizes = [3] * n, one, gaps, small, large
        for sizes in some(all_sizes, n):
            yield draw(rng, sizes)
        if n == 2:
            yield draw(rng, [0, 0])
        if n == 4:
            yield draw(rng, [120, 90, 140, 100], unequal=True)
            yield draw(rng, [10_007, 10_000, 9_000, 10_001])


def draw(rng, sizes, unequal=False):
    n, S = len(sizes), sum(sizes)
    tensors = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
    return Case(
        n,
        f"{ranks(n)}, sizes {sizes}" + TWO_NODES * unequal,
        [(x.clone(), list(sizes)) for x in tensors],
        facts={"S": S, "sizes": sizes},
        options=two_nodes(n) if unequal else {},
        traced=S > 10_000,
        truth=partial(shards, tensors, sizes),
    )


def shards(tensors, sizes, slip=""):
    """Rank r has the sum of shard r: [n, S] -> n tensors."""
    n, total = len(sizes), tensors.sum(0)
    if slip == "nothing added":
        return [x.split(sizes)[r] for r, x in enumerate(tensors)]
    if slip == "equal shards":
        return total.tensor_split(n)
    too_far = {"next": 1, "previous": -1}.get(slip, 0)
    return [total.split(sizes)[(r + too_far) % n] for r in range(n)]


def others(case):
    """Bytes that each rank sends: those of the other shards."""
    return [8 * (case.facts["S"] - size) for size in case.facts["sizes"]]


BYTES = rows.bytes_sent(others)
ROUNDS = rows.rounds(lambda case: case.n - 1, exactly=False)
MEMORY = rows.extra_memory(
    lambda case: 3 * 8 * max(case.facts["sizes"]) + SPARE + case.noise
)
UNTOUCHED = rows.untouched()

exercise = Exercise(
    "05.4",
    cases,
    [BYTES, ROUNDS, MEMORY, rows.from_messages(), rows.all_waited(), UNTOUCHED],
    {
        "to itself": to_itself,
        "dtype": signs.other_dtype,
        "equal shards": signs.either(
            signs.slip("equal shards"), signs.says("invalid for input of")
        ),
        "sizes": signs.mismatched,
        "empty shard": both(
            signs.hangs, signs.only(lambda case: 0 in case.facts["sizes"])
        ),
        "owner": signs.slip("next", "previous"),
        **signs.slips("nothing added"),
        "touches what leaves": signs.touches_what_leaves,
        "input changed": breaks(UNTOUCHED),
        "bytes": breaks(BYTES),
        "memory": breaks(MEMORY),
        "in turn": breaks(ROUNDS),
    },
)
