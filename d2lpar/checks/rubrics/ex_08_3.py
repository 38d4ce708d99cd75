"""08.3 The forgotten buffers."""

import copy
from functools import partial

import torch
from torch import nn

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, ranks
from ..signs import breaks

LR = 0.1


class Drift(nn.Module):
    """Its gradients depend on its buffers; a pass changes some, in place or not."""

    def __init__(self, D, seed):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64)
        self.weight = nn.Parameter(draw(D, D) / D)
        self.bias = nn.Parameter(draw(D))
        self.register_buffer("mean", draw(D))
        self.register_buffer("seen", torch.tensor(2**60 + 1 + seed % 1000))
        self.register_buffer("scale", 1 + draw(1).square(), persistent=False)

    def forward(self, x):
        y = (x - self.mean) / self.scale @ self.weight + self.bias
        with torch.no_grad():
            self.mean = (self.mean + x.mean(0)) / 2
            self.seen += (x > 0).sum()
        return y


def cases(rng):
    """Each rank has another start and other data; some steps, or none."""
    worlds = (1, 2, 3), (2, 0, 3), (2, 1, 3), (2, 3, 4), (3, 2, 5), (4, 3, 3)
    for n, steps, D in worlds:
        models = [Drift(D, int(seed)) for seed in rng.integers(1, 10**6, size=n)]
        batches = [torch.from_numpy(rng.normal(size=(steps, 5, D))) for _ in range(n)]
        yield Case(
            n,
            f"{ranks(n)}, {steps} step{'s' * (steps != 1)}, {D} features",
            inputs=[(models[r], list(batches[r]), LR) for r in range(n)],
            facts={"D": D, "steps": steps},
            truth=partial(trained, models, torch.stack(batches, 1)),
        )


def trained(models, batches, slip=""):
    """The states of these models after the steps; [steps, n, rows, D] are the rows."""
    models, steps = copy.deepcopy(models), len(batches)
    for model in models[1:]:
        model.weight.data.copy_(models[0].weight.data)
        model.bias.data.copy_(models[0].bias.data)
    for k, batch in enumerate([*batches, None]):
        left_out = {"only the start": k > 0, "not at the start": k == 0}
        left_out |= {"at the end": k == steps > 0, "not even once": k == steps}
        if slip != "never shared" and not left_out.get(slip):
            share(models, slip, k)
        if batch is not None:
            step(models, batch)
    states = [dict(model.state_dict()) for model in models]
    return [x | {"seen": ...} for x in states] if slip == "averaged" else states


def share(models, slip, k):
    """Before step k all models have the buffers of the first one."""
    first = {name: x.clone() for name, x in models[0].named_buffers()}
    if slip == "averaged" and k > 0:
        first["mean"] = sum(model.mean for model in models) / len(models)
    if slip == "counter":
        first["seen"] = first["seen"].double()
    forgotten = {"only floats": "seen", "only the state": "scale"}
    forgotten |= {"old tensors": "mean"} if k > 0 else {}
    for name, x in [pair for model in models for pair in model.named_buffers()]:
        if name != forgotten.get(slip):
            x.copy_(first[name])


def step(models, batch):
    """All models make the same step, by the mean of their gradients."""
    for model, x in zip(models, batch, strict=True):
        model.zero_grad()
        model(x).square().mean().backward()
    for each in zip(*(model.parameters() for model in models), strict=True):
        mean = sum(p.grad for p in each) / len(models)
        for p in each:
            p.data -= LR * mean


def allowed(case):
    """Parameters once, buffers before each step and at the end; the gradients."""
    D, steps = case.facts["D"], case.facts["steps"]
    parameters, buffers = 8 * (D * D + D), 8 * D + 16
    return (case.n - 1) * (parameters + (steps + 1) * buffers + 2 * steps * parameters)


def no_state(attempt):
    """Something else than a dictionary of all parameters and buffers came."""
    wanted = attempt.case.expected[0].keys()
    return signs.wrong(attempt) and not all(
        isinstance(came, dict) and came.keys() == wanted for came in attempt.came
    )


TOTAL = Requirement(
    "bytes of all ranks", lambda a: sum(a.run.bytes_sent), allowed, exactly=False
)

exercise = Exercise(
    "08.3",
    cases,
    [TOTAL, rows.from_messages()],
    {
        "no state": no_state,
        **signs.slips("never shared", "not at the start", "only the start"),
        "at the end": signs.slip("at the end", "not even once"),
        **signs.slips("averaged", "counter", "only floats"),
        **signs.slips("only the state", "old tensors"),
        "chatty": breaks(TOTAL),
    },
)
