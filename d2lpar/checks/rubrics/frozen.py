"""What exercise 02.2 asks for: the bytes of a step in which some layers are frozen."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from ...footprint import kept
from ..judging import Case, Exercise, Mistake
from ..signs import wrong

FIXED = (  # widths, which layers are frozen
    ((5, 4, 3), (False, False)),
    ((5, 4, 3), (True, False)),
    ((5, 4, 3), (False, True)),
    ((6, 5, 4, 3), (True, True, True)),
    ((6, 5, 4, 3), (True, False, True)),
)
HIDDEN = 4  # more of them, at random


def freeze_cases(rng):
    """(widths, frozen, N); the truth is counted in a step that is really taken."""
    cases, seen = list(FIXED), {}  # what the function answers, case by case
    for _ in range(HIDDEN):
        depth = int(rng.integers(2, 6))
        widths = tuple(int(w) for w in rng.integers(2, 20, size=depth + 1))
        cases.append((widths, tuple(bool(f) for f in rng.random(depth) < 0.5)))
    for widths, frozen in cases:
        N = int(rng.integers(1, 30))
        letters = "".join("F" if f else "T" for f in frozen)
        yield Case(
            1,
            f"widths {', '.join(map(str, widths))}, layers {letters}, N = {N}",
            inputs=[(list(widths), list(frozen), N)],
            expected=[count(widths, frozen, N)],
            facts={"widths": widths, "frozen": frozen, "N": N, "seen": seen},
        )


def count(widths, frozen, N):
    """(gradients, optimizer, activations) in bytes, counted."""
    net = nn.Sequential()
    for (i, o), f in zip(pairwise(widths), frozen, strict=True):
        net.append(nn.Linear(i, o).requires_grad_(not f)).append(nn.ReLU())
    net = net[:-1]  # behind the last layer is the loss
    trained = [p for p in net.parameters() if p.requires_grad]
    x, y = torch.ones(N, widths[0]), torch.zeros(N, dtype=torch.int64)
    loss, activations = kept(lambda: F.cross_entropy(net(x), y), net.parameters())
    if not trained:
        return 0, 0, activations
    optimizer = torch.optim.Adam(trained)
    loss.backward()
    optimizer.step()
    states = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return _bytes(grads), _bytes(states), activations


def _bytes(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def _three(came):
    try:
        return [int(v) if v == int(v) else float(v) for v in came]
    except (TypeError, ValueError):
        return None


def _agrees(came, wanted, case):
    numbers = _three(came)
    case.facts["seen"][id(case)] = numbers, wanted, case.facts
    return numbers is not None and numbers == list(wanted)


# Wrong ways to the three numbers


def _sizes(facts):
    return [4 * (i * o + o) for i, o in pairwise(facts["widths"])]


def _inputs(facts):
    """Bytes of the input of each layer, and those of the loss."""
    N, widths = facts["N"], facts["widths"]
    return [4 * N * w for w in widths[:-1]], 4 * N * widths[-1] + 8 * N + 4


def _off(k, fake):
    """Number k is wrong, and where it is, in all cases, it is `fake(facts)`."""

    def ask(attempt):
        numbers = _three(attempt.came[0]) if wrong(attempt) else None
        if numbers is None or len(numbers) != 3:
            return False
        seen = attempt.case.facts["seen"].values()
        return numbers[k] != attempt.case.expected[0][k] and all(
            came[k] in (wanted[k], fake(facts)) for came, wanted, facts in seen
        )

    return ask


def _lowest(facts):
    """The lowest layer that is trained, or None."""
    return next((i for i, f in enumerate(facts["frozen"]) if not f), None)


def _every_input(facts):
    inputs, ends = _inputs(facts)
    return sum(inputs) + ends


def _trained_inputs(facts):
    inputs, ends = _inputs(facts)
    pairs = zip(inputs, facts["frozen"], strict=True)
    return sum(size for size, f in pairs if not f) + ends


def _from(shift, times=1, ends=True):
    """Activations from the lowest trained layer on, with something wrong."""

    def fake(facts):
        inputs, last = _inputs(facts)
        low = _lowest(facts)
        if low is None:
            return -1
        size = sum(inputs[low + shift :]) + (times - 1) * sum(inputs[low + 1 :])
        return size + (last if ends else 0)

    return fake


def _no_labels(facts):
    return _from(0)(facts) - 8 * facts["N"] - 4


def _still(attempt):
    """Nothing is trained, and bytes are counted all the same."""
    numbers = _three(attempt.came[0]) if wrong(attempt) else None
    return numbers is not None and _lowest(attempt.case.facts) is None


freeze = Exercise(
    "02.2",
    "What does freezing save?",
    freeze_cases,
    [],
    [
        Mistake(
            "not three numbers",
            lambda a: wrong(a) and len(_three(a.came[0]) or ()) != 3,
            "It does not return three numbers of bytes.",
            "`return gradients, optimizer, activations`.",
        ),
        Mistake(
            "frozen gradients",
            _off(0, lambda facts: sum(_sizes(facts))),
            "A frozen layer has no gradients.",
        ),
        Mistake(
            "frozen state",
            _off(1, lambda facts: 2 * sum(_sizes(facts))),
            "The optimizer keeps nothing for a frozen layer.",
            "It is given only the parameters that are trained.",
        ),
        Mistake(
            "still",
            _still,
            "Where no layer is trained, autograd keeps nothing at all.",
        ),
        Mistake(
            "saves nothing",
            _off(2, _every_input),
            "Below the lowest trained layer nothing needs to be kept.",
            "No gradient goes down there. What is the backward pass of those layers?",
        ),
        Mistake(
            "saves too much",
            _off(2, _trained_inputs),
            "A frozen layer above a trained one saves no activation.",
            "It does not keep its input. But the ReLU below it keeps its output.",
        ),
        Mistake(
            "one too few",
            _off(2, _from(1)),
            "The lowest trained layer needs its input: a product keeps what comes in.",
        ),
        Mistake(
            "twice",
            _off(2, _from(0, times=2)),
            "What a ReLU keeps and what the layer above it keeps is one tensor.",
            "Each tensor counts once.",
        ),
        Mistake(
            "without the loss",
            lambda a: _off(2, _from(0, ends=False))(a) or _off(2, _no_labels)(a),
            "The loss keeps something, too: log-probabilities, labels, one number.",
            "4 bytes for each score, 8 for each label, and 4.",
        ),
    ],
    agrees=_agrees,
)
