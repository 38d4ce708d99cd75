"""18.2 Which sum was it?"""

from functools import partial

import torch

from .. import signs
from ..judging import Case, Exercise

KINDS = "copies", "row", "all", "mean", "nothing"
GRIDS = (4, 2), (6, 3), (6, 2), (8, 4), (3, 1), (4, 4), (1, 1)
# forms of each mistake, most with two ways to say that no kind fits
SLIPS = {
    "some ranks only": ["rank 0 only", "first copy", "last rank"],
    "row and column": ["row and column", "turned", "turned, else nothing", "exchanged"],
    "from the end": ["from the end", "nothing first", "unchanged first"],
    "no rounding": ["no rounding", "no rounding, else nothing"],
    "no mean": ["no mean", "no mean, else nothing"],
    "other mean": ["by row", "by row, else nothing"],
}
SLIPS["other mean"] += ["of all", "of all, else nothing"]


def cases(rng):
    """All kinds on all grids; some experts had no token, so their gradient is 0.

    Those are the first ones or the last ones, so no rank alone shows every kind.
    """
    for n, row in GRIDS:
        for number, kind in enumerate(KINDS):
            before = [torch.from_numpy(rng.normal(size=4)) for _ in range(n)]
            if n > 4 and number > 0:
                for idle in before[: n - 2] if number % 2 else before[2:]:
                    idle.zero_()
            after = [changed(before, r, row, kind) for r in range(n)]
            if row < n or kind not in ("copies", "nothing"):  # else it is unchanged
                after = [g * (1 + 1e-13 * rng.uniform(-1, 1)) for g in after]
            given = before, after, row
            text = f"{n} ranks, {row} in a copy, case {number + 1}"
            yield Case(1, text, [given], truth=partial(named, *given))


def changed(before, r, row, kind, slip=""):
    """What rank r has after this sum."""
    n = len(before)
    if slip in ("turned", "exchanged"):
        kind = {"copies": "row", "row": "copies"}.get(kind, kind)
    over = {
        "copies": [s for s in range(n) if s % row == r % row],
        "row": [s for s in range(n) if s // row == r // row],
        "all": range(n),
        "nothing": [r],
    }
    mean_over = {"turned": "row", "of all": "all"}.get(slip, "copies")
    members = over[mean_over if kind == "mean" else kind]
    total = sum(before[s] for s in reversed(members))
    if kind != "mean":
        return total
    return total / (row if slip == "by row" else len(members))


def named(before, after, row, slip=""):
    """[the first kind that explains what all ranks have]."""
    slip, _, otherwise = slip.partition(", else ")
    part = {"rank 0 only": (0, 1), "first copy": (0, row), "last rank": (-1, None)}
    seen = range(len(before))[slice(*part.get(slip, (None,)))]
    kinds = KINDS[::-1] if slip == "from the end" else KINDS
    kinds = KINDS[-1:] + KINDS if slip.endswith(" first") else kinds
    turned = {"row": "copies", "copies": "row"} if slip == "row and column" else {}
    for place, kind in enumerate(kinds):
        if kind == "mean" and slip == "no mean":
            continue
        exact = slip == "no rounding" or (slip, place) == ("unchanged first", 0)
        near = 0.0 if exact else 1e-9
        made = [changed(before, r, row, kind, slip) for r in seen]
        pairs = zip(made, (after[r] for r in seen), strict=True)
        if all(bool(((a - b).abs() <= near * (1 + b.abs())).all()) for a, b in pairs):
            return [turned.get(kind, kind)]
    return [otherwise or None]


exercise = Exercise(
    "18.2",
    cases,
    [],
    {name: signs.slip(*forms) for name, forms in SLIPS.items()},
    agrees=lambda came, wanted, case: came == wanted,
    processes=(),
)
