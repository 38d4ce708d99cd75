"""17.3 The loss of a split sequence: loss_of_texts(losses, targets)."""

import math
from contextlib import suppress

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.equality import NO_NUMBER, same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.showing import as_number
from d2lpar.sequence.order import positions


def agrees(came, wanted, case):
    """A pair: a number, or a tensor of one number, and a tensor."""
    with suppress(*NO_NUMBER):
        loss, gradient = came
        near = math.isclose(float(loss), wanted[0], rel_tol=1e-9)
        return near and same(gradient, wanted[1])
    return False


def shown(outcome, n):
    """A loss in a tensor of one number as this number."""
    if isinstance(outcome, list | tuple) and len(outcome) == 2:
        return as_number(outcome[0]), outcome[1]
    return outcome


ex = Exercise("17.3", "texts_reference", agrees=agrees, shows=shown)


@ex.cases
def cases(rng, reference):
    """1 to 8 ranks; pieces of unequal size, empty ones, and a text without targets."""
    for n, T in ((1, 7), (2, 9), (3, 13), (4, 12), (8, 5)):
        yield draw(rng, reference, n, T, [T, T - 2, 1, 0])
    yield draw(rng, reference, 2, 9, [9])
    yield draw(rng, reference, 3, 9, [2, 1, 1])


def draw(rng, reference, n, T, lengths):
    """One case, with texts of these lengths in T tokens."""
    shape = len(lengths), T
    losses = torch.from_numpy(rng.uniform(1, 9, size=shape)).requires_grad_()
    targets = torch.from_numpy(rng.integers(0, 50, size=shape))
    targets[0, 0] = 0  # a word as any other
    for row, length in enumerate(lengths):
        targets[row, length:] = -100
    loss = reference(losses, targets)
    (gradient,) = torch.autograd.grad(loss, losses)
    pieces = [positions(T, n, r) for r in range(n)]
    inputs = [(losses.detach()[:, at], targets[:, at]) for at in pieces]
    expected = [(loss.item(), gradient[:, at]) for at in pieces]
    return Case.of(n, inputs, expected, texts=len(lengths), tokens=T)


targets = lambda case: [mine for _, mine in case.inputs]
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    unequal=lambda case: len({x.shape for x in targets(case)}) > 1,
    rank_without_tokens=lambda case: any(not x.numel() for x in targets(case)),
    only_padding=lambda case: any(x.numel() and x.max() < 0 for x in targets(case)),
    one_text=lambda case: case.facts["texts"] == 1,
    empty_text=lambda case: (torch.cat(targets(case), 1) < 0).all(1).any(),
    word_0=lambda case: (torch.cat(targets(case), 1) == 0).any(),
)
ex.at_most(bytes=lambda case: 16 * case.facts["texts"] * case.n)
ex.require(rows.from_messages(), rows.untouched(0), rows.untouched(1))

# Texts of the answer, for edits

REDUCE, TEXTS, MINE = "ring_allreduce(both)", "(counts > 0).sum()", "losses * wanted"
SUM, COUNT = "(sums / counts.clamp(min=1))", "wanted.sum(1)"
RETURN, OWN_TEXTS = "return loss.item()", "wanted.any(1).sum().clamp(min=1)"
GRADIENT, BY = "wanted / counts.clamp(min=1)[:, None] / texts", ".clamp(min=1)[:, None]"
first = lambda pair: (pair[0], ...)

# Mistakes of its own

alone = {REDUCE: "pass", TEXTS: "(counts > 0).sum().clamp(min=1)"}
ex.slip("own", alone, about=first).says("""
    Each rank returns a loss of its own tokens only.
    Hint: The loss is the same on all ranks. Two numbers for each text are enough to
    know the means of all ranks.
""")
ex.slip("own", {RETURN: f"return ({MINE} * ({GRADIENT})).sum()"})
by_n = "loss = loss[None] / dist.get_world_size(); ring_allreduce(loss); "
ex.slip("mean of means", alone | {RETURN: by_n + RETURN}, about=first).says("""
    It averages means of the ranks, which have different numbers of targets.
    Hint: If one rank has 1 target of a text and another 9, how much of its mean is
    theirs? Add sums and counts over ranks first, and divide afterwards.
""")
means = f"both[0] /= both[1].clamp(min=1); both[1].clamp_(max=1); {REDUCE}"
ex.slip("mean of means", {REDUCE: means, SUM: "(sums / dist.get_world_size())"})
every = {TEXTS: "1; sums, counts = sums.sum(), counts.sum()", BY: ""}
ex.slip("all tokens", every, about=first).says("""
    It takes the mean over all targets, so long texts count more.
    Hint: Each text has a mean of its own, and the loss is the mean of those.
""")
ex.slip("counts", {TEXTS: "len(counts)"}, about=first).says("""
    It divides by a wrong number of targets or of texts.
    Hint: Only -100 is padding: it is no target, but 0 is one. A text counts if it has a
    target on any rank. Which of your sums over ranks shows that?
""")
ex.slip("counts", {TEXTS: OWN_TEXTS})
ex.slip("counts", {COUNT: "torch.ones_like(targets).sum(1)"})
ex.slip("counts", {"targets >= 0": "targets > 0"})
padded = GRADIENT.replace("wanted", "torch.ones_like(losses)")
ex.slip("gradient", {GRADIENT: padded}).says("""
    The loss is right, but its gradient is not.
    Hint: By which numbers is a loss divided on its way into the result, on whatever
    rank it is? A loss at padding has no influence on the result.
""")
ex.slip("gradient", {GRADIENT: GRADIENT.replace("counts", f"{COUNT}.double()")})
ex.slip("gradient", {GRADIENT: GRADIENT.replace(" / texts", "")})

# Answers to which the general sentences apply

ex.wrong("wrong", {SUM: "(sums / counts)"})  # NaN, as in the next
ex.wrong("wrong", {BY: "[:, None]"})
more = f"both = torch.cat([both] * 99); {REDUCE}; both = both[:2]"
ex.wrong("costly", {REDUCE: more})
ex.wrong("costly", {MINE: "losses.mul_(wanted)"})
ex.wrong("costly", {"targets >= 0": "targets.clamp_(min=-1) >= 0"})
ex.wrong("native collective", {"ring_allreduce": "dist.all_reduce"})
ex.wrong("wrong", {GRADIENT: f"({GRADIENT}).float()"})
ex.wrong("wrong", {f"{RETURN}, {GRADIENT}": f"return {GRADIENT}, loss.item()"})
ex.right({RETURN: "return loss[None]"})
ex.right({REDUCE: "d2lpar.allreduce.naive_allreduce(both)"})

ex.variation(
    "b",
    varied="the gradient is returned before the loss",
    differs="The loss comes first, as in the public exercise; here the gradient does.",
    turned=lambda pair, n: pair[::-1],
)
