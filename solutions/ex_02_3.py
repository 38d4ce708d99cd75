"""02.3 Mend the accumulation: fit_in_parts(model, optimizer, batches, part, limit)."""

import torch
import torch.nn.functional as F
from torch import nn

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement
from d2lpar.checks.signs import both, breaks, wrong
from d2lpar.report.units import show_bytes

D, H, K = 6, 16, 3  # widths of the net
# examples in each batch, examples in a part, limit of the norm
SIZES = [((4,), 4, 100.0), ((5, 5), 2, 100.0), ((2, 1), 1, 0.3)]
SIZES += [((8, 3, 7), 4, 0.1), ((64, 10), 4, 0.2), ((61,), 5, 100.0)]


def outcome(losses, model):
    return {"losses": losses, "weights": [p.detach() for p in model.parameters()]}


ex = Exercise("02.3", outcome=lambda a, r: outcome(a.values[r], a.args[r][0]))


@ex.cases
def cases(rng):
    """(model, optimizer, batches, part, limit)."""
    for sizes, part, limit in SIZES:
        seed = int(rng.integers(2**31))
        batches = [batch(rng, N) for N in sizes]
        clipped = "far above the norms" if limit > 1 else f"{limit:g}"
        yield Case(
            1,
            f"batches of {str(sizes).strip('(,)')}, parts of {part}, limit {clipped}",
            [(*trainee(seed), batches, part, limit)],
            [fit(*trainee(seed), batches, limit)],
            facts={"sizes": sizes, "part": part, "limit": limit},
        )


def batch(rng, N):
    x = torch.from_numpy(rng.normal(size=(N, D)))
    return x, torch.from_numpy(rng.integers(0, K, size=N))


def trainee(seed):
    """A model, and its optimizer."""
    maker = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(D, H), nn.Sigmoid(), nn.Linear(H, K)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=maker, dtype=p.dtype)
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def fit(model, optimizer, batches, limit):
    """The mean losses, and the weights after a step for each whole batch."""
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        losses.append(loss.item())
    return outcome(losses, model)


def allowed(case):
    """Twice what the forward pass of a part keeps, and four times the gradients."""
    part = case.facts["part"]
    kept = 8 * part * (D + H + K) + 8 * part + 8
    return 2 * kept + 4 * 8 * (D * H + H + H * K + K)


def with_sizes(condition):
    """(case) -> is this so of the size of some batch, and of a part?"""
    batches = lambda facts: [(N, facts["part"]) for N in facts["sizes"]]
    return lambda case: any(condition(*each) for each in batches(case.facts))


ex.boundaries(
    one_part=with_sizes(lambda N, part: part == N),
    last_part_shorter=with_sizes(lambda N, part: part < N and N % part),
    batch_smaller_than_a_part=with_sizes(lambda N, part: part > N),
    parts_of_one=with_sizes(lambda N, part: part == 1),
    clipped=lambda case: case.facts["limit"] < 1,
    not_clipped=lambda case: case.facts["limit"] > 1,
    several_batches=lambda case: len(case.facts["sizes"]) > 1,
)
peak = lambda attempt: attempt.run.peak_memory[0]
MEMORY = Requirement("memory", peak, allowed, exactly=False, show=show_bytes)
ex.require(MEMORY)

# Texts of the answer, for edits

BEGIN, ZERO, TOTAL = "losses = []", "optimizer.zero_grad()", "total += loss.item()"
PARTS, SHARE = "zip(x.split(part), y.split(part), strict=True)", "(len(a) / len(x))"
BACKWARD, APPEND = "loss.backward()", "losses.append(total)"
CLIP, STEP = "nn.utils.clip_grad_norm_(model.parameters(), limit)", "optimizer.step()"


def weights(came):
    """That part of the outcome."""
    return {**came, "losses": ...}


# Mistakes of its own

graph = both(breaks(MEMORY), lambda a: MEMORY.holds(a.attempts[0]))
late = {BACKWARD: "pass", TOTAL: "total = total + loss"}
late |= {CLIP: f"total.backward(); {CLIP}", APPEND: f"{APPEND[:-1]}.item())"}
ex.mistake("whole graph", graph, late).says("""
    The outcome is right, but it keeps the activations of the whole batch.
    Hint: When are the activations of a part freed? Call `backward()` for each part,
    which frees what its forward pass kept.
""")
ex.wrong("whole graph", {PARTS: "[(x, y)]"})


def losses(attempt):
    """All that is wrong in all calls that ended is the numbers in its list."""
    ended = [each for each in attempt.attempts if each.error is None]
    model = all(each.gives([weights(each.case.expected[0])]) for each in ended)
    came = attempt.values[0]
    return model and isinstance(came, list) and not any(map(torch.is_tensor, came))


means = {TOTAL: "total += loss.item() / len(a) * len(x) / len(x.split(part))"}
ex.mistake("losses", both(wrong, losses), means).says("""
    The model is right, but a loss is not the mean over its batch before the step.
    Hint: What does one example add to the mean of its batch? Weight each part by its
    share of the batch, and measure the loss before the optimizer's step.
""")
after = {APPEND: "losses.append(F.cross_entropy(model(x), y).item())"}
ex.wrong("losses", after)
part_only = {BACKWARD: f"{ZERO}; {BACKWARD}"}
ex.slip("zeroes", part_only, about=weights).says("""
    The gradient of a step is not the sum over the parts of its batch: earlier batches
    are still in it, or only the last part is left.
    Hint: How often is `.grad` emptied? Call `zero_grad()` once per batch, before its
    first part.
""")
ex.slip("zeroes", {ZERO: "pass"})
given = "return fit_broken(model, optimizer, batches, part, limit)"
ex.slip("zeroes", {BEGIN: f"{given}\n    {BEGIN}"})
ex.slip("shares", {SHARE: "1"}, about=weights).says("""
    The parts of a batch do not count in its gradient as they do in the mean over the
    batch, or a shorter last part is left out.
    Hint: What does one example add to the mean, in a long part and in a short one?
    `backward()` adds to `.grad`, so scale each loss first, by the number of examples of
    its part divided by that of the batch.
""")
ex.slip("shares", {SHARE: "(1 / len(x.split(part)))"})
full = {PARTS: f"list({PARTS})[: len(x) // part]"}
ex.slip("shares", full)
ex.slip("shares", full | {SHARE: "(1 / (len(x) // part))"})
each = "[nn.utils.clip_grad_norm_([p], limit) for p in model.parameters()]"
ex.slip("clips", {TOTAL: f"{TOTAL}; {CLIP}"}, about=weights).says("""
    It does not clip the whole gradient once: it clips while parts of the batch are
    missing, or each parameter or number for itself, or never.
    Hint: Of which vector is the norm? All parameters together have one gradient, which
    is complete after the last part of the batch. The norm of a sum is not the sum of
    the norms.
""")
ex.slip("clips", {CLIP: "pass", TOTAL: f"{TOTAL}; {CLIP}"})
ex.slip("clips", {CLIP: "pass"})
ex.slip("clips", {CLIP: each})
ex.slip("clips", {CLIP: CLIP.replace("norm", "value")})
often = {TOTAL: f"{TOTAL}; {CLIP}; {STEP}; {ZERO}"}
ex.slip("steps", often, about=weights).says("""
    It takes one step for each part of a batch.
    Hint: How many steps does a batch take? One, after all of its parts have been added.
""")
ex.slip("steps", {TOTAL: f"{TOTAL}; {STEP}; {ZERO}"})
ex.slip("steps", {TOTAL: f"{TOTAL}; {STEP}"})

# Answers to which the general sentences apply

copies = "copies = [torch.zeros_like(p) for _ in range(5) for p in model.parameters()]"
ex.wrong("costly", {BEGIN: f"{copies}\n    {BEGIN}"})
ex.wrong("wrong", {"return losses": "return None"})
ex.wrong("wrong", {TOTAL: "total = total + loss"})
ex.right({SHARE: "1", "(model(a), b)": "(model(a), b, reduction='sum') / len(x)"})
# never uses what backward adds up
grads = "torch.autograd.grad(loss, [*model.parameters()])"
own = {ZERO: "sums = [torch.zeros_like(p) for p in model.parameters()]"}
own[BACKWARD] = f"[s.add_(g) for s, g in zip(sums, {grads}, strict=True)]"
put = "for p, s in zip(model.parameters(), sums, strict=True): p.grad = s"
ex.right(own | {CLIP: f"{put}\n        {CLIP}"})
