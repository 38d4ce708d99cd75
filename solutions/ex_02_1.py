"""02.1 One matrix, many layers: gradients(x, y, W, b, V, c, L)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import breaks

NAMES = ("dW", "db", "dV", "dc", "dx")
SHAPES = [(1, 2, 3, 1), (3, 2, 4, 2), (4, 5, 3, 3)]  # N, D, K, L
SHAPES += [(1, 3, 2, 4), (5, 1, 2, 2), (7, 3, 2, 5)]


def five(came):
    """Are these five tensors?"""
    found = map(torch.is_tensor, came) if isinstance(came, list | tuple) else []
    return list(found) == [True] * 5


def named(came, n):
    return dict(zip(NAMES, came, strict=True)) if five(came) else came


ex = Exercise("02.1", shows=named)


@ex.cases
def cases(rng, reference):
    """x [N, D], y [N], W [D, D], b [D], V [K, D], c [K], and the number of layers."""
    for N, D, K, L in SHAPES:
        shapes = ((N, D), (D, D), (D,), (K, D), (K,))
        x, W, b, V, c = (torch.from_numpy(rng.normal(size=s)) for s in shapes)
        inputs = x, torch.from_numpy(rng.integers(0, K, size=N)), W, b, V, c, L
        yield Case(
            1,
            f"{N} examples, {D} features, {K} classes, {L} layers",
            [inputs],
            [reference(*inputs)],
            facts={"N": N, "D": D, "L": L, "FLOPs": 6 * N * (L * D * D + D * K)},
            options={"cluster": "1xA100"},  # where operations are written down
        )


ex.boundaries(
    one_example=lambda case: case.facts["N"] == 1 and case.facts["L"] > 1,
    one_layer=lambda case: case.facts["L"] == 1,
    many_layers=lambda case: case.facts["L"] > 2,
    one_feature=lambda case: case.facts["D"] == 1,
)


def by_torch(attempt):
    """Backward operations of torch: nobody writes those by hand."""
    return sum("backward" in e.name for e in rows.operations(attempt.run))


def changed(attempt):
    pairs = zip(attempt.args[0], attempt.case.inputs[0], strict=True)
    return sum(not same(after, before) for after, before in pairs)


FLOPS = Requirement(
    "FLOPs of all products",
    lambda a: sum(rows.products(a)),
    lambda case: case.facts["FLOPs"],
    exactly=False,
    least=lambda case: case.facts["FLOPs"] // 3,  # those of the forward pass
)
BACKWARD = Requirement(
    "backward operations of torch", by_torch, lambda case: 0, instead=by_torch
)
UNTOUCHED = Requirement("arguments that were changed", changed, lambda case: 0)
ex.require(FLOPS, BACKWARD, UNTOUCHED)

# Texts of the answer, for edits

BEGIN, FORWARD = "A, slopes = [x], []", "torch.tanh(A[-1] @ W.T + b)"
AGAIN, SLOPE, DZ = "A.append(A[-1] + t)", "1 - t * t", "d * slopes[layer - 1]"
SCORES, MEAN, START = "A[-1] @ V.T", "delta / len(x)", "delta @ V"
DV, DC = "delta.T @ A[-1]", "delta.sum(0)"
DW, DB, ON = "dW += dz.T @ A[layer - 1]", "db += dz.sum(0)", "d + dz @ W"
RETURN = "return dW, db, dV, dc, d"

# Mistakes of its own

in_place = {AGAIN: "A[-1] = x.clone(); A.append(x.add_(t))"}
ex.mistake("changed", signs.violates(UNTOUCHED), in_place).says("""
    The function changes its arguments.
    Hint: Which of your lines write to a tensor that is there already? `a += b` changes
    the tensor that `a` names, but `a = a + b` makes a new one.
""")
ex.wrong("changed", {AGAIN: "A.append(A[-1].add_(t))"})
ex.slip("bias", {DB: "db = db + dz"}).says("""
    The gradient of a bias is not summed over the examples.
    Hint: Which numbers does one element of a bias act on? It acts on every example, and
    examples are rows.
""")
ex.slip("bias", {DC: "delta"})
ex.slip("bias", {DB: "db = db + dz", DC: "delta"})
overwritten = {DW: DW.replace("+=", "="), DB: DB.replace("+=", "=")}
ex.slip("one layer", overwritten).says("""
    Only one layer has its term in dW or db.
    Hint: How often does the net use W and b? Each layer adds its own term to the same
    dW and db.
""")
ex.slip("one layer", {DW: overwritten[DW]})
ex.slip("one layer", {DB: overwritten[DB]})
ex.slip("one layer", {DW: f"if layer == L: {DW}", DB: f"if layer == L: {DB}"})
ex.slip("one way", {ON: "dz @ W"}).says("""
    Delta passes a layer in two ways, around the tanh and through it, and one of them is
    missing.
    Hint: What is the derivative of a + f(a)? It has two terms.
""")
ex.slip("one way", {ON: "d"})
ex.slip("slope", {SLOPE: "1 - (A[-1] + t) ** 2"}).says("""
    The slope of tanh is left out, or it is taken from a^l, which is not the tanh.
    Hint: What is t = tanh(z) in terms of a^l and a^(l-1)? The slope of tanh at z is
    1 - t^2.
""")
ex.slip("slope", {SLOPE: "1 - A[-1] ** 2"})
ex.slip("slope", {DZ: "d"})
again = {BEGIN: f"return gradients_reference(x, y, W, b, V, c, L)\n    {BEGIN}"}
ex.mistake("by torch", breaks(BACKWARD), again).says("""
    The values are right, but autograd computed them and not your own code.
    Hint: All five gradients are made of products and sums. Start with p - onehot.
""")
of_one = "torch.func.grad(lambda V: F.cross_entropy(A[-1] @ V.T + c, y))(V)"
ex.wrong("by torch", {DV: of_one})

# Answers to which the general sentences apply

ex.wrong("wrong", {RETURN: "return dW, db, dV, dc"})
ex.wrong("wrong", {RETURN: "return dW.T, db, dV, dc, d"})
ex.wrong("wrong", {RETURN: "return dW, db[None], dV, dc[None], d"})
ex.wrong("wrong", {MEAN: "delta"})
ex.wrong("raises", {START: "delta @ V.T"})
twice = f"d * (1 - {FORWARD.replace('-1', 'layer - 1')} ** 2)"
ex.wrong("costly", {DZ: twice})
uncounted = {BEGIN: f"mm = lambda p, q: (p[:, :, None] * q).sum(1)\n    {BEGIN}"}
uncounted |= {FORWARD: "torch.tanh(mm(A[-1], W.T) + b)", SCORES: "mm(A[-1], V.T)"}
uncounted |= {DV: "mm(delta.T, A[-1])", START: "mm(delta, V)", ON: "d + mm(dz, W)"}
ex.wrong("costly", uncounted | {DW: "dW += mm(dz.T, A[layer - 1])"})
ex.right({DZ: "d * (1 - (A[layer] - A[layer - 1]) ** 2)"})
stacked = "dW = torch.cat(dzs).T @ torch.cat(A[:-1])\n    return [dW, db, dV, dc, d]"
last = {DW: "dzs.insert(0, dz)", RETURN: stacked}
ex.right(last | {BEGIN: f"dzs = []\n    {BEGIN}"})
ex.right({DW: "dW += torch.einsum('no,ni->oi', dz, A[layer - 1])"})
