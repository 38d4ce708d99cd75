"""02.2 What does freezing save?"""

from functools import partial
from itertools import pairwise, product

from .. import signs
from ..judging import Case, Exercise, numbers, same
from ..signs import both, either, wrong

FIXED = (  # widths, which layers are frozen
    ((5, 4, 3), (False, False)),
    ((5, 4, 3), (True, False)),
    ((5, 4, 3), (False, True)),
    ((6, 5, 4, 3), (True, True, True)),
    ((6, 5, 4, 3), (True, False, True)),
)
LAST = (
    ((3, 2), (False,)),
    ((6, 5, 4, 3), (True, True, False)),
    ((6, 5, 4, 3), (False, True, True)),
)
PARTS = list(product((0, 1), repeat=3))[:-1]  # of what the loss keeps, not all


def cases(rng):
    """(widths, frozen, N): those that are fixed, more at random, and the last ones."""
    nets = list(FIXED)
    for _ in range(4):
        depth = int(rng.integers(2, 6))
        widths = tuple(int(w) for w in rng.integers(2, 20, size=depth + 1))
        nets.append((widths, tuple(bool(f) for f in rng.random(depth) < 0.5)))
    for widths, frozen in [*nets, *LAST]:
        N = int(rng.integers(1, 30))
        letters = "".join("F" if f else "T" for f in frozen)
        yield Case(
            1,
            f"widths {', '.join(map(str, widths))}, layers {letters}, N = {N}",
            [(list(widths), list(frozen), N)],
            truth=partial(step_bytes, widths, frozen, N),
        )


def step_bytes(widths, frozen, N, slip=""):
    """[(gradients, optimizer, activations)]; a slip changes one of them."""
    if all(frozen):
        return [(..., ..., ...) if slip else (0, 0, 0)]
    layers = [4 * (i + (slip != "no bias")) * o for i, o in pairwise(widths)]
    trained = sum(size for size, f in zip(layers, frozen, strict=True) if not f)
    if slip == "no bias":
        return [(trained, 2 * trained, ...)]
    if slip == "frozen gradients":
        return [(sum(layers), ..., ...)]
    if slip == "frozen state":
        return [(..., 2 * sum(layers), ...)]
    inputs, low = [4 * N * w for w in widths[:-1]], frozen.index(False)
    of_trained = [0 if f else x for x, f in zip(inputs, frozen, strict=True)]
    before = True, *frozen[:-1]  # there is nothing to train before the first
    next_relu = [0 if b else x for x, b in zip(inputs, before, strict=True)]
    kept = {
        "saves nothing": inputs,
        "every ReLU": of_trained[:1] + inputs[1:],
        "saves too much": of_trained,
        "the next ReLU": map(max, of_trained, next_relu),
        "one too few": inputs[low + 1 :],
        "twice": inputs[low:] + inputs[low + 1 :],
        "products twice": inputs[low:] + of_trained[low + 1 :],
    }.get(slip, inputs[low:])
    scores, labels, one = slip if slip in PARTS else (1, 1, 1)  # kept by the loss
    activations = sum(kept) + scores * 4 * N * widths[-1] + labels * 8 * N + one * 4
    return [(..., ..., activations)] if slip else [(trained, 2 * trained, activations)]


def agrees(came, wanted, case):
    """Three numbers, of any kind."""
    return same(numbers(came).tolist(), wanted)


STILL = signs.only(lambda case: all(case.inputs[0][1]), wrong)

exercise = Exercise(
    "02.2",
    cases,
    [],
    {
        "not three numbers": signs.no_numbers,
        **signs.slips("frozen gradients", "frozen state", "no bias"),
        "still": both(STILL, lambda a: a.came[0][2] > 0),
        "saves nothing": signs.slip("saves nothing", "every ReLU"),
        "saves too much": signs.slip("saves too much", "the next ReLU"),
        **signs.slips("one too few"),
        "twice": signs.slip("twice", "products twice"),
        "without the loss": either(*signs.slips(*PARTS).values()),
    },
    agrees=agrees,
)
