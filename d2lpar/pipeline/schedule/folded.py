"""Schedules in which a rank has two phases: a V of stages, or two directions.

A row is written as words, such as `0F 1F 1B 1W`: phase 0 and 1, and an action.  The
n-th `0F` of a row is micro-batch n of its phase.  p ranks, m micro-batches, r this
rank.  In a V, rank r has the stages r (phase 0) and 2p-1-r (phase 1), so rank 0 has the
first stage and the last:
                        rank 0    rank 1    rank 2
    phase 0, down         0    ->    1   ->    2
                                               |
    phase 1, up           5    <-    4   <-    3
"""

from collections import Counter

from .actions import Action


def zb_v(p, m):
    """Fill the bubble with W on a V of stages (Qi et al. 2024, section 6).

    If F, B and W take equal times, no rank waits.  A rank holds at most 2p
    inputs of its stages, which are half as large as those of 1F1B.
    """
    rows, most = [], max(m, 2 * p - 1)  # what is too much goes out again
    for r in range(p):
        left = p - r
        words = "0F " * (2 * left - 1) + "1F 0F " * r + "1F 1B 1W " * left
        words += "0F 0B 0W 1F 1B 1W " * (most + 1 - 2 * p + r)
        words += "0B 0W 1F 1B 1W " * (left - 1)
        words += "0B 1B " * r + "0B 0W " * left + "1W " * r + "0W " * r
        rows.append(_row(words, (r, 2 * p - 1 - r), (range(m), range(m))))
    return rows


def dualpipe_v(p, m):
    """Run DualPipe's order on a V of stages (github.com/deepseek-ai/DualPipe).

    Half as many ranks as in DualPipe do the same work, and no stage has a
    copy.  A rank holds at most 2p + 1 inputs of its stages.
    """
    both = range(m), range(m)
    return [_row(_dual(p, m, r), (r, 2 * p - 1 - r), both) for r in range(p)]


def dualpipe(p, m):
    """Send half of the micro-batches each way (DeepSeek-V3 2024, section 3.2.1).

    Ranks r and p-1-r have the stages r and p-1-r both.  The second half of the
    micro-batches enters on the last rank, which for them has stage 0.  A rank
    holds at most p + 1 micro-batches.  p must be even.
    """
    if p % 2:
        raise ValueError(f"dualpipe needs an even number of ranks, not {p}.")
    rows, half, halves = [], p // 2, (range((m + 1) // 2), range((m + 1) // 2, m))
    for r in range(p):
        near = r < half  # phase 0 is the way that enters at the nearer end
        stages, micros = (r, p - 1 - r), halves
        if not near:
            stages, micros = stages[::-1], halves[::-1]
        words = _dual(half, (m + 1) // 2, min(r, p - 1 - r))
        rows.append(_row(words, stages, micros))
    return rows


def _dual(p, m, r):
    """Return the row of rank r of p in DualPipeV, or of a half of DualPipe."""
    left, most = p - 1 - r, max(m, 2 * p)
    words = "0F " * (2 * left) + "0F 1F " * (r + 1) + "1B 1W 1F " * left
    words += "0F 1B 1W 1F 0B 0W " * (most - 2 * p + r + 1)
    words += "1B 1W 1F 0B 0W " * left
    backwards = [f"{phase}B" for _ in range(r + 1) for phase in (1, 0)]
    for backward in backwards[: r + 1]:
        words += f"{backward} {backward[0]}W "
    words += " ".join(backwards[r + 1 :]) + " "
    late = [backward[0] for backward in backwards[r + 1 :]] + ["0"] * left
    for weight in late[:left]:
        words += f"{weight}W 0B "
    return words + " ".join(f"{weight}W" for weight in late[left:])


def _row(words, stages, micros):
    """Return the actions of a row, but no micro-batches beyond the last."""
    seen, row = Counter(), []
    for word in words.split():
        phase, kind = int(word[0]), word[1]
        if seen[word] < len(micros[phase]):
            micro = micros[phase][seen[word]]
            row.append(Action(stages[phase], kind, micro))
        seen[word] += 1
    return row
