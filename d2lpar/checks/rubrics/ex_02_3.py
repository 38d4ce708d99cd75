"""02.3 Mend the accumulation."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from ...report.units import show_bytes
from .. import signs
from ..judging import Case, Exercise, Requirement
from ..signs import both, breaks, wrong

D, H, K = 6, 16, 3  # widths of the net
SIZES = (  # examples in each batch, examples in a part, limit of the norm
    ((4,), 4, 100.0),
    ((5, 5), 2, 100.0),
    ((8, 3, 7), 4, 0.1),
    ((64, 10), 4, 0.2),
    ((61,), 5, 100.0),
)


def cases(rng):
    """(model, optimizer, batches, part, limit)."""
    for sizes, part, limit in SIZES:
        seed = int(rng.integers(2**31))
        batches = [batch(rng, N) for N in sizes]
        clipped = "far above the norms" if limit > 1 else f"{limit:g}"
        yield Case(
            1,
            f"batches of {str(sizes).strip('(,)')}, parts of {part}, limit {clipped}",
            [(*trainee(seed), batches, part, limit)],
            facts={"memory": allowed(part)},
            truth=partial(fit, seed, batches, part, limit),
        )


def batch(rng, N):
    x = torch.from_numpy(rng.normal(size=(N, D)))
    return x, torch.from_numpy(rng.integers(0, K, size=N))


def trainee(seed):
    """A model, and its optimizer."""
    maker = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(D, H), nn.Sigmoid(), nn.Linear(H, K)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=maker, dtype=p.dtype)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def allowed(part):
    """Twice what the forward pass of a part keeps, and four times the gradients."""
    kept = 8 * part * (D + H + K) + 8 * part + 8
    return 2 * kept + 4 * 8 * (D * H + H + H * K + K)


def fit(seed, batches, part, limit, slip=""):
    """The mean losses and the weights after a step for each batch."""
    model, optimizer = trainee(seed)
    clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), limit)
    losses = []
    for x, y in batches:
        if slip != "never zeroes":
            optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x), y).item())
        pieces = list(zip(x.split(part), y.split(part), strict=True))
        for piece, labels in pieces:
            if slip in ("zeroes", "as given"):
                optimizer.zero_grad()
            shares = {"mean of means": 1 / len(pieces), "undivided": 1, "as given": 1}
            share = shares.get(slip, len(piece) / len(x))
            (F.cross_entropy(model(piece), labels) * share).backward()
            if slip in ("clips parts", "clips only parts", "as given", "steps"):
                clip()
            if slip == "steps":
                optimizer.step()
                optimizer.zero_grad()
        if slip not in ("no clip", "clips only parts", "as given"):
            clip()
        optimizer.step()  # of "steps", there is nothing left to do
    return [outcome(... if slip else losses, model)]


def outcome(losses, model):
    return {"losses": losses, "weights": [p.detach() for p in model.parameters()]}


def right_model(attempt):
    """All that is wrong in all calls that ended is what it returns."""
    ended = [each for each in attempt.attempts if each.error is None]
    return wrong(attempt) and all(
        each.gives([each.case.expected[0] | {"losses": ...}]) for each in ended
    )


def no_list(attempt):
    """What it returns is no list with something for each batch."""
    came, wanted = attempt.values[0], attempt.case.expected[0]["losses"]
    return not isinstance(came, list | tuple) or len(came) != len(wanted)


MEMORY = Requirement(
    "memory",
    lambda a: a.run.peak_memory[0],
    lambda case: case.facts["memory"],
    exactly=False,
    show=show_bytes,
)

exercise = Exercise(
    "02.3",
    cases,
    [MEMORY],
    {
        "whole graph": both(breaks(MEMORY), lambda a: MEMORY.holds(a.attempts[0])),
        "no list": both(wrong, no_list),
        "tensors": both(wrong, lambda a: any(map(torch.is_tensor, a.values[0]))),
        "losses": right_model,
        "zeroes": signs.slip("zeroes", "as given"),
        "clips parts": signs.slip("clips parts", "clips only parts"),
        **signs.slips("never zeroes", "steps", "no clip", "undivided", "mean of means"),
    },
    outcome=lambda a, rank: outcome(a.values[rank], a.args[rank][0]),
)
