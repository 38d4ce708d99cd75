"""00.1 The mirror."""

from functools import partial
from itertools import product

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, argument, ranks
from ..signs import both, breaks

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)


def cases(rng):
    """A tensor of S elements on each of n ranks; half of the worlds have a middle."""
    for n, S in product(SIZES, (1, 6)):
        xs = list(torch.from_numpy(rng.normal(size=(n, S))))
        yield Case(
            n,
            f"{ranks(n)}, S = {S} element{'s' * (S != 1)}",
            [(x.clone(), n, r) for r, x in enumerate(xs)],
            facts={"sent": [8 * S * (2 * r + 1 != n) for r in range(n)]},
            truth=partial(mirrored, xs),
        )


def mirrored(xs, slip=""):
    """What each rank has afterwards."""
    if slip == "untouched":
        return xs
    return xs[-1:] + xs[:-1] if slip == "neighbour" else xs[::-1]


def in_the_middle(attempt):
    """The rank that fails is its own partner."""
    return 2 * attempt.error.rank + 1 == attempt.case.n


ROUNDS = rows.rounds(lambda case: min(1, case.n // 2))

exercise = Exercise(
    "00.1",
    cases,
    [
        rows.messages(lambda case: case.n - case.n % 2),
        rows.bytes_sent(lambda case: case.facts["sent"]),
        ROUNDS,
        rows.from_messages(),
    ],
    {
        "middle": signs.several(both(signs.to_itself, in_the_middle)),
        "hangs": both(signs.hangs, lambda a: a.case.n == 2),  # partners are right there
        **signs.slips("untouched", "neighbour"),
        "one after the other": breaks(ROUNDS),
    },
    outcome=argument(0),
)
