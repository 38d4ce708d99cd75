"""Predict the time and the memory of a training step.

    model, cluster, plan, batch  ->  predict  ->  seconds, bytes, and their parts
    rows of published runs       ->  calibrate  ->  shares: one number for each GPU

Every rank waits for the slowest pipeline rank, m times.  The others count once, as the
pipeline fills and empties; the rest of a step follows when the last gradient is there.
"""

import math
from dataclasses import dataclass

from .links import allreduce, gather, links, message
from .memory import blocks_of_ranks, numbers, stages, tokens
from .model import Plan
from .times import NEWER, Shares, Speed, again, block, first, last


@dataclass(frozen=True)
class Prediction:
    """What a plan is predicted to take.

    seconds      of a step
    memory       bytes of the GPU that holds the most; `fits` tells if it can
    parts        {part: seconds}, which add up to `seconds`
    bubble       share of the pipeline's time in which its slowest rank waits for work
    mfu, hfu     FLOPs per second over the peak, without and with recomputed ones
    stages       per pipeline rank, the Held bytes of its GPUs
    """

    plan: Plan
    seconds: float
    memory: int
    parts: dict
    bubble: float
    mfu: float
    hfu: float
    fits: bool
    stages: tuple

    def __str__(self):
        text = f"{self.seconds:.2f} s, MFU {self.mfu:.1%}, {self.memory / 1e9:.1f} GB"
        return text if self.fits else f"{text}: does not fit"


def predict(model, cluster, plan, batch, shares=None):
    """Return the Prediction of a step of `batch` rows.

    shares    of `calibrate`; None: calibrated on two published rows

    Ranks are placed with the tensor axis fastest, then context, pipeline, data.
    Raises ValueError, with the reason, for a plan that cannot be run.
    """
    plan.check(model, cluster.n or plan.ranks, batch)
    return predicted(model, cluster, plan, batch, shares or usual_shares())


def usual_shares():
    """Return the Shares of the published rows that are marked for calibration."""
    from .rows import calibration

    rows = calibration()
    if rows not in _calibrated:
        _calibrated[rows] = calibrate(rows)
    return _calibrated[rows]


_calibrated: dict = {}


def predicted(model, cluster, plan, batch, shares):
    """Do the same for a plan that was checked, with shares."""
    speed, flash = Speed(cluster, shares, model), uses_flash(plan, cluster)
    parts, bubble = step_parts(model, cluster, plan, batch, speed, flash)
    seconds, held = sum(parts.values()), stages(model, plan, batch, flash)
    memory, peak = max(map(sum, held)), plan.ranks * speed.best
    useful, done = (model.flops(batch, how) for how in ("none", plan.recompute))
    rates = useful / seconds / peak, done / seconds / peak
    fits = memory <= cluster.gpu.memory
    return Prediction(
        plan, seconds, memory, parts, bubble, *rates, fits, tuple(held)
    )  # fmt: skip


def step_parts(model, cluster, plan, batch, speed, flash):
    """Return ({part: seconds of a step}, share of the bubble)."""
    m = plan.micro_batches(batch)
    ranks = works(model, plan, cluster, speed, flash)
    totals = [sum(rank.values()) for rank in ranks]
    slowest = max(range(plan.pipeline), key=totals.__getitem__)
    parts = {part: m * seconds for part, seconds in ranks[slowest].items()}
    parts["bubble"] = (sum(totals) - totals[slowest]) / plan.interleave
    parts["pipeline"] = between_stages(model, plan, cluster, speed, m)
    bubble = parts["bubble"] / sum(parts.values())
    most = max(numbers(model, plan, rank) for rank in range(plan.pipeline))
    parts["data"] = gradients(plan, cluster, most, m, totals[slowest])
    shared = plan.data * plan.context if plan.zero else 1
    parts["optimizer"] = speed.kernels.update * most / shared / speed.memory
    return parts, bubble


def uses_flash(plan, cluster):
    """Return whether attention is fused: by the plan, or the GPU's age."""
    if plan.flash is not None:
        return plan.flash
    return cluster.gpu is not None and cluster.gpu.short in NEWER


def works(model, plan, cluster, speed, flash):
    """Return {part: seconds} of a micro-batch, for each pipeline rank."""
    one = block(model, plan, cluster, speed, flash)
    redone = again(one, plan.recompute, flash)
    ends, ranks = ((0, first), (plan.pipeline - 1, last)), []
    held = blocks_of_ranks(model.layers, plan.pipeline)
    for rank, count in enumerate(held):
        total = {part: count * sum(both) for part, both in one.items()}
        total["recompute"] = count * redone
        for extra in (extra for end, extra in ends if rank == end):
            for part, both in extra(model, plan, cluster, speed).items():
                total[part] += sum(both)
        added = speed.kernels.accumulate * numbers(model, plan, rank)
        total["elementwise"] += added / speed.memory
        ranks.append(total)
    return ranks


# What messages of c seconds between stages add to a step (read off
# `schedule.simulate`, and exact where p divides m):
#
#     1F1B            2 m (p-1)/p + 2 (p-2)    stages wait for each other
#     interleaved     2 (p v - 1)              while it fills and empties
def between_stages(model, plan, cluster, speed, m):
    """Return the seconds in which a pipeline waits for messages."""
    p, v, t = plan.pipeline, plan.interleave, plan.tensor
    if p == 1:
        return 0.0
    senders = t * plan.context
    crosses = cluster.per_node is not None and senders * p > cluster.per_node
    nbytes = 2 * tokens(model, plan) * model.hidden
    whole = message(cluster, nbytes, senders, crosses)
    if plan.sequence_parallel or speed.kernels.scatter:
        part = message(cluster, nbytes / t, senders, crosses)
        if not plan.sequence_parallel:
            part += gather(links(cluster, t), nbytes)
        whole = min(whole, part)
    waits = 2 * m * (p - 1) / p + 2 * (p - 2) if v == 1 else 2 * (p * v - 1)
    ends = links(cluster, 2 if model.tied else 1, senders * (p - 1))
    return waits * whole + allreduce(ends, 2 * model.table / t)


def gradients(plan, cluster, count, m, work):
    """Return the seconds of messages between data ranks that nothing hides.

    zero=0: an all-reduce; 1: the same bytes in two halves, both at the end.
    zero=2 scatters after each micro-batch, zero=3 gathers twice, too, behind
    `work` seconds of computing, which take longer while messages travel.
    """
    shards = plan.data * plan.context
    group = links(cluster, shards, plan.tensor * plan.pipeline)
    if plan.zero == 0:
        return allreduce(group, 2 * count)
    each = gather(group, 2 * count)
    if plan.zero == 1:
        return 2 * each
    sent = each if plan.zero == 2 else 3 * each
    hidden = min(sent, work)
    exposed = m * (sent - hidden + cluster.contention * hidden)
    return exposed + (each if plan.zero == 2 else 0)


def calibrate(rows):
    """Return the Shares with which published runs take as long as published.

    rows    with a model, a cluster, a plan, a batch, and seconds

    One number for each kind of GPU, the median of its rows: what a run
    keeps up of the best measured products and of the memory's rate.  It is
    at most 1, so no prediction beats the best measured product.
    """
    found = {}
    for row in rows:
        row.plan.check(row.model, row.cluster.n or row.plan.ranks, row.batch)
        gpu = row.cluster.gpu.short.split("-")[0]
        found.setdefault(gpu, []).append(reached(row))
    if not found:
        raise ValueError("calibrate needs a row of a published run.")
    middle = {gpu: sorted(fits)[len(fits) // 2] for gpu, fits in found.items()}
    return Shares(middle, sum(middle.values()) / len(middle))


def reached(row):
    """Return the share with which a run takes so long, by bisection."""
    low, high = 0.01, 1.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        shares = Shares(usual=middle)
        one = predicted(row.model, row.cluster, row.plan, row.batch, shares)
        fast = one.seconds < row.seconds
        low, high = (low, middle) if fast else (middle, high)
    return high
