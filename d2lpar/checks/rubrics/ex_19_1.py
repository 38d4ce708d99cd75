"""19.1 The odd bit out."""

from functools import partial

import torch

from .. import requirements as rows
from ..judging import Case, Exercise
from ..signs import breaks, slips

# ranks, numbers, odd rank, index, bit; None: nothing is flipped
FLIPS = [(3, 10, 1, 4, 3), (4, 1, 2, 0, 0), (4, 50, 0, 49, 31), (3, 7, None, 0, 0)]
FLIPS += [(5, 33, 4, 0, 12), (8, 100, 0, 63, 30), (8, 64, 7, 1, 31), (3, 9, 0, 8, 22)]


def cases(rng):
    """Any rank may be the odd one, any bit, the first and the last number; or none."""
    drawn = [(int(rng.integers(3, 7)), int(rng.integers(2, 90))) for _ in range(3)]
    more = [(n, size, int(rng.integers(n)), int(rng.integers(size)),
             int(rng.integers(32))) for n, size in drawn]  # fmt: skip
    for n, size, odd, index, bit in [*FLIPS, *more]:
        x = torch.from_numpy(rng.normal(size=size)).float()
        held = [x.clone() for _ in range(n)]
        text = f"{size} numbers, "
        text += "nothing flipped" if odd is None else f"bit {bit} of {index} on {odd}"
        if odd is not None:
            word = held[odd].view(torch.int32)
            word[index] ^= torch.tensor(-(2**31) if bit == 31 else 1 << bit).int()
        given = [(each,) for each in held]
        yield Case(n, text, given, truth=partial(found, n, odd, index))


def found(n, odd, index, slip=""):
    """Per rank, (rank, index) or None; a slip finds something else."""
    if odd is None:
        return [(0, 0) if slip == "always one" else None] * n
    if slip == "trusts rank 0" and odd == 0:
        return [(1, index)] * n
    if slip == "from one":
        return [(odd, index + 1)] * n
    if slip == "only the odd":
        return [(odd, index) if r == odd else None for r in range(n)]
    if slip == "other way":
        return [(index, odd)] * n
    return [(odd, index)] * n


def agrees(came, wanted, case):
    """None, or two whole numbers."""
    if wanted is None or came is None:
        return wanted is came
    try:
        return tuple(map(int, came)) == wanted and len(came) == 2
    except (TypeError, ValueError, RuntimeError):
        return False


BYTES = rows.bytes_sent(lambda case: 16 * case.n, exactly=False)

exercise = Exercise(
    "19.1",
    cases,
    [BYTES],
    {
        **slips("trusts rank 0", "from one", "only the odd", "other way", "always one"),
        "too many bytes": breaks(BYTES),
    },
    agrees=agrees,
)
