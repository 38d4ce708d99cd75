"""18.1 Once is enough."""

from functools import partial

import numpy as np
import torch

from .. import requirements as rows
from .. import signs
from ..backward import NO_WAY_BACK, agrees, by_name, drawn, near
from ..judging import Case, Exercise, on_ranks, ranks
from ..signs import both, breaks

# tokens of each rank, experts of all, experts per token, choices that are dropped
WORLDS = (((5,), 4, 2, 0.0), ((4, 3), 4, 1, 0.0), ((2, 5), 6, 3, 0.3))
WORLDS += (((0, 4), 4, 2, 0.0), ((3, 1, 4), 6, 2, 0.2), ((2, 2, 2), 3, 3, 0.0))
WORLDS += (((4, 0, 3, 5), 8, 4, 0.3), ((2, 3, 1, 4), 12, 6, 0.0))
WORLDS += (((3, 2), 4, 2, 1.0), ((1, 2, 3, 1, 2, 0, 1, 3), 16, 4, 0.2))
SLIPS = "a copy per choice", "dealt out", "dropped travel", "first choice"
SLIPS += "not its own", "drawn to rank 0", "other width"
D = 3


def cases(rng):
    """Ranks without tokens, all experts dropped, one expert and many per rank."""
    for heights, count, k, dropped in WORLDS:
        n, N = len(heights), sum(heights)
        (x,) = drawn(rng, (N, D))
        chosen = [rng.permutation(count)[:k] for _ in range(N)]
        experts = torch.from_numpy(np.stack(chosen))  # [N, k]
        experts[torch.from_numpy(rng.random((N, k)) < dropped)] = -1
        xs, parts = x.split(heights), experts.split(heights)
        visits = [needed(e, count, n) for e in parts]
        dys = drawn(rng, *[(sum(len(v[r]) for v in visits), D) for r in range(n)])
        cut = zip(xs, parts, dys, strict=True)
        yield Case(
            n,
            f"{ranks(n)} with {list(heights)} tokens, {count} experts, k = {k}",
            [((x.clone(),), (e.clone(), count), dy) for x, e, dy in cut],
            facts={"bytes": fewest(visits, n)},
            truth=partial(once, xs, parts, dys, count),
        )


def needed(experts, count, n, slip=""):
    """Numbers of the tokens that travel to each rank."""
    width = n if slip == "other width" else count // n
    home = experts % n if slip == "dealt out" else experts // width
    if slip == "first choice":
        home, experts = home[:, :1], experts[:, :1]
    if slip == "dropped travel":
        home = home % n  # rank -1 is the last one
    elif slip == "drawn to rank 0":
        home = home.clamp(min=0)
    else:
        home = home.masked_fill(experts < 0, -1)
    return [torch.where((home == r).any(1))[0] for r in range(n)]


def copies(experts, count, n):
    """[(expert, token)] of each rank, a pair for each choice."""
    pairs = [(e, t) for t, row in enumerate(experts.tolist()) for e in row if e >= 0]
    return [[p for p in pairs if p[0] // (count // n) == r] for r in range(n)]


def fewest(visits, n):
    """Bytes of each rank: counts, rows there, and gradients back."""
    away = lambda r, s: len(visits[r][s]) * D * 8 if r != s else 0
    both = [sum(away(r, s) + away(s, r) for s in range(n)) for r in range(n)]
    return [8 * (n - 1) + size for size in both]


def once(xs, experts, dys, count, slip=""):
    """Per rank, (the rows that came, the gradient of its tokens)."""
    n = len(xs)
    if slip == "a copy per choice":
        every = [copies(e, count, n) for e in experts]
        order = lambda r: sorted(
            ((e, s, t) for s in range(n) for e, t in every[s][r]), key=lambda p: p[:2]
        )
        ys = [[xs[s][t] for _, s, t in order(r)] for r in range(n)]
        return [(torch.stack(y) if y else xs[0][:0], ...) for y in ys]
    leaves = [x.clone().requires_grad_() for x in xs]
    visits = [needed(e, count, n, slip) for e in experts]
    if slip == "not its own":
        for r, visit in enumerate(visits):
            visit[r] = visit[r][:0]
    ys = [torch.cat([leaves[s][visits[s][r]] for s in range(n)]) for r in range(n)]
    if slip:
        return [(y.detach(), ...) for y in ys]
    grads = torch.autograd.grad(ys, leaves, dys)
    return [(y.detach(), [dx]) for y, dx in zip(ys, grads, strict=True)]


def both_ways(fn, case, **options):
    """Tried by `run`, forward and backward."""
    return on_ranks(partial(there_and_back, fn), case, **options)


def there_and_back(fn, leaves, others, dy):
    """(rows, gradients); with a wrong number of rows, zeros go back instead of dy.

    So all ranks go back, where only some have the right number.
    """
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    y = fn(*leaves, *others)
    if torch.is_tensor(y) and y.requires_grad:
        y.backward(dy if y.shape == dy.shape else torch.zeros_like(y))
        y = y.detach()
    return y, [leaf.grad for leaf in leaves]


def repeated(attempt):
    """A token comes once to each rank that needs it, but several times in a row."""
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return signs.wrong(attempt) and all(
        torch.is_tensor(y) and y.dim() == 2 and near(y.unique_consecutive(dim=0), true)
        for (y, _), (true, _) in pairs
    )


def with_trip(attempt):
    """It returned all that `dispatch` returns."""
    return signs.wrong(attempt) and all(isinstance(y, tuple) for y, _ in attempt.came)


BYTES = rows.bytes_sent(lambda case: case.facts["bytes"], exactly=False)

exercise = Exercise(
    "18.1",
    cases,
    [BYTES],
    {
        "no way back": NO_WAY_BACK,
        "with trip": with_trip,
        **signs.slips(*SLIPS),
        "several to a rank": signs.always(repeated, signs.wrong),
        "everything": both(breaks(BYTES), signs.right),
    },
    agrees=agrees,
    perform=both_ways,
    shows=by_name("rows", "x.grad"),
    processes=(3,),
)
