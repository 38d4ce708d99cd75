"""16.3 The row that cannot be true: impossible(rows)."""

from dataclasses import replace

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.planning.model import Model, Plan

# What is wrong in a row: the first word is what its answer names, or "none".
FAULTS = "none", "degrees", "batch", "seconds too low", "seconds too high", "peak"
FAULTS += "none near peak", "degrees too low", "degrees for context", "peak just over"
FAULTS += ("batch too small",)
SEVERAL = "degrees peak", "degrees seconds too low", "batch seconds too high peak"
SEVERAL += "degrees batch", "seconds too low peak", "batch peak"
AGAIN = "full", "selective", "none"
OFF = {"seconds too low": 0.88, "seconds too high": 1.13}

ex = Exercise("16.3", processes=())


@ex.cases
def cases(rng):
    """Tables with every fault, with several, with none, and without rows."""
    tables = [FAULTS, SEVERAL, ("none", "none near peak", "none"), ()]
    tables += [("peak", "degrees"), ("batch", "seconds too low", "none")]
    for faults in [*tables, *((fault,) for fault in FAULTS + SEVERAL)]:
        rows = [draw(rng, fault, k) for k, fault in enumerate(faults)]
        first = [fault.split()[0] for fault in faults]
        named = {f"run {k}": x for k, x in enumerate(first) if x != "none"}
        text = f"{len(rows)} rows, wrong in them: {', '.join(faults) or 'none'}"
        yield Case(1, text, [(rows,)], [named], {"faults": faults})


def draw(rng, fault, k):
    """(name, model, plan, GPUs, batch, TFLOP/s, seconds), with these things wrong."""
    heads = 8 * int(rng.integers(2, 9))
    model = Model(8 * int(rng.integers(1, 5)), 64 * heads, heads, 51200, 2048)
    t, b = 2 ** int(rng.integers(4)), 2 ** int(rng.integers(1, 4))
    d, p = (int(rng.integers(2, most)) for most in (7, 5))
    again = AGAIN[(k + int(rng.integers(3))) % 3]
    plan = Plan(d, t, p, b, context=1 + k % 2, recompute=again)
    batch, gpus = d * b * int(rng.integers(2, 20)), plan.ranks
    rate = round(float(rng.uniform(120, 160)), 1)
    if "peak" in fault:
        rate = {"none near peak": 270.8, "peak just over": 272.1}.get(fault, 296.5)
    if "batch" in fault:
        batch = batch * (fault != "batch too small") + d * b // 2
    if "degrees too low" in fault:
        gpus *= 2
    elif "degrees for context" in fault:
        plan = replace(plan, context=2 * plan.context)
    elif "degrees" in fault:
        plan = replace(plan, pipeline=2 * p)
    seconds = model.flops(batch, again) / (rate * 1e12 * gpus)
    for what, factor in OFF.items():
        seconds *= factor if what in fault else 1
    return f"run {k}", model, plan, gpus, batch, rate, float(f"{seconds:.4g}")


rows = lambda case: case.inputs[0][0]
ex.boundaries(
    no_rows=lambda case: not rows(case),
    one_row=lambda case: len(rows(case)) == 1,
    nothing_wrong=lambda case: rows(case) and not case.expected[0],
    everything_wrong=lambda case: len(rows(case)) == len(case.expected[0]) > 1,
    context=lambda case: any(row[2].context > 1 for row in rows(case)),
    no_power_of_two=lambda case: any(row[3] & (row[3] - 1) for row in rows(case)),
    **{x: lambda case, x=x: case.facts["faults"] == (x,) for x in FAULTS + SEVERAL},
)

# Texts of the answer, for edits

AGAIN_TOO, RANKS = ", plan.recompute)", "plan.ranks"
ALL_ROWS, LIMIT = "(plan.data * plan.micro_batch)", "0.87 * 312"
BATCH, SECONDS, PEAK = "elif batch", "elif abs", "elif rate"

# Mistakes of its own

ex.slip("no context", {RANKS: "plan.data * plan.tensor * plan.pipeline"}).says("""
    It leaves a degree out of the product.
    Hint: Which degrees has a `Plan`? There are four of them, and `context` is one.
""")
ex.slip("no recomputation", {AGAIN_TOO: ")"}).says("""
    It compares seconds and rate without the recomputed FLOPs.
    Hint: What does the printed rate count? It has all that the GPUs execute, and
    `flops` knows the plan's recomputation.
""")
ex.slip("data batch only", {ALL_ROWS: "plan.data"}).says("""
    It divides the batch by the data ranks alone.
    Hint: What does a data rank run? Whole micro-batches.
""")
ex.slip("own peak", {LIMIT: "312"}).says("""
    It allows rates up to the peak of the data sheet.
    Hint: Which rates are possible? No product has been measured above 87 % of that.
""")
ex.slip("rounded", {"> 0.02": "> 1e-7"}).says("""
    It takes rounding for a contradiction.
    Hint: Printed figures have few digits. How far may they be apart?
""")
last = {BATCH: "if batch", SECONDS: "if abs", PEAK: "if rate"}
ex.slip("last of several", last).says("""
    Where several things are wrong, it names the last one of the list.
    Hint: Which one is wanted? Test them in the order of the list, and stop at the first
    that is wrong.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {"return found": "return [*found]"})
ex.wrong("wrong", {"abs(own / rate - 1)": "own / rate - 1"})
ex.wrong("wrong", {ALL_ROWS: "plan.micro_batch"})
whole = "plan.micro_batches(batch) * plan.data * plan.micro_batch != batch"
ex.right({f"batch % {ALL_ROWS}": whole, "> 0.02": "> 0.05"})

ex.variation(
    "b",
    varied="whether the rate is that of a GPU or of all",
    differs="It takes the rate for that of each GPU, as in the public exercise, but "
    "here it is that of all GPUs together.",
    given=lambda n, rows: ([(*row[:5], row[5] * row[3], row[6]) for row in rows],),
)
