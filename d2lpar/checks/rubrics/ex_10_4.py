"""10.4 All ranks step, or none."""

import math
from functools import partial
from itertools import product

import torch

from .. import requirements as rows
from .. import signs
from ..equality import comparable, near
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks
from .chapter_10 import RANKS, floats

SHARDS = {"even": [4, 3], "one shard": [9], "empty shards": [5, 0, 2]}
BAD = {"an infinity": math.inf, "a minus infinity": -math.inf, "a NaN": math.nan}


def cases(rng):
    """Long and short gradients, with one number that is not finite, or none."""
    for n, (kind, shards), factor in product(RANKS, SHARDS.items(), (0.5, 2.0)):
        yield draw(rng, n, f"{kind}, {factor:g} x the limit", shards, factor)
    for n, kind in product((1, 2, 5), BAD):
        yield draw(rng, n, f"{kind} on rank {n // 2}", [4, 3], 0.5, bad=kind)
    yield draw(rng, 3, "large numbers", [4, 3], 2.0, scale=2.0**100)
    yield draw(rng, 4, "all zero", [3, 2], 0.0)
    yield draw(rng, 3, "some gradients are None", [4, None, 3], 3.0)
    yield draw(rng, 4, "larger shards", [3000, 1000], 2.0)


def draw(rng, n, kind, shards, factor, bad=None, scale=2.0**8):
    """`factor`: the norm in limits, without the scale."""
    normal = lambda size: torch.from_numpy(rng.normal(size=size) * scale).float()
    empty = lambda size: None if size is None else normal(size) * (factor > 0)
    grads = [[empty(size) for size in shards] for _ in range(n)]
    limit = norm_of(grads) / scale / factor if factor else 1.0
    if bad:
        grads[n // 2][-1][0] = BAD[bad]
    return Case(
        n,
        f"{ranks(n)}, {kind}",
        [(copied(each), scale, limit) for each in grads],
        facts={"shards": shards, "bad": bad, "large": scale > 2.0**64},
        truth=partial(stepped, grads, scale, limit),
    )


def there(grads):
    return [x for x in grads if x is not None]


def copied(grads, factor=1.0):
    return [x if x is None else x * factor for x in grads]


def norm_of(grads):
    """The norm over all ranks, in float64."""
    return math.hypot(*(x.double().norm() for each in grads for x in there(each)))


def stepped(grads, scale, limit, slip=""):
    """Of each rank what it returns, and its gradients afterwards."""
    finite = all(x.isfinite().all() for each in grads for x in there(each))
    if not finite:
        factor = 1 / scale if slip == "touched" else 1.0
        return [(None, copied(each, factor)) for each in grads]
    norm = norm_of(grads) / scale
    used = norm * scale if slip == "scaled norm" else norm
    factor = min(1.0, limit / used if used else 1.0) / scale
    if slip == "not in place":
        factor = 1.0
    elif slip == "not divided":
        factor = factor if norm > limit else 1.0
    elif slip == "not clipped":
        factor = 1 / scale
    said = ... if slip == "scaled norm" else norm
    return [(said, copied(each, factor)) for each in grads]


def agrees(came, wanted, case):
    """None or a norm to five digits, and gradients to five digits."""
    (said, grads), (norm, exact) = came, wanted
    if norm is None or said is None:
        told = norm is said
    else:
        told = norm is ... or near(floats([said]), [norm], 1e-5)
    if not told or not isinstance(grads, list) or len(grads) != len(exact):
        return False
    return all(map(alike, grads, exact))


def alike(x, y):
    """Both None, or tensors with the same numbers."""
    if x is None or y is None:
        return x is y
    options = {"rtol": 1e-5, "atol": 1e-30, "equal_nan": True}
    return torch.is_tensor(x) and comparable(x, y) and torch.allclose(x, y, **options)


def disagree(attempt):
    """Some ranks return None, and others a number."""
    return signs.wrong(attempt) and len({v is None for v in attempt.values}) == 2


def no_gradient(case):
    return None in case.facts["shards"]


def goes_on(attempt):
    """A number came back on all ranks, although a gradient is not finite."""
    return signs.wrong(attempt) and not any(v is None for v in attempt.values)


def gives_up(attempt):
    """No norm came back, or an infinite one, although all gradients are finite."""
    lost = lambda value: value is None or near(floats([value]), [math.inf], 0)
    return signs.wrong(attempt) and all(map(lost, attempt.values))


BYTES = rows.bytes_sent(lambda case: 16, exactly=False)
MESSAGES = rows.messages(lambda case: 2 * case.n * (case.n - 1), exactly=False)

exercise = Exercise(
    "10.4",
    cases,
    [BYTES, MESSAGES],
    {
        "own decision": disagree,
        "only infinities": signs.only(
            lambda case: case.facts["bad"] == "a NaN", goes_on
        ),
        "goes on": signs.only(lambda case: case.facts["bad"], goes_on),
        "float32": signs.only(lambda case: case.facts["large"], gives_up),
        **signs.slips("touched", "scaled norm", "not in place"),
        **signs.slips("not divided", "not clipped"),
        "several all-reduces": breaks(MESSAGES),
        "whole gradient": breaks(BYTES),
        "None": both(signs.only(no_gradient), signs.says("NoneType")),
    },
    outcome=lambda attempt, rank: (attempt.values[rank], attempt.args[rank][0]),
    agrees=agrees,
)
