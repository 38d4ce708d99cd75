"""11.2 Only the last rank learns."""

import copy
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, ranks
from ..signs import both, breaks, either, raises, says

LR = 0.3
# features into each part and out of the last, rows of the batches, frozen ranks
WORLDS = (
    ((3, 2), (4, 4), ()),
    ((3, 5, 2), (4,), ()),
    ((2, 3, 2), (), ()),
    ((2, 3, 2), (3, 5, 1), ()),
    ((4, 1, 3, 2), (5, 2), ()),
    ((3, 4, 2, 2), (3, 3, 3), (0,)),
    ((2, 3, 4, 2), (2, 6), (1,)),
    ((3, 2, 4, 3, 2), (4, 1, 3), (0, 2)),
)


def cases(rng):
    """Parts of several widths, batches of several sizes, with frozen ranks."""
    for widths, batches, frozen in WORLDS:
        n, seed = len(widths) - 1, int(rng.integers(1, 10**6))
        xs = [torch.from_numpy(rng.normal(size=(N, widths[0]))) for N in batches]
        ys = [torch.from_numpy(rng.normal(size=(N, widths[-1]))) for N in batches]
        none, parts = [[x[:, :0] for x in xs]] * (n - 1), parts_of(widths, frozen, seed)
        steps = f"{len(batches)} step{'s' * (len(batches) != 1)}"
        cold = f", ranks {list(frozen)} frozen" if frozen else ""
        given = zip(parts, [xs, *none], [*none, ys], strict=True)
        yield Case(
            n,
            f"{ranks(n)}, features {list(widths)}, {steps}{cold}",
            [(part, list(widths), *data, LR) for part, *data in given],
            facts={"frozen": frozen, "steps": batches, "between": sum(widths[1:-1])},
            truth=partial(learned, parts, xs, ys),
        )


def parts_of(widths, frozen, seed):
    """A part for each rank; a frozen one does not learn."""
    made, parts = torch.Generator().manual_seed(seed), []
    for r, features in enumerate(pairwise(widths)):
        line = nn.Linear(*features, dtype=torch.float64)
        for p in line.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64)
            p.requires_grad_(r not in frozen)
        parts.append(nn.Sequential(line, nn.Tanh()))
    return parts


def learned(parts, xs, ys, slip=""):
    """Per rank, the parameters after a step for each batch, in one process."""
    parts = copy.deepcopy(parts)
    for part in parts if slip == "thaws" else ():
        part.requires_grad_()
    for x, y in zip(xs, ys, strict=True):
        leaves, outs = [], []
        for part in parts:
            leaves.append(x.detach().requires_grad_())
            x = part(leaves[-1])
            outs.append(x)
        gradient = 2 * (x - y).detach() / len(y)
        for part, leaf, out in zip(parts[::-1], leaves[::-1], outs[::-1], strict=True):
            again = slip == "divides again" and part is not parts[-1]
            out.backward(gradient / len(y) if again else gradient)
            gradient = torch.ones_like(leaf) if slip == "ones" else leaf.grad
            for p in part.parameters():
                if p.requires_grad:
                    p.data -= LR * p.grad
                    p.grad = p.grad if slip == "old" else None
            if slip == "only the last":
                break
    return [[p.detach() for p in part.parameters()] for part in parts]


BYTES = Requirement(
    "bytes of all ranks",
    lambda a: sum(a.run.bytes_sent),
    lambda case: 16 * case.facts["between"] * sum(case.facts["steps"]),
    exactly=False,
)
MESSAGES = rows.messages(lambda c: 2 * (c.n - 1) * len(c.facts["steps"]), exactly=False)

exercise = Exercise(
    "11.2",
    cases,
    [BYTES, MESSAGES, rows.from_messages()],
    {
        **signs.slips("thaws"),
        "frozen": signs.only(lambda case: case.facts["frozen"]),
        "hangs": signs.hangs,
        "no leaf": both(
            raises(TypeError, AttributeError), says("None"), lambda a: a.error.rank > 0
        ),
        "no list": lambda a: any(not isinstance(x, list | tuple) for x in a.came or []),
        **signs.slips("only the last", "ones", "old", "divides again"),
        "chatty": either(breaks(BYTES), breaks(MESSAGES)),
    },
)
