"""Cut a sequence into pieces for ranks, in two orders, and put it together again.

    order         four ranks, eight spans of tokens
    contiguous    0 1 | 2 3 | 4 5 | 6 7
    zigzag        0 7 | 1 6 | 2 5 | 3 4      an early and a late span for each

Where T does not divide, the first spans have one token more.  T tokens, n ranks, r this
rank.  Zigzag: zhuzilin/ring-flash-attention; Brandon et al. 2023 stripe single tokens.
"""

import itertools

import torch

from ..scatter import members, ring_all_gather
from ..tensor_parallel.trips import gather_number

ORDERS = "zigzag", "contiguous"


def spans(T, n, order="zigzag"):
    """Return the (start, stop) that each of n ranks has, first to last."""
    if order not in ORDERS:
        raise ValueError(f"order is 'zigzag' or 'contiguous', not {order!r}.")
    count = 2 * n if order == "zigzag" else n
    each, more = divmod(T, count)
    ends = [i * each + min(i, more) for i in range(count + 1)]
    every = list(itertools.pairwise(ends))
    if order == "zigzag":
        return [[every[r], every[-1 - r]] for r in range(n)]
    return [[span] for span in every]


def positions(T, n, r, order="zigzag"):
    """Return where rank r's tokens are in the whole sequence, [T/n]."""
    mine = spans(T, n, order)[r]
    return torch.cat([torch.arange(*span, device="cpu") for span in mine])


def split_sequence(x, dim, order="zigzag", group=None):
    """Return this rank's tokens of x, which is equal on all ranks.

    Backward, the gradients of all ranks' tokens come together, so that x has
    the gradient that it has on one device.
    """
    return _split(x, checked(x, dim), order, group)


def join_sequence(x, dim, order="zigzag", group=None):
    """Return the whole sequence on all ranks, from the pieces of all ranks.

    A rank receives each piece of the others once, and 8 bytes from each for
    its length.  Backward, a rank keeps the gradient of its own tokens, since
    what follows is the same on all ranks.
    """
    return _join(x, checked(x, dim), order, group)


def checked(x, dim):
    """Return dim counted from the front; IndexError unless x has it."""
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"x has {x.dim()} dimensions, so there is no dimension {dim}.")
    return dim % x.dim()


def lengths_of(x, dim, order, group=None):
    """Return the tokens that each rank has; ValueError if no split makes them so.

    Each rank sends 8 bytes to each of the others.
    """
    found = gather_number(x.shape[dim], x, group)
    made = [
        sum(stop - start for start, stop in mine)
        for mine in spans(sum(found), len(found), order)
    ]
    if found != made:
        text = f"The ranks hold {found} tokens, but in {order} order they hold {made}."
        raise ValueError(f"{text} Cut the sequence with split_sequence.")
    return found


def both_ways(there, back):
    """Return there(x, *how) as a function whose gradient is back(dy, *how)."""

    class Move(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *how):
            ctx.how = how
            return there(x, *how)

        @staticmethod
        def backward(ctx, dy):
            return back(dy, *ctx.how), *[None] * len(ctx.how)

    return Move.apply


def own_tokens(x, dim, order, group=None):
    """Copy this rank's spans of x along dim."""
    n, r = members(group)
    mine = spans(x.shape[dim], n, order)[r]
    return torch.cat([x.narrow(dim, a, b - a) for a, b in mine], dim)


def joined(x, dim, order, group=None):
    """Gather the pieces of all ranks along dim, and sort their tokens."""
    n, r = members(group)
    lengths = lengths_of(x, dim, order, group)
    first = x.movedim(dim, 0).contiguous()  # [T/n, ...]
    parts = [first.new_empty(length, *first.shape[1:]) for length in lengths]
    parts[r] = first
    ring_all_gather(parts, group)
    T = sum(lengths)
    where = torch.cat([positions(T, n, i, order) for i in range(n)])
    return torch.cat(parts)[where.argsort().to(x.device)].movedim(0, dim)  # [T, ...]


_split, _join = both_ways(own_tokens, joined), both_ways(joined, own_tokens)
