"""What exercise 11.2 asks for: the network in which only the last rank learns."""

import copy

import torch
from torch import nn

from ..judging import Case, Exercise, Mistake, Requirement, ranks, same
from ..requirements import from_messages, messages
from ..signs import both, hangs, raises, right, wrong

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


def parts_of(widths, frozen, seed):
    """A part for each rank; a frozen one does not learn."""
    made, parts = torch.Generator().manual_seed(seed), []
    for r, (D, O) in enumerate(zip(widths, widths[1:], strict=False)):  # noqa: E741
        line = nn.Linear(D, O, dtype=torch.float64)
        for p in line.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64)
            p.requires_grad_(r not in frozen)
        parts.append(nn.Sequential(line, nn.Tanh()))
    return parts


def learn_cases(rng):
    """Parts of several widths, batches of several sizes, with frozen ranks."""
    for widths, rows, frozen in WORLDS:
        n, seed = len(widths) - 1, int(rng.integers(1, 10**6))
        xs = [torch.from_numpy(rng.normal(size=(N, widths[0]))) for N in rows]
        ys = [torch.from_numpy(rng.normal(size=(N, widths[-1]))) for N in rows]
        parts = parts_of(widths, frozen, seed)
        empty = [torch.zeros(N, 0, dtype=torch.float64) for N in rows]
        inputs = [
            (
                parts[r],
                list(widths),
                xs if r == 0 else empty,
                ys if r == n - 1 else empty,
                LR,
            )
            for r in range(n)
        ]
        facts = {"widths": widths, "rows": rows, "frozen": frozen}
        facts |= {"xs": xs, "ys": ys, "seed": seed}
        steps = f"{len(rows)} step{'s' * (len(rows) != 1)}"
        cold = f", ranks {list(frozen)} frozen" if frozen else ""
        yield Case(
            n,
            f"{ranks(n)}, features {list(widths)}, {steps}{cold}",
            inputs=inputs,
            expected=learned(parts, xs, ys),
            facts=facts,
        )


def learned(parts, xs, ys, way=None):
    """Per rank, the parameters after a step for each batch, in one process."""
    parts = copy.deepcopy(parts)
    every = [list(part.parameters()) for part in parts]
    for x, y in zip(xs, ys, strict=True):
        values, leaves = [], []
        for part in parts:
            leaves.append(x.detach().requires_grad_())
            values.append(part(leaves[-1]))
            x = values[-1]
        loss = (x - y).square().sum() / len(y)
        gradient = torch.autograd.grad(loss, x)[0]
        for leaf, value in zip(leaves[::-1], values[::-1], strict=True):
            value.backward(gradient)
            gradient = leaf.grad if way != "ones" else torch.ones_like(leaf)
        with torch.no_grad():
            for p in (p for some in every for p in some if p.requires_grad):
                p -= LR * p.grad
                p.grad = p.grad if way == "old" else None
    return [[p.detach() for p in some] for some in every]


def _fake(way):
    """The wrong values are those of this mistake."""

    def ask(attempt):
        if not wrong(attempt):
            return False
        facts = attempt.case.facts
        parts = parts_of(facts["widths"], facts["frozen"], facts["seed"])
        return same(_lists(attempt), learned(parts, facts["xs"], facts["ys"], way))

    return ask


def _lists(attempt):
    """What came, a list of tensors from each rank."""
    return [list(x) if isinstance(x, tuple) else x for x in attempt.came or []]


def _only_last(attempt):
    """All ranks but the last have what they began with, and some should not."""
    facts, n = attempt.case.facts, attempt.case.n
    if not wrong(attempt) or n == 1:
        return False
    begin = parts_of(facts["widths"], facts["frozen"], facts["seed"])
    first = [[p.detach() for p in part.parameters()] for part in begin]
    return same(_lists(attempt)[:-1], first[:-1])


def _no_list(attempt):
    """A rank returns something else than its parameters' number of tensors."""
    return wrong(attempt) and any(
        not isinstance(came, list | tuple) or len(came) != len(wanted)
        for came, wanted in zip(attempt.came, attempt.case.expected, strict=True)
    )


def _bytes_allowed(case):
    between = sum(case.facts["widths"][1:-1])
    return 2 * 8 * between * sum(case.facts["rows"])


def _messages_allowed(case):
    return 2 * (case.n - 1) * len(case.facts["rows"])


def _total_bytes():
    return Requirement(
        "bytes of all ranks", lambda a: sum(a.run.bytes_sent), _bytes_allowed, False
    )


def _says(*texts):
    return lambda a: a.error is not None and any(t in str(a.cause) for t in texts)


def _chatty(attempt):
    run, case = attempt.run, attempt.case
    return sum(run.bytes_sent) > _bytes_allowed(case) or sum(
        run.messages
    ) > _messages_allowed(case)


learn = Exercise(
    "11.2",
    "Only the last rank learns",
    learn_cases,
    [_total_bytes(), messages(_messages_allowed, exactly=False), from_messages()],
    [
        Mistake(
            "hangs",
            hangs,
            "Ranks wait for each other: both sides receive, or both send.",
            "Down go activations, then up go gradients. The last rank turns round.",
        ),
        Mistake(
            "frozen",
            _says("does not require grad"),
            "With frozen parts `backward` fails, for nothing there has a gradient.",
            "Ask `out.requires_grad`. The message has been sent and must be received "
            "all the same, and a frozen part in the middle must pass gradients on.",
        ),
        Mistake(
            "no leaf",
            both(raises(TypeError, AttributeError), _says("None")),
            "What came from the rank before has no gradient.",
            "Autograd leaves gradients at leaves that have `requires_grad_()`.",
        ),
        Mistake(
            "no list",
            _no_list,
            "It does not return the list of this rank's parameters.",
        ),
        Mistake(
            "only the last",
            _only_last,
            "All ranks but the last have the weights that they began with.",
            "A received tensor does not know where it came from. Its gradient must be "
            "sent back, and `backward` must be called with it.",
        ),
        Mistake(
            "ones",
            _fake("ones"),
            "The earlier ranks go back with ones, not with the gradient they need.",
            "`out.backward(gradient)`, with the gradient of out from the rank behind.",
        ),
        Mistake(
            "old",
            _fake("old"),
            "Gradients of earlier steps are still in `p.grad`.",
            "The rank that steps must clear its gradients, too.",
        ),
        Mistake(
            "chatty",
            both(right, _chatty),
            "It is right, and sends more than an activation down and a gradient up.",
            "The gradient of an activation is as large as the activation.",
        ),
    ],
    agrees=lambda came, wanted, case: (
        isinstance(came, list | tuple) and same(list(came), wanted)
    ),
    processes=(3,),
)
