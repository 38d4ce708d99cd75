"""16.2 The largest micro-batch."""

from dataclasses import replace
from functools import partial

from ...planning.memory import stages
from ...planning.model import Model, Plan
from .. import signs
from ..equality import whole_or_none
from ..judging import Case, Exercise

# data, tensor, pipeline, interleave, zero, recompute, rows of a data rank
PLANS = [(1, 1, 1, 1, 0, "none", 12), (2, 1, 4, 1, 1, "none", 24)]
PLANS += [(1, 2, 4, 2, 0, "selective", 16), (4, 2, 2, 1, 1, "full", 30)]
PLANS += [(2, 1, 8, 1, 0, "none", 6), (1, 1, 8, 1, 1, "none", 8)]
PLANS += [(2, 4, 2, 1, 3, "full", 12), (1, 1, 4, 2, 0, "none", 20)]

SLIPS = "first stage", "last stage", "powers of two", "any size"
SLIPS += "mean of stages", "less than all", "global rows"


def cases(rng):
    """Memory for some sizes, for all of them, for the smallest, and for none."""
    for number, sizes in enumerate(PLANS):
        other = ("none", "plenty", "least")[number % 3]
        for room in ("middle", other):
            yield drawn(rng, sizes, room)


def drawn(rng, sizes, room):
    """One case: the memory lies between two of the sizes, above all, or below."""
    d, t, p, v, zero, how, rows = sizes
    heads = 4 * t
    words = 64 * int(rng.integers(4, 60))
    model = Model(2 * p * v, 16 * heads, heads, words, 64)
    plan, batch = Plan(d, t, p, 1, v, 1, zero, False, how), d * rows
    needs = sorted(most(model, plan, batch, b) for b in divisors(rows))
    at = int(rng.integers(1, len(needs) - 1))
    memory = {"middle": (needs[at] + needs[at - 1]) // 2, "none": needs[0] - 1}
    memory["least"] = needs[0]
    given = model, plan, batch, memory.get(room, needs[-1])
    text = f"data {d}, tensor {t}, pipeline {p}, {rows} rows each, {room} of memory"
    return Case(1, text, [given], truth=partial(best, *given))


def divisors(rows):
    return [b for b in range(1, rows + 1) if rows % b == 0]


def most(model, plan, batch, b, slip=""):
    """Bytes of the GPU that holds the most."""
    held = [sum(one) for one in stages(model, replace(plan, micro_batch=b), batch)]
    if slip == "mean of stages":
        return sum(held) / len(held)
    return {"first stage": held[0], "last stage": held[-1]}.get(slip, max(held))


def best(model, plan, batch, memory, slip=""):
    """[the largest micro-batch that fits, or None]."""
    rows, found = batch // plan.data, None
    tried = divisors(batch if slip == "global rows" else rows)
    if slip == "powers of two":
        tried = [b for b in tried if b & (b - 1) == 0]
    if slip == "any size":
        tried = range(1, rows + 1)
    for b in tried:
        held = most(model, plan, batch, b, slip)
        if held > memory or (held == memory and slip == "less than all"):
            continue
        found = b
    return [found]


exercise = Exercise(
    "16.2",
    cases,
    [],
    {name: signs.slip(name) for name in SLIPS},
    agrees=whole_or_none,
    processes=(),
)
