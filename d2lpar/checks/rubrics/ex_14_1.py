"""14.1 A round world."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..backward import NO_WAY_BACK, agrees, both_ways, by_name, drawn
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, either, says

# rows of each rank, depth of the halo
WORLDS = (((4,), 1), ((3,), 3), ((3, 4), 1), ((2, 3), 0), ((5, 3), 2), ((3, 2, 4), 0))
WORLDS += (((2, 2), 2), ((2, 5, 2), 2), ((3, 4, 3), 2), ((4, 3, 3, 5), 3))
WORLDS += (((2, 3, 2, 4), 1), ((1, 2, 1, 3, 1), 1), ((3,) * 8, 2))
WRONG_ROWS = "flat world", "other way round", "other end"
WRONG_BACK = "stays abroad", "instead of added"
ONE_HALO = "first rows last", "last rows last"


def cases(rng):
    """Worlds of 1 to 8 ranks, of equal and unequal parts; halos of 0 to 3 rows."""
    for heights, depth in WORLDS:
        n, H = len(heights), sum(heights)
        (whole,) = drawn(rng, (2, 3, H, 4))
        xs = [part.contiguous() for part in whole.split(heights, 2)]
        dys = drawn(rng, *[(2, 3, h + 2 * depth, 4) for h in heights])
        yield Case(
            n,
            f"{ranks(n)} with {list(heights)} rows, a halo of {depth}",
            [((x,), (depth,), dy) for x, dy in zip(xs, dys, strict=True)],
            facts={"bytes": 2 * 3 * 4 * 8 * depth},
            truth=partial(around, xs, dys, depth),
        )


def around(xs, dys, depth, slip=""):
    """Per rank, its rows with those around them, and the gradient of its rows."""
    leaves = [x.clone().requires_grad_() for x in xs]
    heights = [x.shape[2] for x in xs]
    world = torch.cat(leaves, 2)
    H, ys, first = world.shape[2], [], 0
    for h in heights:
        above = torch.arange(first - depth, first)
        below = torch.arange(first + h, first + h + depth)
        ys.append([seen(world, rows, H, slip) for rows in (above, below)])
        first += h
    if slip == "other end":  # each neighbour sends the rows that lie far from here
        pairs = [(xs[r - 1], xs[(r + 1) % len(xs)]) for r in range(len(xs))]
        ys = [(a[:, :, :depth], b[:, :, b.shape[2] - depth :]) for a, b in pairs]
    if slip == "other way round":
        ys = [pair[::-1] for pair in ys]
    if slip == "stays abroad":
        ys = [(above.detach(), below.detach()) for above, below in ys]
    joined = [
        torch.cat([above, x, below], 2)
        for (above, below), x in zip(ys, leaves, strict=True)
    ]
    if slip in WRONG_ROWS:
        return [(y.detach(), ...) for y in joined]
    grads = torch.autograd.grad(joined, leaves, dys)
    if slip in ("instead of added", *ONE_HALO):
        grads = [written(dys, r, depth, heights, slip) for r in range(len(heights))]
    return [(y.detach(), [dx]) for y, dx in zip(joined, grads, strict=True)]


def seen(world, places, H, slip):
    """The rows of the world at these places; beyond the edge zeros in a flat one."""
    rows = world[:, :, places % H]
    if slip == "flat world":
        rows = rows * ((places >= 0) & (places < H)).double().view(-1, 1)
    return rows


def written(dys, r, depth, heights, slip):
    """What comes back from the neighbours is written over the own gradient.

    Or each is added to the own gradient, and the second sum written over the first.
    """
    n, h = len(heights), heights[r]
    own = dys[r][:, :, depth : depth + h]
    dx, base = own.clone(), own * (slip in ONE_HALO)
    after, before = dys[(r + 1) % n], dys[r - 1]
    last, first = base[:, :, h - depth :], base[:, :, :depth]
    parts = [(slice(h - depth, h), last + after[:, :, :depth])]
    there = before.shape[2] - depth
    parts.append((slice(depth), first + before[:, :, there:]))
    for places, sums in parts[::-1] if slip == "last rows last" else parts:
        dx[:, :, places] = sums
    return dx


def allowed(case):
    """Two halos there and two back; a rank alone sends nothing."""
    return 4 * case.facts["bytes"] * (case.n > 1)


BYTES = rows.bytes_sent(allowed, exactly=False)

exercise = Exercise(
    "14.1",
    cases,
    [BYTES, rows.from_messages()],
    {
        "no way back": NO_WAY_BACK,
        "to itself": either(
            signs.to_itself, says("should not be the same as the rank")
        ),
        "no rows": signs.only(lambda case: case.facts["bytes"] == 0),
        "hangs": signs.hangs,
        **signs.slips(*WRONG_ROWS, *WRONG_BACK),
        "one halo": signs.slip(*ONE_HALO),
        "two ranks": signs.only(lambda case: case.n == 2),
        "too much": both(breaks(BYTES), lambda a: not rows.collectives(a.run)),
    },
    agrees=agrees,
    perform=both_ways,
    shows=by_name("y", "x.grad"),
    processes=(2, 3),
)
