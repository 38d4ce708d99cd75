"""16.3 The row that cannot be true."""

from dataclasses import replace
from functools import partial

from ...planning.model import Model, Plan
from .. import signs
from ..judging import Case, Exercise

PEAK, BEST = 312e12, 0.87
FAULTS = "", "degrees", "batch", "seconds", "peak", "degrees peak"
SLIPS = "no recomputation", "data batch only", "own peak", "rounded", "peak first"


def cases(rng):
    """Tables with every fault, with several, and with none."""
    tables = [FAULTS, ("", "", ""), ("peak", "degrees"), ("batch", "seconds", "")]
    tables += [(fault,) for fault in FAULTS]
    for faults in tables:
        rows = [row(rng, fault, k) for k, fault in enumerate(faults)]
        text = f"{len(rows)} rows with {', '.join(f or 'no fault' for f in faults)}"
        yield Case(1, text, [(rows,)], truth=partial(named, rows))


def row(rng, fault, k):
    """(name, model, plan, GPUs, batch, TFLOP/s, seconds), with one thing wrong."""
    heads = 8 * int(rng.integers(2, 9))
    model = Model(8 * int(rng.integers(1, 5)), 64 * heads, heads, 51200, 2048)
    t, p, d, b = (2 ** int(rng.integers(1, 4)) for _ in range(4))
    again = ("full", "selective", "none")[(k + int(rng.integers(3))) % 3]
    plan = Plan(d, t, p, b, recompute=again)
    batch, gpus = d * b * int(rng.integers(2, 20)), plan.ranks
    rate = round(float(rng.uniform(120, 160)), 1)
    if "peak" in fault:
        rate = round(float(rng.uniform(280, 310)), 1)
    if fault == "batch":
        batch += d * b // 2
    seconds = model.flops(batch, again) / (rate * 1e12 * gpus)
    seconds *= {"seconds": float(rng.choice([0.8, 1.3]))}.get(fault, 1.0)
    if "degrees" in fault:
        plan = replace(plan, pipeline=2 * p)
        batch *= 2
        seconds *= 2
    return f"run {k}", model, plan, gpus, batch, rate, float(f"{seconds:.4g}")


def named(rows, slip=""):
    """[{name: what is wrong}] of the rows in which something is."""
    found = {}
    for name, model, plan, gpus, batch, rate, seconds in rows:
        how = "none" if slip == "no recomputation" else plan.recompute
        share = plan.data * (1 if slip == "data batch only" else plan.micro_batch)
        printed = model.flops(batch, how) / (rate * 1e12 * gpus)
        limit = PEAK * (1.0 if slip == "own peak" else BEST)
        apart = abs(seconds / printed - 1) > (1e-7 if slip == "rounded" else 0.02)
        checks = [("degrees", plan.ranks != gpus), ("batch", batch % share != 0)]
        checks += [("seconds", apart), ("peak", rate * 1e12 > limit)]
        checks = checks[::-1] if slip == "peak first" else checks
        for fault, holds in checks:
            if holds:
                found[name] = fault
                break
    return [found]


def agrees(came, wanted, case):
    """The same dict."""
    return isinstance(came, dict) and came == wanted


exercise = Exercise(
    "16.3",
    cases,
    [],
    {
        "no dict": lambda a: signs.wrong(a) and not isinstance(a.came[0], dict),
        **{name: signs.slip(name) for name in SLIPS},
    },
    agrees=agrees,
    processes=(),
)
