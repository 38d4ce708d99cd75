"""10.2 Accumulate without extra traffic."""

from functools import partial
from itertools import product

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_10 import RANKS

K = 3  # elements of a shard
PLANS = {  # rows of the micro-batches of rank r
    "equal micro-batches": lambda r: [2, 2],
    "unequal micro-batches": lambda r: [1, 3 + r, 2],
    "rank 0 has no micro-batch": lambda r: [2, 1] if r else [],
}


def cases(rng):
    """Micro-batches of unequal sizes; ranks may have fewer of them, or none."""
    for n, (kind, plan) in product(RANKS, PLANS.items()):
        if not any(map(plan, range(n))):
            continue
        draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
        w = draw(n * K)
        batches = [[draw(count, n * K) for count in plan(r)] for r in range(n)]
        count = sum(len(x) for each in batches for x in each)
        yield Case(
            n,
            f"{ranks(n)}, {kind}, {count} rows in all",
            [(w.clone(), each, count) for each in batches],
            truth=partial(shards, w, batches, count),
        )


def shards(w, batches, count, slip=""):
    """The gradient of the mean of (x w)^2 over all rows, cut into n shards."""
    total = torch.zeros_like(w)
    for each in batches:
        for x in each[-1:] if slip == "last only" else each:
            over = {"mean of means": len(x) * len(each) * len(batches)}
            over["own rows"] = sum(map(len, each))
            total += 2 * x.T @ (x @ w) / over.get(slip, count)
    return total.split(K)


def none_on_rank_0(case):
    return not case.inputs[0][1]


def agrees(came, wanted, case):
    alike = torch.is_tensor(came) and came.shape == wanted.shape
    alike = alike and came.dtype == wanted.dtype
    return alike and torch.allclose(came, wanted, rtol=1e-9, atol=1e-12)


def calls(name, least):
    """Of this native collective, by all ranks."""
    return lambda a: rows.collectives(a.run).count(name) >= least * a.case.n


BYTES = rows.bytes_sent(lambda case: (case.n - 1) * K * 8, exactly=False)
MESSAGES = rows.messages(lambda case: case.n * (case.n - 1), exactly=False)

exercise = Exercise(
    "10.2",
    cases,
    [BYTES, MESSAGES, rows.untouched()],
    {
        "absent": signs.only(none_on_rank_0, lambda a: a.error is not None),
        **signs.slips("mean of means", "last only", "own rows"),
        "each time": both(breaks(MESSAGES), calls("reduce_scatter", 2)),
        "all-reduce": both(breaks(BYTES), calls("all_reduce", 1)),
    },
    agrees=agrees,
)
