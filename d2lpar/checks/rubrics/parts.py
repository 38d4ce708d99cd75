"""What exercise 02.3 asks for: steps with a big batch, in parts, with clipping."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from ...show.units import show_bytes
from ..judging import Case, Exercise, Mistake, Requirement, same
from ..signs import both, right, wrong

D, H, K = 6, 16, 3  # widths of the net
SIZES = (  # examples in each batch, examples in a part, limit of the norm
    ((4,), 4, 100.0),
    ((5, 5), 2, 100.0),
    ((8, 3, 7), 4, 0.1),
    ((64, 10), 4, 0.2),
    ((61,), 5, 100.0),
)


def parts_cases(rng):
    """(model, optimizer, batches, part, limit); losses and parameters afterwards."""
    for sizes, part, limit in SIZES:
        torch_seed = int(rng.integers(2**31))
        model = _net(torch_seed)
        batches = [_batch(rng, N) for N in sizes]
        truth = _Done(run(fit, copy.deepcopy(model), batches, part, limit))
        clipped = "far above the norms" if limit > 1 else f"{limit:g}"
        yield Case(
            1,
            f"batches of {', '.join(map(str, sizes))}, parts of {part}, "
            f"limit {clipped}",
            inputs=[(model, _sgd(model), batches, part, limit)],
            expected=[truth],
            facts={"seed": torch_seed, "batches": batches, "part": part}
            | {"limit": limit, "memory": allowed_memory(part)},
        )


def _net(seed):
    maker = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(D, H), nn.Sigmoid(), nn.Linear(H, K)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=maker, dtype=p.dtype))
    return model


def _batch(rng, N):
    x = torch.from_numpy(rng.normal(size=(N, D)))
    return x, torch.from_numpy(rng.integers(0, K, size=N))


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def allowed_memory(part):
    """Twice what the forward pass of a part keeps, and four times the gradients."""
    kept = 8 * part * (D + H + K) + 8 * part + 8
    return 2 * kept + 4 * 8 * (D * H + H + H * K + K)


def fit(model, optimizer, batches, part, limit, fault=None):
    """The mean losses; one step per batch.  `fault` names what is wrong."""
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        pieces = list(zip(x.split(part), y.split(part), strict=True))
        total = 0.0
        for piece, labels in pieces:
            if fault in ("zeroes", "as given"):
                optimizer.zero_grad()
            share = len(piece) / len(x)
            if fault == "means":
                share = 1 / len(pieces)
            if fault in ("undivided", "as given"):
                share = 1.0
            loss = F.cross_entropy(model(piece), labels) * share
            loss.backward()
            total += loss.item()
            if fault in ("clips parts", "as given"):
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            if fault == "steps":
                nn.utils.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                optimizer.zero_grad()
        if fault != "no clip":
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        if fault != "steps":
            optimizer.step()
        losses.append(total)
    return losses


def run(function, model, batches, part, limit, **fault):
    """{"losses": ..., "parameters": ...} after a fit of a fresh model."""
    losses = function(model, _sgd(model), batches, part, limit, **fault)
    return {"losses": losses, "parameters": _numbers(model)}


def _numbers(model):
    return [p.detach().flatten().tolist() for p in model.parameters()]


class _Done(dict):
    """The losses and the parameters; shows the first that is wrong."""

    shown = "losses"

    def __repr__(self):
        if self.shown == "losses":
            losses = self["losses"]
            return f"losses {losses if _plain(losses) is None else _plain(losses)}"
        first = [round(v, 6) for v in self["parameters"][0][:3]]
        return f"first weights {first}"


def _plain(losses):
    try:
        return [round(float(loss), 6) for loss in losses]
    except (TypeError, ValueError):
        return None


def _afterwards(attempt, rank):
    """What was returned, and the parameters of the model that was given."""
    model, wanted = attempt.args[rank][0], attempt.case.expected[rank]
    came = _Done(losses=attempt.values[rank], parameters=_numbers(model))
    fine = same(came["losses"], wanted["losses"])
    came.shown = wanted.shown = "parameters" if fine else "losses"
    return came


def _like(*faults):
    """The parameters are those of a fit with one of these faults."""

    def ask(attempt):
        facts, truth = attempt.case.facts, attempt.case.expected[0]
        came = attempt.came and attempt.came[0]["parameters"]
        if not wrong(attempt) or same(came, truth["parameters"]):
            return False
        return any(same(came, _fake(facts, fault)) for fault in faults)

    return ask


def _fake(facts, fault):
    """The parameters after a fit with this fault, computed once per case."""
    known = facts.setdefault("fakes", {})
    if fault not in known:
        given = facts["batches"], facts["part"], facts["limit"]
        known[fault] = run(fit, _net(facts["seed"]), *given, fault=fault)["parameters"]
    return known[fault]


def _only_losses(attempt):
    """The model is right, and what was returned is not."""
    wanted = attempt.case.expected[0]
    return wrong(attempt) and same(attempt.came[0]["parameters"], wanted["parameters"])


def _tensors(attempt):
    losses = attempt.came[0]["losses"]
    return isinstance(losses, list) and any(map(torch.is_tensor, losses))


def _hungry(attempt):
    return attempt.run.peak_memory[0] > attempt.case.facts["memory"]


parts = Exercise(
    "02.3",
    "Mend the accumulation",
    parts_cases,
    [
        Requirement(
            "memory",
            lambda a: a.run.peak_memory[0],
            lambda case: case.facts["memory"],
            exactly=False,
            show=show_bytes,
        ),
    ],
    [
        Mistake(
            "whole graph",
            both(right, _hungry),
            "It is right, and it keeps the activations of the whole batch.",
            "Each part needs a `backward()` of its own: that frees what it kept.",
        ),
        Mistake(
            "tensors",
            both(_only_losses, _tensors),
            "The losses are tensors; floats are wanted.",
            "A tensor that is kept may keep its whole graph. `.item()` does not.",
        ),
        Mistake(
            "losses",
            _only_losses,
            "The model is right, but the losses are not the means over the batches.",
            "A part counts as much as it has examples.",
        ),
        Mistake(
            "zeroes",
            _like("zeroes", "as given"),
            "Only the last part of each batch has counted.",
            "`zero_grad()` belongs in front of the batch, not of the part.",
        ),
        Mistake(
            "steps",
            _like("steps"),
            "It takes a step for each part.",
            "One step per batch, when all of its parts have been added.",
        ),
        Mistake(
            "clips parts",
            _like("clips parts"),
            "It clips while the gradient is still incomplete.",
            "The norm of a sum is not the sum of norms. Clip once, at the end.",
        ),
        Mistake(
            "no clip",
            _like("no clip"),
            "The gradient is not clipped.",
        ),
        Mistake(
            "undivided",
            _like("undivided"),
            "It adds the means of the parts and does not divide.",
            "backward() adds to `.grad`. Make each loss smaller before.",
        ),
        Mistake(
            "mean of means",
            _like("means"),
            "All parts count alike, but the last one may be shorter.",
            "The share of a part is its examples over those of the batch.",
        ),
    ],
    outcome=_afterwards,
)
