"""PyTorch's pipeline schedules, read into our format and compared with ours."""

import re

from .actions import Schedule, parse

V_SHAPED = {"ZBVZeroBubble", "DualPipeV"}
ONE_STAGE = {"GPipe", "1F1B"}


# PyTorch's list of a rank, and how it is read.  Its I is our B, and its B is our B and
# W.  A pair that runs as one block becomes its parts:
#
#     0F2 (0F3;3B1)OVERLAP_F_B 3I2 3W2 0REDUCE_GRAD
#     0F2  0F3 3B1 3W1         3B2 3W2
def from_torch(kind, p, m, v=None):
    """Return PyTorch's schedule of that name for p ranks and m micro-batches.

    Names: GPipe 1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble
    ZBVZeroBubble DualPipeV.  The fourth and the fifth may have v stages on each
    rank, 2 by default, and LoopedBFS too.  The schedule is not validated.
    """
    from ...sim.torch_private import action_lists

    if v is None:
        v = 1 if kind in ONE_STAGE else 2
    stages = [0, 2 * p - 1] if kind in V_SHAPED else range(0, v * p, p)
    lists = action_lists(kind, p, m, stages)
    splits = any(re.search(r"\dI\d", text) for row in lists for text in row)
    lines = [" ".join(_ours(text, splits) for text in row) for row in lists]
    return Schedule(parse("\n".join(lines)).ranks, f"torch {kind}")


def _ours(text, splits):
    """Return one of torch's actions in our words."""
    words = []
    for stage, kind, micro in re.findall(r"(\d+)([FIBW])(\d+)", text):
        words.append(f"{stage}{'B' if kind == 'I' else kind}{micro}")
        if kind == "B" and splits:
            words.append(f"{stage}W{micro}")
    return " ".join(words)


def differences(ours, theirs):
    """Return (rank, position, our action, their action) where two schedules differ.

    An action is None where a row has ended.
    """
    found = []
    for rank, rows in enumerate(zip(ours.ranks, theirs.ranks, strict=True)):
        longest = max(map(len, rows))
        rows = [[*row, *[None] * (longest - len(row))] for row in rows]
        for position, (mine, their) in enumerate(zip(*rows, strict=True)):
            if mine != their:
                found.append((rank, position, mine, their))
    return found
