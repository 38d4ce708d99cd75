"""10.1 Clip by the global norm."""

import math
from functools import partial
from itertools import product

import torch

from .. import requirements as rows
from .. import signs
from ..equality import near, same
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_10 import RANKS, floats

SPARE = 512  # bytes that nobody counts
SHARDS = {"even": [4, 3], "one shard": [9], "empty shards": [5, 0, 2]}


def cases(rng):
    """Long and short gradients, no gradient at all, empty shards."""
    for n, (kind, shards), factor in product(RANKS, SHARDS.items(), (0.5, 2.0)):
        yield draw(rng, n, f"{kind}, {factor:g} x the limit", shards, factor)
    for n in (1, 4):
        yield draw(rng, n, "all zero", [3, 2], 0.0)
    yield draw(rng, 3, "some gradients are None", [4, None, 3], 3.0)
    yield draw(rng, 4, "larger shards", [30_000, 1000], 2.0)
    yield draw(rng, 4, "large shards", [3000, 1000], 2.0)


def draw(rng, n, kind, shards, factor):
    """`factor`: the global norm, in limits."""
    normal = lambda size: torch.from_numpy(rng.normal(size=size) * (factor > 0))
    grads = [[None if s is None else normal(s) for s in shards] for _ in range(n)]
    limit = math.hypot(*norms(grads)) / factor if factor else 1.0
    return Case(
        n,
        f"{ranks(n)}, {kind}",
        [(scaled(1.0, each), limit) for each in grads],
        facts={"shards": shards},
        traced=30_000 in shards,
        truth=partial(clipped, grads, limit),
    )


def norms(grads):
    return [math.hypot(*(float(x.norm()) for x in g if x is not None)) for g in grads]


def scaled(factor, grads):
    return [x if x is None else factor * x for x in grads]


def clipped(grads, limit, slip=""):
    """Of each rank its norm and its gradients afterwards."""
    norm, n = math.hypot(*norms(grads)), len(grads)
    used = {"own norm": norms(grads), "sum of norms": [sum(norms(grads))] * n}
    used |= {"mean": [norm / math.sqrt(n)] * n, "no root": [norm**2] * n}
    factors = [limit / x if x else 1.0 for x in used.get(slip, [norm] * n)]
    if slip == "not in place":
        factors = [1.0] * n
    elif slip == "epsilon":
        factors = [min(1.0, limit / (norm + 1e-6))] * n
    elif slip == "own decision":
        factors = [limit / norm if own > limit else 1.0 for own in norms(grads)]
    elif slip != "stretched":
        factors = [min(1.0, factor) for factor in factors]
    said = ... if slip in used else norm
    return [(said, scaled(*each)) for each in zip(factors, grads, strict=True)]


def agrees(came, wanted, case):
    """The norm is a number of Python or torch."""
    return same([floats(came[:1]), came[1]], [wanted[:1], wanted[1]])


def rounded(attempt):
    """In every call the norm is right to five digits, but here not to nine."""
    pair = lambda a: (floats(a.came[0][:1]), a.case.expected[0][:1])
    ended = [a for a in attempt.attempts if a.error is None]
    few = all(near(*pair(a), 1e-5) for a in ended)
    return signs.wrong(attempt) and few and not same(*pair(attempt))


def no_gradient(case):
    return None in case.facts["shards"]


BYTES = rows.bytes_sent(lambda case: 16, exactly=False)
MESSAGES = rows.messages(lambda case: 2 * case.n * (case.n - 1), exactly=False)
MEMORY = rows.extra_memory(
    lambda case: 8 * max(filter(None, case.facts["shards"])) + SPARE + case.noise
)

exercise = Exercise(
    "10.1",
    cases,
    [BYTES, MESSAGES, MEMORY],
    {
        "not a number": both(signs.not_a_number, lambda a: a.case.expected[0][0] == 0),
        **signs.slips("own norm", "sum of norms", "mean", "no root"),
        **signs.slips("not in place", "stretched", "epsilon", "own decision"),
        "float32": rounded,
        "several all-reduces": breaks(MESSAGES),
        "whole gradient": breaks(BYTES),
        "memory": breaks(MEMORY),
        "None": both(signs.only(no_gradient), signs.says("NoneType")),
    },
    outcome=lambda attempt, rank: (attempt.values[rank], attempt.args[rank][0]),
    agrees=agrees,
)
