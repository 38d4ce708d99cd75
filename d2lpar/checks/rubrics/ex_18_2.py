"""18.2 Which sum was it?"""

from functools import partial

import torch

from .. import signs
from ..judging import Case, Exercise

KINDS = "copies", "row", "all", "mean", "nothing"
GRIDS = (4, 2), (6, 3), (6, 2), (8, 4), (3, 1), (4, 4), (1, 1)
SLIPS = "rank 0 only", "row and column", "from the end", "no rounding", "no mean"


def cases(rng):
    """All kinds on all grids; some experts had no token, so their gradient is 0."""
    for n, row in GRIDS:
        for number, kind in enumerate(KINDS):
            before = [torch.from_numpy(rng.normal(size=4)) for _ in range(n)]
            for idle in range(number % 2 * (n > 4) * (n - 2)):  # ranks 0, 1, ...
                before[idle].zero_()
            after = [changed(before, r, row, kind) for r in range(n)]
            after = [g * (1 + 1e-12 * rng.normal()) for g in after]
            given = before, after, row
            text = f"{n} ranks, {row} in a copy, case {number + 1}"
            yield Case(1, text, [given], truth=partial(named, *given))


def changed(before, r, row, kind):
    """What rank r has after this sum."""
    n = len(before)
    over = {
        "copies": [s for s in range(n) if s % row == r % row],
        "row": [s for s in range(n) if s // row == r // row],
        "all": range(n),
        "nothing": [r],
    }
    members = over["copies" if kind == "mean" else kind]
    total = sum(before[s] for s in reversed(members))
    return total / len(members) if kind == "mean" else total


def named(before, after, row, slip=""):
    """[the first kind that explains what all ranks have]."""
    seen = range(1 if slip == "rank 0 only" else len(before))
    near = 0.0 if slip == "no rounding" else 1e-9
    kinds = KINDS[::-1] if slip == "from the end" else KINDS
    turned = {"row": "copies", "copies": "row"} if slip == "row and column" else {}
    for kind in kinds:
        if kind == "mean" and slip == "no mean":
            continue
        made = [changed(before, r, row, kind) for r in seen]
        pairs = zip(made, after, strict=False)
        if all(bool(((a - b).abs() <= near * (1 + b.abs())).all()) for a, b in pairs):
            return [turned.get(kind, kind)]
    return [None]


exercise = Exercise(
    "18.2",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=lambda came, wanted, case: came == wanted,
    processes=(),
)
