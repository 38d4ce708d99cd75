"""07.1 The mean over tokens: token_step(model, micro_batches)."""

import copy

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import always, both, either, only, wrong
from d2lpar.checks.solutions import chapter_07 as nets
from d2lpar.checks.solutions.chapter_07 import idle, uneven, weights

NOTHING = -100  # the target where there is no token

# Sequences of each micro-batch, rank by rank, and how long they are.
WORLDS = [([[2]], 3), ([[1, 3]], 4), ([[2, 3], [3, 1]], 4)]
WORLDS += [([[1, 2], [4], [3, 1, 2]], 5), ([[2, 2], [2, 2], [2, 2], [2, 2]], 3)]
WORLDS += [([[3], [], [1, 1]], 4), ([[2, 0], [1], [], [3]], 3)]
WORLDS += [([[1], [2], [1, 1], [3], [2]], 4), ([[1], [2]], 3)]
MORE = {4: ", rank 1 has no token", 8: ", no .grad so far"}


def of_net(loss, net):
    """What is compared."""
    gradients = [p.grad for p in net.parameters()]
    return {"loss": loss, "gradients": gradients, "weights": weights(net)}


outcome = lambda attempt, r: of_net(attempt.values[r], attempt.args[r][0])
ex = Exercise("07.1", outcome=outcome, agrees=nets.near)


@ex.cases
def cases(rng, reference):
    """Ranks with other numbers of micro-batches and tokens; some have none."""
    for i, (counts, length) in enumerate(WORLDS):
        data = [[sequences(rng, rows, length) for rows in mine] for mine in counts]
        if i == 4:
            data[1] = [(x, torch.full_like(y, NOTHING)) for x, y in data[1]]
        equal = nets.equal_nets(rng, len(counts))
        net = copy.deepcopy(equal[0])
        for p in [p for one in equal for p in one.parameters() if i < 8]:
            p.grad = torch.full_like(p, 7.0)  # from the step before
        told = f"{ranks(len(counts))}, sequences in their micro-batches {counts}"
        inputs = list(zip(equal, data, strict=True))
        expected = [of_net(reference(net, data), net)] * len(counts)
        yield Case(len(counts), told + MORE.get(i, ""), inputs, expected)


def sequences(rng, rows, length):
    """x [rows, length, 4] and targets [rows, length] with padding at the ends."""
    x, y = nets.batch(rng, rows, length)
    for row in range(rows):
        y[row, int(rng.integers(1, length + 1)) :] = NOTHING
    return x, y


def no_token(case):
    """Some rank has no token, or some micro-batch."""
    parts = [part for _, mine in case.inputs for part in (mine, *([p] for p in mine))]
    return any(all((y == NOTHING).all() for _, y in part) for part in parts)


grads = lambda case: [p.grad for net, _ in case.inputs for p in net.parameters()]
lengths = lambda case: [len(y) for _, mine in case.inputs for _, y in mine]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    idle=idle,
    no_token=lambda case: no_token(case) and not idle(case),
    no_sequence=lambda case: 0 in lengths(case),
    no_gradient=lambda case: None in grads(case),
    old_gradients=lambda case: None not in grads(case),
)
ex.at_most(bytes=lambda case: nets.ring_bytes([*nets.sizes(case), 2], case.n))
ex.require(rows.from_messages())

# Texts of the answer, for edits

ZERO, START = "torch.zeros_like(p)", "loss_and_tokens = [0.0, 0.0]"
SUM, BACKWARD, LOSS = 'reduction="sum"', "loss.backward()", "loss.item()"
COUNT, DIVIDE = "(y != -100).sum().item()", "p.grad /= tokens"
REDUCE, RETURN = "ring_allreduce(p.grad)", "return loss / tokens"
MEAN = {SUM: 'reduction="mean"'}
OWN, N = "loss_and_tokens[1]", "dist.get_world_size()"
but_loss = lambda came: {**came, "loss": ...}

# Mistakes of its own


def too_large(attempt):
    """All gradients are too large by one and the same number."""
    came, wanted = (x[0]["gradients"] for x in (attempt.came, attempt.case.expected))
    off = torch.cat([(x - y).flatten() for x, y in zip(came, wanted, strict=True)])
    return off.min() > 0.01 and off.max() - off.min() < 1e-9


kept = {ZERO: f"p.grad if p.grad is not None else {ZERO}"}
ex.mistake("old gradients", both(wrong, too_large), kept).says("""
    Its gradients still contain the old ones of the previous step.
    Hint: When your function is called, `.grad` may hold old numbers, and `backward()`
    adds to them.
""")
rank_means = {DIVIDE: f"p.grad /= max({OWN}, 1) * {N}"}
ex.slip("means", rank_means, about=but_loss).says("""
    It takes a mean of means, of ranks, micro-batches or sequences, so one with few
    tokens counts as much as one with many.
    Hint: Each token should have the same weight. Sum the losses, and divide once by the
    number of tokens on all ranks.
""")
ex.slip("means", MEAN | {DIVIDE: f"p.grad /= max(len(micro_batches), 1) * {N}"})
ex.slip("means", MEAN | {COUNT: "1"})
places = "max((y != -100).sum(), 1)"
ex.slip("means", {COUNT: "len(y)", BACKWARD: f"(loss * len(y) / {places}).backward()"})
ex.slip("padding", {COUNT: "y.numel()"}, about=but_loss).says("""
    It divides by the number of all places, even those that are padding.
    Hint: Count only the targets that are not -100.
""")
stops = either(signs.raises(BaseException), signs.hangs)
ex.mistake("no micro-batch", both(only(idle), stops), {ZERO: "None"}).says("""
    It fails where a rank has no micro-batch.
    Hint: Such a rank has to contribute zeros, because the other ranks wait for its
    gradients.
""")
leaves = {START: f"if not micro_batches:\n        return 0.0\n    {START}"}
ex.wrong("no micro-batch", leaves)
each_time = "[ring_allreduce(p.grad) for p in model.parameters()]"
inside = {REDUCE: "pass", BACKWARD: f"{BACKWARD}; {each_time}"}
stuck = only(uneven, either(signs.hangs, signs.mismatched))
ex.mistake("in the loop", stuck, inside).says("""
    Ranks wait for each other where they have different numbers of micro-batches.
    Hint: How often does each rank take part in an all-reduce? Gradients add up in
    `.grad`, so one for each parameter is enough, after the last micro-batch.
""")
mean = {f"{SUM})": f"{MEAN[SUM]}) * (y != -100).sum()"}
ex.mistake("nan", both(signs.not_a_number, only(no_token)), mean).says("""
    Where a rank or a micro-batch has no token, the outcome is not a number (NaN).
    Hint: A mean of nothing is 0/0, and NaN times 0 is NaN. What is the sum of nothing?
""")
loss_only = lambda a: wrong(a) and a.gives(map(but_loss, a.case.expected))
mine = {RETURN: f"return loss_and_tokens[0] / max({OWN}, 1)"}
ex.mistake("loss", always(loss_only), mine).says("""
    The gradients are right, but what is returned is not the mean loss over the tokens
    of all ranks.
    Hint: Send two numbers together, in float64, namely the sum of the losses and the
    number of tokens.
""")
ex.wrong("loss", {"dtype=torch.float64": "dtype=torch.float32"})

# Answers to which the general sentences apply

steps = "[p.data.sub_(p.grad) for p in model.parameters()]"
ex.wrong("wrong", {RETURN: f"{steps}\n    {RETURN}"})
ex.wrong("raises", {f"p.grad = {ZERO}": "p.grad.zero_()"})
ex.wrong("native collective", {REDUCE: "dist.all_reduce(p.grad)"})
ex.wrong("costly", {REDUCE: f"{REDUCE}; ring_allreduce(p.grad.clone())"})
ex.right({RETURN: "return sums[:1] / tokens"})
ex.right({RETURN: "return (sums[0] / tokens).numpy()"})

filled = lambda y: y.masked_fill(y == NOTHING, -1)
ex.variation(
    "b",
    varied="numbers: padding is -1",
    differs="It treats -100 as padding, but here padding is -1.",
    given=lambda n, model, pairs: (model, [(x, filled(y)) for x, y in pairs]),
    says={
        "padding": "It divides by the number of all places, even those that are "
        "padding. Hint: Count only the targets that are not -1."
    },
)
