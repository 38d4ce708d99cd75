"""What the exercise of chapter 00 asks for."""

from itertools import product

import torch

from ..judging import Case, Exercise, Mistake, argument, ranks
from ..requirements import bytes_sent, from_messages, messages, rounds
from ..signs import both, gives, hangs, raises, right

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)


# 00.1 The mirror


def mirror_cases(rng):
    """A tensor of S elements on each of n ranks; half of the worlds have a middle."""
    for n, size in product(SIZES, (1, 6)):
        xs = [torch.from_numpy(rng.normal(size=size)) for _ in range(n)]
        yield Case(
            n,
            f"{ranks(n)}, S = {size} element{'s' * (size != 1)}",
            inputs=[(xs[r].clone(), n, r) for r in range(n)],
            expected=[xs[n - 1 - r] for r in range(n)],
            facts={"S": size, "xs": xs},
        )


def _middle(case):
    """The rank that is its own partner; None for an even number of ranks."""
    return case.n // 2 if case.n % 2 else None


def _mirror_bytes(case):
    return [0 if r == _middle(case) else 8 * case.facts["S"] for r in range(case.n)]


def _middle_fails(attempt):
    middle = _middle(attempt.case)
    return middle is not None and attempt.error and attempt.error.rank == middle


mirror = Exercise(
    "00.1",
    "The mirror",
    mirror_cases,
    [
        messages(lambda case: case.n - case.n % 2),
        bytes_sent(_mirror_bytes),
        rounds(lambda case: min(1, case.n // 2)),
        from_messages(),
    ],
    [
        Mistake(
            "middle",
            both(_middle_fails, raises(ValueError)),
            "With an odd number of ranks the middle one tries to send to itself.",
            "Who is the partner of rank 2 of 5? It has all it needs already.",
        ),
        Mistake(
            "hangs",
            hangs,
            "Both partners do the same first, and wait for each other.",
            "`exchange` sends and receives at once.",
        ),
        Mistake(
            "untouched",
            gives(lambda case: case.facts["xs"]),
            "Every rank still has its own tensor: what came was not put into `x`.",
            "`x = theirs` only names another tensor. `x.copy_(theirs)` fills this one.",
        ),
        Mistake(
            "neighbour",
            gives(lambda case: case.facts["xs"][-1:] + case.facts["xs"][:-1]),
            "Every rank has the tensor of its left neighbour, as in a ring.",
            "Rank 0 swaps with the last rank, rank 1 with the last but one.",
        ),
        Mistake(
            "one after the other",
            both(right, lambda a: a.run.rounds > 1),
            "It is right, but not everything travels at once.",
            "All pairs can swap in one round: two ranks need nobody else for it.",
        ),
    ],
    outcome=argument(0),
)

EXERCISES = [mirror]
