"""What the checks of chapter 10 share."""

from contextlib import suppress

import torch

from d2lpar.checks.equality import NO_NUMBER

RANKS = (1, 2, 3, 4, 5, 8)
SHARDS = {"even": [4, 3], "one shard": [9], "empty shards": [5, 0, 2]}


def drawn(rng, n, shards, size=1.0, bare=None):
    """Gradients per rank, shards of these lengths or None; rank `bare` has no element.

    Their numbers are about `size`.
    """
    draw = lambda k: torch.from_numpy(rng.normal(size=k) * size)
    lengths = [[k and k * (r != bare) for k in shards] for r in range(n)]
    return [[None if k is None else draw(k) for k in mine] for mine in lengths]


def copies(grads):
    """Gradients per rank, in other memory."""
    return [[g if g is None else g.clone() for g in mine] for mine in grads]


def norm_and_grads(attempt, rank):
    """What was returned, a tensor with one element as its number, and the gradients."""
    value = attempt.values[rank]
    if torch.is_tensor(value) and value.numel() == 1:
        with suppress(*NO_NUMBER):
            value = value.item()
    return value, attempt.args[rank][0]


norm_and_grads.argument = 0  # for hints
some_rank_is_bare = lambda case: (
    case.n > 1
    and any(
        not any(g.numel() for g in mine[0] if g is not None) for mine in case.inputs
    )
)
sixteen = lambda case: [16] * case.n  # bytes of an all-reduce of one number, per rank
