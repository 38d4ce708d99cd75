"""04.1 Shift by k."""

from functools import partial

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, hangs, raises, to_itself, violates
from .chapter_04 import BATCHED, SIZES, WAITED

FORMS = [(torch.float64, (1,)), (torch.float32, (2, 3)), (torch.int64, (5,))]
FORMS += [(torch.bool, (3,)), (torch.complex64, (2, 1, 2)), (torch.int64, ())]


def cases(rng):
    """Any k: 0, negative, n and more; tensors of several shapes and types."""
    calls = [
        (n, k, *FORMS[i % len(FORMS)])
        for n in SIZES
        for i, k in enumerate((0, 1, 2, -1, n + 3, -1, -2 * n, n + 1))
    ]
    calls.append((2, 1, torch.float32, (0, 2)))
    for n, k, dtype, shape in sorted(calls, key=lambda call: call[0]):
        xs = [drawn(rng, shape, dtype) for _ in range(n)]
        kind, moves = str(dtype).removeprefix("torch."), k % n != 0
        yield Case(
            n,
            f"{ranks(n)}, k = {k}, x is {kind} {list(shape)}",
            inputs=[(x.clone(), k) for x in xs],
            facts={"moves": moves, "bytes": moves * xs[0].nbytes},
            truth=partial(shifted, xs, k),
        )


def drawn(rng, shape, dtype):
    """A tensor of any kind; integers with more digits than a float has."""
    if dtype == torch.bool:
        return torch.tensor(rng.integers(0, 2, shape)).bool()
    if dtype.is_complex:
        return torch.tensor(rng.normal(size=(*shape, 2)) @ [1, 1j]).to(dtype)
    return torch.tensor(rng.integers(-(2**60), 2**60, shape)).to(dtype)


def shifted(xs, k, slip=""):
    """What each rank has afterwards."""
    k = -k if slip == "direction" else k
    return [xs[(r - k) % len(xs)] for r in range(len(xs))]


def in_pairs(attempt):
    """Ranks send to the ones that they receive from, and wait for no others."""
    n, k = attempt.case.n, attempt.case.inputs[0][1]
    waits = signs.waiting(attempt)
    return 2 * k % n == 0 and all((peer - r - k) % n == 0 for r, _, peer in waits)


MESSAGES = rows.messages(lambda case: case.facts["moves"] * case.n)
BYTES = rows.bytes_sent(lambda case: case.facts["bytes"])
ROUNDS = rows.rounds(lambda case: int(case.facts["moves"]))
UNTOUCHED = rows.untouched(0)

exercise = Exercise(
    "04.1",
    cases,
    [MESSAGES, BYTES, ROUNDS, WAITED, BATCHED, rows.from_messages(), UNTOUCHED],
    {
        "itself": both(to_itself, signs.only(lambda case: not case.facts["moves"])),
        "no mod": both(raises(ValueError), lambda a: "ranks 0 to" in str(a.cause)),
        "all send first": both(hangs, in_pairs),
        "no wait": violates(WAITED),
        "overwrites": violates(UNTOUCHED),
        **signs.slips("direction"),
        "step by step": both(breaks(BYTES), breaks(ROUNDS)),
        "in turns": both(breaks(ROUNDS), MESSAGES.holds),
        "no batch": breaks(BATCHED),
    },
)
