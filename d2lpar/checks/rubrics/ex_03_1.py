"""03.1 Mend the mean."""

from functools import partial
from itertools import product

import torch

from ...shared.played import Wire, put
from .. import signs
from ..judging import Case, Exercise, Requirement
from ..signs import both, breaks, wrong
from .chapter_03 import HEARD, OFF_THE_WIRE, UNSENT, wire

# examples on each device
COUNTS = (3,), (2, 2), (4, 1), (5, 0, 2), (0, 3, 1, 6), (7, 7, 6, 0, 1)

UNWEIGHTED = "unweighted", "empty ones count", "unweighted over all"


def cases(rng):
    """The mean over the share of each device; NaN where there is no example."""
    for counts, S in product(COUNTS, (1, 4)):
        n, listed = len(counts), ", ".join(map(str, counts))
        means = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
        pairs = enumerate(zip(means, counts, strict=True))
        given = [put(x if k else x * torch.nan, i) for i, (x, k) in pairs]
        wire = Wire()
        wire.gradients = list(given)  # the tensors, whatever becomes of the list
        yield Case(
            1,
            f"{n} device{'s' * (n != 1)} with {listed} examples, S = {S}",
            inputs=[(given, list(counts), wire)],
            facts={"limit": 2 * (n - 1) * S, "needs": [S if n > 1 else 0] * n},
            truth=partial(mean, counts, means),
        )


def mean(counts, means, slip=""):
    """What every device has afterwards, for the one process that plays them all."""
    given = torch.tensor(counts).double()
    ones = given.sign()
    weights, divisor = {
        "unweighted": (ones, ones.sum()),
        "empty ones count": (ones, len(counts)),
        "unweighted over all": (ones, given.sum()),
        "undivided": (given, 1),
    }.get(slip, (given, given.sum()))
    return [[(weights @ means / divisor).tolist()] * len(counts)]


def gradients(attempt, rank):
    """What the tensors hold that came in the list."""
    return [x.tolist() for x in wire(attempt).gradients]


def stale(attempt):
    """Some device has what it had before, and NaN has not come to all of them."""
    pairs = zip(attempt.came[0], attempt.case.inputs[0][0], strict=True)
    left = [str(x) == str(before.tolist()) for x, before in pairs]
    return any(left) and not all("nan" in str(x) for x in attempt.came[0])


ELEMENTS = Requirement(
    "elements sent, all devices",
    lambda a: sum(wire(a).elements(len(a.case.facts["needs"]))),
    lambda case: case.facts["limit"],
    exactly=False,
)

exercise = Exercise(
    "03.1",
    cases,
    [ELEMENTS, HEARD],
    {
        **OFF_THE_WIRE,
        "stale": both(wrong, stale),
        "nan": signs.not_a_number,
        "unweighted": signs.slip(*UNWEIGHTED),
        "undivided": both(signs.slip("undivided"), lambda a: a.case.facts["limit"] > 0),
        **UNSENT,
        "costly": breaks(ELEMENTS),
    },
    outcome=gradients,
)
