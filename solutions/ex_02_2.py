"""02.2 What does freezing save?: step_bytes(widths, frozen, N)."""

from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.checks import signs
from d2lpar.checks.equality import numbers, same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both
from d2lpar.shared.footprint import kept

agrees = lambda came, wanted, case: same(numbers(came).tolist(), wanted)
ex = Exercise("02.2", agrees=agrees)
# which layers are frozen, F, or trained, T
FIRST_NETS, LAST_NETS = ("TT", "FT", "TF", "FFF", "FTF"), ("T", "FFT", "TFF")
WIDTHS = {1: (3, 2), 2: (5, 4, 3), 3: (6, 5, 4, 3)}  # of so many layers


@ex.cases
def cases(rng):
    """(widths, frozen, N): those that are fixed, more at random, and the last ones."""
    nets = [(WIDTHS[len(letters)], letters) for letters in FIRST_NETS]
    for _ in range(4):
        depth = int(rng.integers(2, 6))
        widths = rng.integers(2, 20, size=depth + 1).tolist()
        nets.append((widths, ["TF"[f] for f in (rng.random(depth) < 0.5).tolist()]))
    nets += [(WIDTHS[len(letters)], letters) for letters in LAST_NETS]
    for widths, letters in nets:
        N, frozen = int(rng.integers(1, 30)), [letter == "F" for letter in letters]
        yield Case(
            1,
            f"widths {', '.join(map(str, widths))}, layers {''.join(letters)}, N = {N}",
            [(list(widths), frozen, N)],
            [step_bytes(widths, frozen, N)],
        )


def step_bytes(widths, frozen, N):
    """(gradients, optimizer, activations)."""
    if all(frozen):
        return 0, 0, 0
    layers = [4 * (i + 1) * o for i, o in pairwise(widths)]
    trained = sum(size for size, f in zip(layers, frozen, strict=True) if not f)
    outputs = [4 * N * w for w in widths[frozen.index(False) :]]
    return trained, 2 * trained, sum(outputs) + 8 * N + 4  # the labels, and one number


FIRST, RETURN = "(i + 1) * o", "return trained, 2 * trained, activations"
LOW, SUM = "low = frozen.index(False)", "sum(widths[low:])"
EMPTY, LOSS = "return 0, 0, 0", "sum(widths[low:]) + 8 * N + 4"
kept_bytes = lambda came: (..., ..., came[2])

total = {RETURN: "return 3 * trained + activations"}
ex.mistake("not three numbers", signs.no_numbers, total).says("""
    It does not return three numbers: bytes of gradients, optimizer and activations.
    Hint: End with `return gradients, optimizer, activations`.
""")
every = "4 * sum((i + 1) * o for i, o in zip(widths, widths[1:]))"
for gradients, state in (every, "2 * trained"), ("trained", f"2 * {every}"):
    counted = {RETURN: f"return {gradients}, {state}, activations"}
    ex.slip("frozen", counted, about=lambda came: (*came[:2], ...)).says("""
        It counts gradients or optimizer state for frozen layers, which have neither.
        Hint: The optimizer gets only the parameters that are trained.
    """)
    empty = f"return {gradients}, {state}, 0".replace("trained", "0")
    ex.slip("frozen", {EMPTY: empty, **counted})
both_kinds = {RETURN: f"return {every}, 2 * {every}, activations"}
ex.slip("frozen", both_kinds)
ex.slip("frozen", {EMPTY: f"return {every}, 2 * {every}, 0", **both_kinds})
ex.slip("no bias", {FIRST: "i * o"}, about=lambda came: (*came[:2], ...)).says("""
    It leaves out the biases, which are parameters, too.
""")
still = signs.only(lambda case: all(case.inputs[0][1]), signs.wrong)
too_many = both(still, lambda a: a.came[0][2] > 0)
ex.mistake("still", too_many, {EMPTY: "return 0, 0, 8 * N + 4"}).says("""
    It counts activations where no layer is trained, although autograd keeps nothing
    there.
""")
ex.slip("saves nothing", {LOW: "low = 0"}, about=kept_bytes).says("""
    It counts activations below the lowest trained layer, where nothing needs to be
    kept.
    Hint: The backward pass ends at the lowest trained layer, so the layers below it
    need not keep anything.
""")
ex.slip("saves nothing", {LOW: "low = int(frozen[0])"})  # every ReLU
inputs = "sum(w for w, f in zip(widths, [*frozen, 0]) if not f)"
ex.slip("saves too much", {SUM: inputs}, about=kept_bytes).says("""
    It leaves out activations that the backward pass still needs.
    Hint: The lowest trained layer keeps its input. A frozen layer above it does not,
    but the ReLU below that one keeps its output.
""")
next_relu = "sum(w for w, *f in zip(widths, [*frozen, 0], [1, *frozen]) if not all(f))"
ex.slip("saves too much", {SUM: next_relu})
ex.slip("saves too much", {SUM: "sum(widths[low + 1 :])"})
again = "sum(widths[low:] + widths[low + 1 : -1])"
ex.slip("twice", {SUM: again}, about=kept_bytes).says("""
    It counts a tensor twice if a ReLU and the layer above it both keep it.
    Hint: The output of the ReLU is the input of the next layer.
""")
products = "sum(widths[low:] + [w for w, f in zip(widths, frozen) if not f][1:])"
ex.slip("twice", {SUM: products})
for scores, labels, one in list(product((0, 1), repeat=3))[:-1]:  # what is counted
    last = f"{scores} * widths[-1]) + {labels} * 8 * N + {one} * 4"
    part = {LOSS: f"(sum(widths[low:-1]) + {last}"}
    ex.slip("without the loss", part, about=kept_bytes).says("""
        It leaves out something that the loss keeps: the log-probabilities, the labels,
        or one number.
        Hint: The loss keeps 4 bytes for each score, 8 for each label, and 4 more.
    """)
ex.wrong("wrong", {"8 * N": "4 * N"})
ex.right({RETURN: "return [trained, 2.0 * trained, activations]"})


@ex.right
def measured(widths, frozen, N):
    layers = []
    for (i, o), f in zip(pairwise(widths), frozen, strict=True):
        layers += [nn.Linear(i, o).requires_grad_(not f), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])  # behind the last layer is the loss
    x, y = torch.ones(N, widths[0]), torch.zeros(N, dtype=torch.int64)
    loss, activations = kept(lambda: F.cross_entropy(net(x), y), net.parameters())
    trained = sum(p.nbytes for p in net.parameters() if p.requires_grad)
    return trained, 2 * trained, activations
