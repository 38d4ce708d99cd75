"""11.2 Only the last rank learns: train(part, widths, batches, targets, lr)."""

import copy
from itertools import pairwise

import torch
from torch import nn

from d2lpar.checks import requirements as rows
from d2lpar.checks.backward import drawn
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import both, mismatched, only, raises, says
from d2lpar.checks.varying import mirror

LR = 0.3
# features into each part and out of the last, rows of the batches, frozen ranks
WORLDS = [((3, 2), (4, 4), ()), ((3, 5, 2), (4,), ()), ((2, 3, 2), (), ())]
WORLDS += [((2, 3, 2), (3, 5, 1), ()), ((4, 1, 3, 2), (5, 5), ())]
WORLDS += [((3, 4, 2, 2), (3, 3, 3), (0,)), ((2, 3, 4, 2), (2, 6), (1,))]
WORLDS += [((3, 2, 4, 2), (2, 3), (0, 1)), ((2, 4, 3, 5, 2), (3, 1, 4), ())]
WORLDS += [((3, 2, 4, 3, 2), (4, 1, 3), (0, 2))]

ex = Exercise("11.2")


@ex.cases
def cases(rng, reference):
    """Parts of several widths, batches of several sizes, with frozen ranks."""
    for widths, batches, frozen in WORLDS:
        n, seed = len(widths) - 1, int(rng.integers(1, 10**6))
        xs, ys = (drawn(rng, *[(N, widths[end]) for N in batches]) for end in (0, -1))
        none, parts = [[x[:, :0] for x in xs]] * (n - 1), parts_of(widths, frozen, seed)
        given = zip(parts, [xs, *none], [*none, ys], strict=True)
        inputs = [(part, list(widths), *data, LR) for part, *data in given]
        learned = reference(copy.deepcopy(parts), xs, ys, LR)
        facts = {"features": str([*widths]), "steps": len(batches)}
        facts |= {"cold": frozen, "rows": batches}
        facts |= {"frozen": f"ranks {[*frozen]}"} if frozen else {}
        expected = [[p.detach() for p in part] for part in learned]
        yield Case.of(n, inputs, expected, **facts)


def parts_of(widths, frozen, seed):
    """A part for each rank; a frozen one does not learn."""
    made, parts = torch.Generator().manual_seed(seed), []
    for r, features in enumerate(pairwise(widths)):
        line = nn.Linear(*features, dtype=torch.float64)
        for p in line.parameters():
            p.data = torch.randn(p.shape, generator=made, dtype=torch.float64)
            p.requires_grad_(r not in frozen)
        parts.append(nn.Sequential(line, nn.Tanh()))
    return parts


frozen, given = lambda case: case.facts["cold"], lambda case: case.facts["rows"]
total = lambda attempt: sum(attempt.run.bytes_sent)
moved = lambda case: 16 * sum(case.inputs[0][1][1:-1]) * sum(given(case))
ex.require(Requirement("bytes of all ranks", total, moved, exactly=False))
ex.at_most(messages=lambda case: 2 * (case.n - 1) * len(given(case)))
ex.require(rows.from_messages())
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    no_step=lambda case: not given(case),
    one_row=lambda case: 1 in given(case),
    first_is_frozen=lambda case: frozen(case) == (0,),
    one_between_is_frozen=lambda case: frozen(case) == (1,),
    all_but_the_last_are_frozen=lambda case: len(frozen(case)) == case.n - 1 > 1,
    four_ranks_learn=lambda case: case.n == 4 and not frozen(case),
    rows_again=lambda case: (
        case.n > 2 and len({*given(case)}) == 1 and not frozen(case)
    ),
)

# Texts of the answer, for edits

PLACE, LEAF, ASK = "r, last =", "x.requires_grad_()", "if out.requires_grad:"
GRADIENT, UP = "dist.recv(gradient, r + 1)", "dist.send(x.grad, r - 1)"
BACK, STEP = "out.backward(gradient)", "        sgd(part, lr)"

# Mistakes of its own

ex.slip("thaws", {PLACE: f"part.requires_grad_()\n    {PLACE}"}).says("""
    The parameters of frozen ranks have changed, so these ranks were trained too.
    Hint: What may be changed in a part that was given? Leave `requires_grad` of the
    parameters as it is. Only the tensor that was received must have it.
""")
ex.mistake("frozen", only(frozen), {ASK: "if True:"}).says("""
    It fails only where a rank is frozen, where a part has no gradients of its own.
    Hint: What must a frozen part still do for the others? Call `backward` only if
    `out.requires_grad`. The gradient must be received in any case, and a frozen part in
    the middle must pass gradients on.
""")
learns = "any(p.requires_grad for p in part.parameters())"
zeros = UP.replace("x.grad", "torch.zeros_like(x) if x.grad is None else x.grad")
ex.wrong("frozen", {LEAF: f"x.requires_grad_({learns})", UP: zeros})
none = both(raises(TypeError, AttributeError), says("None"), lambda a: a.error.rank > 0)
ex.mistake("no leaf", none, {LEAF: "pass", ASK: "if r == 0:"}).says("""
    The tensor that a rank received gets no gradient in its backward pass.
    Hint: Of which tensors does autograd keep the gradient? Of a leaf only if
    `requires_grad_()` was called on it.
""")
no_way = {LEAF: "pass", f"{GRADIENT}\n": "pass\n", ASK: "if False:", UP: "pass"}
ex.slip("only the last", no_way).says("""
    Every rank but the last still has the weights it started with.
    Hint: A received tensor does not know where it came from. Its gradient must be sent
    back, and `backward` must be called with it.
""")
ex.slip("ones", {BACK: "out.sum().backward()"}).says("""
    It starts a backward pass from ones instead of the gradient that it needs.
    Hint: From what does the backward pass of a part in the middle start?
    `out.backward(gradient)` needs the gradient of `out`, which comes from the rank of
    the next part.
""")
ex.slip("rows", {BACK: "out.backward(gradient / len(x))"}).says("""
    It divides the gradients by the number of rows once more on their way back.
    Hint: Which loss does the last rank start from? Is it a sum over rows, or a mean?
""")
as_it_came = {UP: "dist.send(gradient if 0 < r < last else x.grad, r - 1)"}
between = only(lambda case: case.n > 2, mismatched)
ex.mistake("as it came", between, as_it_came).says("""
    With ranks in the middle, one sends another tensor than its neighbour expects,
    perhaps the gradient of its output, as it came.
    Hint: Which tensor came from the rank before, and when does it have a gradient?
""")

# Answers to which the general sentences apply

ex.wrong("hangs", {GRADIENT: "gradient.fill_(1)"})
kept = "        for p in part.parameters():\n            p.data -= lr * p.grad"
ex.wrong("wrong", {STEP: kept.replace("p.grad", "(0 if p.grad is None else p.grad)")})
ex.wrong("raises", {UP: "dist.send(x.gradient, r - 1)"})
more = {"dist.recv(x,": "dist.recv(torch.ones(1), r - 1); dist.recv(x,"}
more["dist.send(out"] = "dist.send(torch.ones(1), r + 1); dist.send(out"
ex.wrong("costly", more)
ex.right({BACK: "torch.autograd.backward([out], [gradient])"})

mirrored = lambda case: f"ranks {[case.n - 1 - r for r in frozen(case)][::-1]}"
ex.variation(
    "b",
    varied="direction: the first part is on the last rank",
    differs="It sends towards the last rank, but here that rank has the first part.",
    part=mirror,
    call=lambda case: case.call.replace(f"ranks {[*frozen(case)]}", mirrored(case)),
    says={"only the last": "Every rank but rank 0 has the weights it started with."},
)
