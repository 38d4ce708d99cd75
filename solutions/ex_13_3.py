"""13.3 One weight on two stages: train(schedule, stage, batches, lr, limit)."""

import copy

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.given import Layer, Words
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import not_a_number, wrong
from d2lpar.pipeline.schedule import make

V, D, N, LR = 20, 3, 5, 0.5
FREE = 10_000  # a limit that no norm comes to
# ranks, schedule, steps, most that the norm may be
SIZES = [(1, "1f1b", 1, FREE), (1, "gpipe", 2, 0.5), (2, "gpipe", 2, FREE)]
SIZES += [(2, "1f1b", 1, 0.5), (3, "zb-h1", 3, 0.7), (3, "gpipe", 2, FREE)]
SIZES += [(4, "1f1b", 3, 0.6)]


def near(came, wanted, case):
    """To five digits: torch's own clipping adds 1e-6 to the norm."""
    try:
        torch.testing.assert_close(came, wanted, rtol=1e-5, atol=1e-6)
    except (AssertionError, TypeError, ValueError):
        return False
    return True


ex = Exercise("13.3", agrees=near)


@ex.cases
def cases(rng, reference):
    """1 to 4 ranks; gradients that are clipped, and some that are not."""
    draw = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    for p, name, steps, limit in SIZES:
        w, batches = draw(V, D), [(draw(N, V), draw(N, V)) for _ in range(steps)]
        layers = [Layer(x, x[0].clone()) for x in [draw(D, D) for _ in range(p - 2)]]
        ends = [Words(w, "in"), Words(w, "out")] if p > 1 else [Words(w, "in and out")]
        stages = [*ends[:1], *layers, *ends[1:]]
        alone = copy.deepcopy(stages)
        trained = reference(alone, alone[0].w, batches, LR, limit)
        inputs = [(make(name, p, 3), stage, batches, LR, limit) for stage in stages]
        facts = {"schedule": name, "steps": steps, "limit": f"{limit:g}"}
        yield Case.of(p, inputs, trained, **facts)


free = lambda case: case.inputs[0][-1] == FREE
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    alone_and_clipped=lambda case: case.n == 1 and not free(case),
    alone_and_free=lambda case: case.n == 1 and free(case),
    several_and_clipped=lambda case: case.n > 1 and not free(case),
    several_and_free=lambda case: case.n > 1 and free(case),
    one_step=lambda case: case.facts["steps"] == 1,
    uneven_micro_batches=lambda case: N % case.inputs[0][0].m,
)


def copies(attempt):
    """The shared weight of the first and of the last rank, if they return it."""
    try:
        return attempt.came[0][0], attempt.came[-1][0]
    except (TypeError, LookupError):
        return None, None


def differ(attempt):
    """1 if the two copies have other bits."""
    first, last = copies(attempt)
    return 1 - (torch.is_tensor(first) and same(last, first) and first.equal(last))


def most(case):
    """The pipeline's bytes, the weight once between its ends, and 16 numbers a step."""
    p, steps = case.n, case.facts["steps"]
    lines = [2 - (r == 0) - (r == p - 1) for r in range(p)]
    weight = [V * D * (p > 1 and r in (0, p - 1)) for r in range(p)]
    each = [N * D * lines[r] + weight[r] + 16 for r in range(p)]
    return [80 * lines[r] + 8 * steps * each[r] for r in range(p)]


ex.require(Requirement("copies with other bits", differ, lambda case: 0))
ex.at_most(bytes=most)
ex.require(rows.from_messages())

# Texts of the answer, for edits

ENDS, ADD, SUM = "n > 1 and r in (0, n - 1)", "stage.w.grad += other", "ring_allreduce("
ONCE, ALL = "parameters if r == 0 else []", "counted = parameters\n"
NORM, SCALE = "square.sqrt()", "lr * p.grad *"

# Mistakes of its own

ex.slip("own norm", {ONCE: "parameters", f"{SUM}square)": "pass"}).says("""
    Each rank clips by the norm of its own gradients only.
    Hint: Whose gradients are in the norm? Those of all ranks, so the ranks must add up
    the squares of their gradients.
""")
ex.slip("own norm", {f"{SUM}square)": "pass"})
ex.slip("not once", {ONCE: "parameters"}).says("""
    It counts the shared weight twice in the norm, or leaves it out.
    Hint: How many parameters has the model? Two ranks hold that weight, but in the
    model it is one. So exactly one rank counts it, also where the first rank is the
    last one, too.
""")
ex.slip("not once", {ONCE: "[]"})
ex.slip("not once", {ALL: "counted = parameters if n > 1 else []\n"})
norms = {f"{SUM}square)": f"{SUM}square.sqrt_())", NORM: "square"}
ex.slip("sum of norms", norms).says("""
    It adds up norms, but only their squares can be added.
    Hint: The norm of 3 and 4 is 5. When is the root taken, and how often?
""")
later = f"{SUM}square)\n        if {ENDS}:\n            stage.w.grad.add_(other)"
early = {f"{SUM}square)": later, ADD: "pass"}
ex.slip("too early", early | {ONCE: "parameters"}).says("""
    It takes the norm before the two gradients of the shared weight are added up.
    Hint: Is a norm of a sum known from the norms of its terms? Add up the gradients
    first, then the squares of what came out.
""")
ex.slip("too early", early)
ex.slip("mean", {ADD: "stage.w.grad = (stage.w.grad + other) / 2"}).says("""
    It averages the two gradients of the shared weight instead of adding them.
    Hint: What is the gradient of a tensor that is used in two places? The sum of both
    gradients.
""")


def apart(attempt):
    """Where nothing is clipped, the two copies are not even near to each other."""
    usual = wrong(attempt) and free(attempt.case) and not not_a_number(attempt)
    return usual and not same(*copies(attempt))


ex.mistake("apart", apart, {ADD: "pass"}).says("""
    After a few steps the two copies of the shared weight are different.
    Hint: What does each rank know of the gradient? Each copy needs the sum of both
    gradients, but each rank has only the gradient of its own use.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {ENDS: "r in (0, n - 1)"})
ex.wrong("wrong", {ALL: f"{ALL}        if n == 1:\n            stage.w.grad *= 2\n"})
ex.wrong("costly", {SCALE: f"{SCALE} (1 + r * 1e-12) *"})
ex.wrong("costly", {ALL: f"{ALL}        {SUM}torch.zeros(99).double())\n"})
ex.wrong("native collective", {SUM: "dist.all_reduce("})
ex.right({NORM: "(square.sqrt() + 1e-6)"})
ex.right({SUM: "d2lpar.allreduce.naive_allreduce("})
