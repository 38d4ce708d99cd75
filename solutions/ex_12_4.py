"""12.4 Dropout: dropped_mlp(x, up, down, bias, p, draw)."""

from functools import partial

import torch

from d2lpar.checks.backward import agrees, both_ways, by_name, drawn
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import both, only, wrong
from d2lpar.checks.solutions import chapter_12 as split

shows = by_name("y", "x.grad", "up.grad", "down.grad", "bias.grad")
form = {"agrees": agrees, "perform": both_ways, "shows": shows}
ex = Exercise("12.4", "dropped_reference", **form)
# Ranks, N, D, H, p, and of how many values the random numbers are
SIZES = ((1, 4, 3, 4, 0.25, 4), (2, 4, 3, 4, 0.5, 4), (1, 5, 4, 6, 0.5, None))
SIZES += ((2, 6, 4, 8, 0.0, 4), (2, 8, 6, 12, 0.5, None), (3, 8, 6, 12, 0.25, None))
SIZES += ((4, 1, 3, 4, 0.5, None), (4, 8, 8, 16, 0.75, None))
SIZES += ((4, 12, 4, 24, 0.1, None),)


@ex.cases
def cases(rng, reference):
    """Rates from 0 to 0.75; numbers that are p exactly."""
    for n, N, D, H, p, steps in SIZES:
        x, up, down, bias, dy = drawn(rng, (N, D), (H, D), (D, H), D, (N, D))
        draw = partial(uniform, int(rng.integers(10**6)), steps)
        whole = partial(reference, p=p, draw=draw)
        y, grads = split.gradients(whole, (x, up, down, bias), dy)
        cut = lambda x, up, down, bias, n=n: [
            (x, *own, bias) for own in zip(up.chunk(n), down.chunk(n, 1), strict=True)
        ]
        inputs = [(own, (p, draw), dy) for own in cut(x, up, down, bias)]
        expected = [(y, list(own)) for own in cut(*grads)]
        text = f"{ranks(n)}, x {N} x {D}, {H} hidden features, p = {p:g}"
        facts = {"S": N * D, "H": H, "p": p, "steps": steps}
        yield Case(n, text, inputs, expected, facts, {"cluster": split.FREE_START})


def uniform(seed, steps, k, shape):
    """Numbers from 0 to 1 for dropout k, the same on all ranks; or so many values."""
    generator = torch.Generator().manual_seed(1000 * seed + k)
    noise = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    return (noise * steps).floor() / steps if steps else noise


ex.boundaries(
    "one rank", "two ranks", "no power of two", "does not divide", "empty share"
)
ex.boundaries(
    one_row=lambda case: len(case.inputs[0][2]) == 1,
    one_feature_of_a_rank=lambda case: case.n == case.facts["H"],
    nothing_dropped=lambda case: case.facts["p"] == 0,
    numbers_that_are_p=lambda case: case.facts["steps"],
)
ex.require(split.ONE_EACH_WAY)

# Texts of the answer, for edits

ENTERS, DRAWN, MIDDLE = "Enter.apply(x)", "draw(0, whole)", "1) >= p)"
SCALES, SCALES_END = " / (1 - p)  # its", " / (1 - p)  # alike"
LAST, SUM = "draw(1, y.shape)", "Add.apply(h @ down.T) + bias"
OWN = f"own_part({DRAWN}, 1)"

# Mistakes of its own

ex.slip("same pattern", {OWN: "draw(0, h.shape)"}).says("""
    All ranks drop the same places among their hidden features.
    Hint: How many features has one device in the middle? Each of them has a pattern of
    its own. Draw numbers for all H features, and take this rank's part of them.
""")
ex.slip("dx", {ENTERS: "x"}).says("""
    y is right, but each rank ends with only its own part of the sum dx.
    Hint: Who uses x? It is the same on all ranks, and each rank has a term of its
    gradient. `Enter` adds these terms up in the backward pass.
""")
after = {SUM: SUM.replace(" + bias", ""), SCALES_END: " / (1 - p) + bias  # alike"}
ex.slip("bias after", after, somewhere=True).says("""
    It adds the bias after the last dropout, but this dropout applies to the bias as
    well.
    Hint: On one rank alone there is nothing to send, and it is wrong even there. In
    which order does one device add and drop at the end?
""")
given = {OWN: "draw(0, h.shape)", LAST: "draw(1 + dist.get_rank(), y.shape)"}
ex.wrong("bias after", after | given)  # the function to repair

at_p = both(wrong, only(lambda case: case.facts["steps"]))
ex.mistake("at p", at_p, {f"{LAST} >=": f"{LAST} >"}).says("""
    It is wrong only where some numbers of `draw` are exactly p, and those should stay.
    Hint: Which numbers are kept? Where a random number is p or more, the feature is
    kept, so compare with `>=`.
""")
ex.wrong("at p", {MIDDLE: "1) > p)", f"{LAST} >=": f"{LAST} >"})


def zeros_differ(attempt):
    """The places of y that are zero are not the same on all ranks."""
    zeros = [y == 0 for y, _ in attempt.came]
    return not all(torch.equal(each, zeros[0]) for each in zeros)


ex.mistake("ranks differ", both(wrong, zeros_differ), {LAST: given[LAST]}).says("""
    At the end, the ranks drop different numbers of y.
    Hint: Which ranks have which numbers of y there? All of them have all of y, so all
    must drop the same numbers.
""")

ex.slip("not scaled", {SCALES: "  # its", SCALES_END: "  # alike"}).says("""
    It drops the right numbers, but does not divide all that it keeps by 1 - p.
    Hint: What happens to the numbers that stay? Both dropouts scale what they keep, so
    that on average nothing changes.
""")
ex.slip("not scaled", {SCALES: "  # its"})
ex.slip("not scaled", {SCALES_END: "  # alike"})
times = {SCALES_END: " * (1 - p)  # alike"}
for edits in times, times | {SCALES: " * (1 - p)  # its"}:
    ex.slip("not scaled", edits)

# Answers to which the general sentences apply

ex.wrong("raises", {"h = F.gelu": "torch.set_grad_enabled(False); h = F.gelu"})
ex.wrong("pattern", {SUM: "h @ down.T + bias"})
ex.wrong("pattern", {SUM: "Add.apply(h @ down.T + bias / dist.get_world_size())"})
ex.wrong("wrong", {OWN: "draw(7 + dist.get_rank(), h.shape)"})
ex.wrong("wrong", {SUM: SUM.replace("+", "-")})
joined = "d2lpar.tensor_parallel.Join.apply(F.gelu(Enter.apply(x) @ up.T), 1)"
ex.wrong("costly", {f"F.gelu({ENTERS} @ up.T)": f"own_part({joined}, 1)"})
ex.right({SUM: "Add.apply((h @ down.T) * (draw(1, x.shape) >= p)) + bias"})
