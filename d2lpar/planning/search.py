"""All plans of a model on a cluster: searched, explained, priced."""

import itertools
from dataclasses import replace

from .memory import stages
from .model import Plan
from .predictions import predicted, uses_flash, usual_shares


def plans(
    model, cluster, batch, shares=None, *, micro_batches=(1, 2, 4, 8),
    interleaves=(1, 2, 3, 4), zeros=(1, 3), contexts=(1,),
    recomputes=("none", "selective", "full"), flash=None, reserve=0.1,
):  # fmt: skip
    """Return the Predictions of all plans that fit, best first.

    The keywords say what is tried; data, tensor and pipeline are all that
    divide the GPUs.  The share `reserve` of a GPU's memory stays free, as
    runs hold more than formulas count.  No plan recomputes more than it
    must to fit.  Tensor ranks always share the norms.
    """
    shares, found = shares or usual_shares(), []
    tried = itertools.product(micro_batches, interleaves, zeros)
    meshes = list(every_mesh(model, cluster, contexts))
    for (b, v, zero), mesh in itertools.product(tried, meshes):
        how = {"micro_batch": b, "interleave": v, "zero": zero, "flash": flash}
        plan = Plan(**mesh, **how, sequence_parallel=mesh["tensor"] > 1)
        if plan.obstacle(model, batch):
            continue
        ways = (replace(plan, recompute=each) for each in recomputes)
        able = (w for w in ways if fits(model, cluster, w, batch, reserve))
        if way := next(able, None):
            found.append(predicted(model, cluster, way, batch, shares))
    return sorted(found, key=lambda one: one.seconds)


def every_mesh(model, cluster, contexts=(1,)):
    """Yield {axis: size} for all sizes whose product is the number of GPUs."""
    n = cluster.n
    divisors = [k for k in range(1, n + 1) if n % k == 0]
    for t, p, c in itertools.product(divisors, divisors, contexts):
        if n % (t * p * c) == 0 and t <= model.heads and p <= model.layers:
            data = n // (t * p * c)
            yield {"data": data, "tensor": t, "pipeline": p, "context": c}


def fits(model, cluster, plan, batch, reserve=0.0):
    """Return whether every GPU has room, with a share of it in reserve."""
    if not 0 <= reserve < 1:
        text = "reserve is the share of a GPU's memory that stays free"
        raise ValueError(f"{text}, at least 0 and below 1, not {reserve!r}.")
    held = stages(model, plan, batch, uses_flash(plan, cluster))
    return max(map(sum, held)) <= (1 - reserve) * cluster.gpu.memory


DEGREES = "data", "tensor", "pipeline", "context", "micro_batch", "interleave"


def explain(better, worse):
    """Return a sentence: in which parts the times of two plans differ."""
    pairs = [
        (name, getattr(better.plan, name), getattr(worse.plan, name))
        for name in (*DEGREES, "zero", "recompute")
    ]
    changes = [f"{name} {b} instead of {a}" for name, a, b in pairs if a != b]
    longer, least = worse.seconds - better.seconds, 0.02 * better.seconds
    before, after = better.parts, worse.parts
    parts = {name: after[name] - before[name] for name in before}
    large = [name for name in parts if abs(parts[name]) > least]
    large.sort(key=lambda name: -abs(parts[name]))
    text = f"{', '.join(changes) or 'The same plan'}: {longer:+.2f} s a step"
    if large:
        told = ", ".join(f"{name} {parts[name]:+.2f} s" for name in large)
        text = f"{text} ({told})"
    if not worse.fits:
        text += f"; it needs {worse.memory / 1e9:.0f} GB, more than a GPU has"
    return f"{text}."


def cost(prediction, steps, price):
    """Return (GPU hours, money) of steps, at a price per GPU and hour."""
    hours = prediction.seconds * steps * prediction.plan.ranks / 3600
    return hours, hours * price
