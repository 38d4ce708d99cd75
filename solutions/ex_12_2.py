"""12.2 One all-reduce each way: split_gated(x, weights, down, bias)."""

from dataclasses import replace

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.backward import NO_WAY_BACK, agrees, both_ways, by_name, drawn
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, ranks
from d2lpar.checks.signs import always, both, breaks, right
from d2lpar.checks.solutions import chapter_12 as split
from d2lpar.sim.cluster import find_gpu

shows = by_name("y", "x.grad", "weights.grad", "down.grad", "bias.grad")
form = {"agrees": agrees, "perform": both_ways, "shows": shows}
ex = Exercise("12.2", "gated_reference", **form)
# Ranks, rows of x, D, H
SIZES = ((1, (3,), 4, 5), (2, (4,), 6, 4), (2, (2, 4), 6, 8), (3, (4,), 6, 9))
SIZES += ((3, (1,), 5, 3), (4, (1,), 3, 8), (4, (4,), 8, 12), (4, (2, 4), 8, 4))
# Messages cost their bytes, and operations are written down.
COUNTED = {"cluster": replace(split.FREE_START, gpu=find_gpu("A100"))}


@ex.cases
def cases(rng, reference):
    """Hidden features that the ranks divide, for a batch and for tokens."""
    for n, shape, D, H in SIZES:
        x, weights, down = drawn(rng, (*shape, D), (2 * H, D), (D, H))
        bias, dy = drawn(rng, D, (*shape, D))
        leaves = (x, weights, down, bias)
        y, (dx, dw, ddown, dbias) = split.gradients(reference, leaves, dy)
        halves = dw.reshape(2, H, D)
        owns = zip(parts(halves, n, 1), parts(ddown, n, 1), strict=True)
        expected = [(y, [dx, own.view(2 * H, D), down, dbias]) for own, down in owns]
        share = 18 * (x.numel() // D) * D * (H // n)
        facts = {"S": x.numel(), "share": share, "own": H // n}
        text = f"{ranks(n)}, x {list(x.shape)}, {H} hidden features"
        yield Case(n, text, [(leaves, (), dy)] * n, expected, facts, COUNTED)


def parts(grad, n, dim):
    """Per rank, its part of the gradient, and zeros elsewhere."""
    for r in range(n):
        own = torch.zeros_like(grad)
        own.chunk(n, dim)[r].copy_(grad.chunk(n, dim)[r])
        yield own


# Nine products, three of them forward, and those may be made once more on the way back.
SHARE = Requirement(
    "FLOPs of a rank's products",
    rows.products,
    lambda case: case.facts["share"] * 4 // 3,
    exactly=False,
    vital=True,
    least=lambda case: case.facts["share"],
)
ex.require(SHARE, split.ONE_EACH_WAY)
dy = lambda case: case.inputs[0][2]
ex.boundaries(
    "one rank", "two ranks", "no power of two", "does not divide", "empty share"
)
ex.boundaries(
    one_row=lambda case: dy(case).numel() == dy(case).shape[-1],
    one_feature_of_a_rank=lambda case: case.n > 1 and case.facts["own"] == 1,
    tokens=lambda case: dy(case).dim() == 3,
)

# Texts of the answer, for edits

HALVES, ENTERS = "own_part(half, 0) for half in weights.chunk(2)", "x = Enter.apply(x)"
GATE, UP, SILU, ADDED = "x @ gate.T", "x @ up.T", "F.silu(", "Add.apply(hidden"
HIDDEN, OWN_DOWN = f"hidden = {SILU}{GATE}) * ({UP})", "own_part(down, 1).T"
PRODUCT = f"hidden @ {OWN_DOWN}"
SUM = f"Add.apply({PRODUCT}) + bias"

# Mistakes of its own

lost = f"d2lpar.allreduce.ring_allreduce(y := ({PRODUCT}).detach()) or y + bias"
ex.mistake("no way back", NO_WAY_BACK, {SUM: lost}).says("""
    Autograd does not find its way back from y to every argument.
    Hint: What does autograd know of a sum over ranks? It does not see what an
    all-reduce writes, but `Add` and `Enter` of the chapter have a backward pass.
""")
ex.wrong("no way back", {HALVES: HALVES.replace("weights", "weights.detach()")})

y_alone = lambda outcome: (outcome[0], ...)
as_one = {HALVES: "part for part in own_part(weights, 0).chunk(2)"}
ex.slip("cut as one", as_one, about=y_alone).says("""
    It cuts the 2H rows as if they were one layer, so rank 0 has only gates.
    Hint: Which two rows of `weights` belong to one feature? A rank needs both, so cut
    the two halves separately.
""")
ex.slip("wrong half", {"gate, up =": "up, gate ="}, about=y_alone).says("""
    It applies silu to the second half of the rows, but the gates are in the first half.
    Hint: The first H rows of `weights` are the gates, and silu belongs to them.
""")
ex.slip("partial dx", {ENTERS: "pass"}).says("""
    y is right, but each rank ends with only its own part of the sum dx.
    Hint: Who uses x? All n ranks do, so its gradient is the sum of n terms. `Enter`
    adds them up in the backward pass.
""")
whole = {HALVES: "weights.chunk(2)", PRODUCT: f"own_part(hidden, -1) @ {OWN_DOWN}"}
share = lambda attempt: not SHARE.holds(attempt)
ex.mistake("share", both(right, share), whole).says("""
    y and the gradients have the values that are wanted, but a call counts only if each
    rank makes the products of its share, and with torch's matrix products.
    Hint: With which rows of `weights` and columns of `down` does a rank multiply? Cut
    them before you multiply, since it needs its own features only.
""")
ex.wrong("share", {UP: "(x[..., None, :] * up).sum(-1)"})
twice = {ENTERS: "pass", GATE: "Enter.apply(x) @ gate.T", UP: "Enter.apply(x) @ up.T"}
three = lambda attempt: 2.6 <= split.all_reduces(attempt) <= 3  # chunks differ
ex.mistake("enters twice", always(three, breaks(split.ONE_EACH_WAY)), twice).says("""
    It is right, but needs one all-reduce too many, perhaps because x goes through
    `Enter` once for each half.
    Hint: The dx of both halves can be added up before they are sent.
""")

# Answers to which the general sentences apply

ex.wrong("pattern", {f"{OWN_DOWN}) + bias": f"{OWN_DOWN} + bias)"})
ex.wrong("pattern", {HALVES: HALVES.replace("weights", "Enter.apply(weights)")})
ex.wrong("wrong", {" + bias": ""})
joined = "own_part(d2lpar.tensor_parallel.Join.apply(hidden, -1), -1)"
ex.wrong("costly", {ADDED: f"Add.apply({joined}"})
once_more = "hidden = torch.utils.checkpoint.checkpoint(lambda x: F.silu("
once_more += f"{GATE}) * ({UP}), x, use_reentrant=False)"
ex.right({HIDDEN: once_more})
in_place = "torch.zeros_like(x[..., :1] * up[:, 0]).flatten(0, -2)"
in_place += ".addmm_(x.flatten(0, -2), up.T).view(*x.shape[:-1], -1)"
ex.right({UP: in_place})
