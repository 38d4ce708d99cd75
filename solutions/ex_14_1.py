"""14.1 A round world: around(x, depth), and its backward pass."""

import torch

from d2lpar.checks import backward
from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import only
from d2lpar.checks.varying import mirror

# rows of each rank, depth of the halo
WORLDS = (((4,), 1), ((3,), 3), ((3, 4), 1), ((2, 3), 0), ((5, 3), 2), ((3, 2, 4), 0))
WORLDS += (((2, 2), 2), ((2, 5, 2), 2), ((3, 4, 3), 2), ((4, 3, 3, 5), 3))
WORLDS += (((2, 3, 2, 4), 1), ((1, 2, 1, 3, 1), 1), ((3,) * 8, 2))
ex = Exercise(
    "14.1",
    agrees=backward.agrees,
    perform=backward.both_ways,
    shows=backward.by_name("y", "x.grad"),
    processes=(2, 3),
)


@ex.cases
def cases(rng, reference):
    """Worlds of equal and unequal parts; halos of 0 to 3 rows; whole numbers."""
    for heights, depth in WORLDS:
        yield draw(rng, reference, heights, depth)
    as_ints = lambda x: x.mul(9).round().float()  # sums of these are exact
    yield draw(rng, reference, (2, 2, 3), 2, as_ints, dtype="float32")


def draw(rng, reference, heights, depth, of=lambda x: x, **facts):
    """One case."""
    (world,) = backward.drawn(rng, (2, 3, sum(heights), 4))
    xs = [of(part).contiguous() for part in world.split(heights, 2)]
    dys = map(of, backward.drawn(rng, *[(2, 3, h + 2 * depth, 4) for h in heights]))
    inputs = [((x,), (depth,), dy) for x, dy in zip(xs, dys, strict=True)]
    leaves = [x.clone().requires_grad_() for x in xs]
    ys = reference(leaves, depth)
    grads = torch.autograd.grad(ys, leaves, [dy for _, _, dy in inputs])
    expected = [(y.detach(), [dx]) for y, dx in zip(ys, grads, strict=True)]
    facts |= {"rows": str(list(heights)), "halo": depth}
    return Case.of(len(xs), inputs, expected, **facts)


halo = lambda case: case.facts["halo"]
world = lambda case: [x for (x,), *_ in case.inputs]
# Two halos there and two back; a rank alone sends nothing.
four_halos = lambda case: 4 * world(case)[0][:, :, : halo(case)].nbytes * (case.n > 1)
heights = lambda case: [x.shape[2] for x in world(case)]
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    no_rows=lambda case: halo(case) == 0,
    all_rows=lambda case: case.n > 2 and halo(case) in heights(case),
    in_both_halos=lambda case: case.n > 2 and min(heights(case)) < 2 * halo(case),
    unequal=lambda case: len({*heights(case)}) > 1,
    float32=lambda case: case.expected[0][0].dtype == torch.float32,
)
ex.at_most(bytes=four_halos)
ex.require(rows.from_messages())

# Texts of the answer, for edits

CALL, ALONE, JOIN = "Around.apply(x)", "n == 1 or depth == 0", "[above, x, below]"
FIRST, LAST = "x[:, :, :depth].contiguous()", "x[:, :, last:].contiguous()"
SENDS = "(dist.isend, down, after), (dist.isend, up, before)"
TOP, END = "dx[:, :, :depth] += above", "dx[:, :, last - depth :] += below"
BATCH = "dist.batch_isend_irecv([dist.P2POp(*end) for end in ends])"

# Mistakes of its own

detached = {CALL: "Around.apply(x.detach())"}
ex.mistake("no way back", backward.NO_WAY_BACK, detached).says("""
    Autograd does not find its way back from y to x.
    Hint: What a rank receives has no history. Write a torch.autograd.Function, or use
    `Depart` and `Arrive`.
""")
from_end = {LAST: LAST.replace("last", "-depth")}
ex.mistake("no rows", only(lambda case: halo(case) == 0), from_end).says("""
    It fails only if the halo has no rows.
    Hint: `x[:, :, -0:]` is all of x. Where do the last `depth` of h rows begin?
""")
y_alone = {"about": lambda outcome: (outcome[0], ...)}
flat = {CALL: "__import__('d2lpar.hybrid').hybrid.halo_exchange(x, depth, depth)"}
ex.slip("flat world", flat, **y_alone).says("""
    The first and the last rank have zeros where the other end of the world should be.
    Hint: Which ranks are neighbours of the first and of the last one here?
""")
ex.slip("other rows", {JOIN: "[below, x, above]"}, **y_alone).says("""
    The halos hold other rows than they should: perhaps both are exchanged, or a rank
    sends the rows that lie far from its neighbour.
    Hint: Write down for three ranks which rows lie above and below those of rank 1, and
    which of a rank's rows each of its neighbours needs.
""")
ex.slip("other rows", {f"{FIRST}, {LAST}": f"{LAST}, {FIRST}"})
ex.slip("stays abroad", {TOP: "pass", END: "pass"}).says("""
    The gradient of a halo does not come back to the rank whose rows it is.
    Hint: Whose rows are these? What has to travel in the backward pass, and where to?
""")
onwards = {"dy[:, :, :depth]": "dy[:, :, last + depth :]"}
ex.slip("stays abroad", onwards | {"dy[:, :, depth + last :]": "dy[:, :, 0:depth]"})
ex.slip("written over", {TOP: TOP.replace("+", ""), END: END.replace("+", "")}).says("""
    A gradient that comes back replaces another one of the same row.
    Hint: How often is a row used, here and in the halos of both neighbours, if a rank
    has few rows? All of these count.
""")
one = "own = dx.clone(); dx[:, :, :depth] = own[:, :, :depth] + above"
two = "dx[:, :, last - depth :] = own[:, :, last - depth :] + below"
ex.slip("written over", {TOP: one, END: two})
late = {SENDS: "(dist.isend, up, before), (dist.isend, down, after)"}
ex.mistake("two ranks", only(lambda case: case.n == 2), late).says("""
    It fails only on two ranks, where both neighbours are the same rank.
    Hint: Messages between two ranks arrive in the order of the sends. In which order do
    you post the receives?
""")

# Answers to which the general sentences apply

ex.wrong("race", {"work.wait()": "pass"})
ex.wrong("raises", {ALONE: "depth == 0"})
ex.wrong("hangs", {"ends = [": "dist.send(down, after)\n        ends = ["})
again = "swap(above, below)\n            return torch.cat("
ex.wrong("costly", {"return torch.cat(": again})
native = "dist.all_reduce(torch.ones(1))\n        ends = ["
ex.wrong("native collective", {"ends = [": native})
ex.wrong("error", {"empty_like(down)": "empty_like(down).double()"})
ex.wrong("wrong", {f"{JOIN}, 2)": f"{JOIN}, 2).double()"})
ex.right({ALONE: "n == 1"})
one_by_one = BATCH.replace("in ends", "in ends[k::2]")
ex.right({BATCH: f"[work for k in (0, 1) for work in {one_by_one}]"})

ex.variation(
    "b",
    varied="who is where: the rows of the next rank lie above",
    differs="The rows of the rank before lie above, as in the public exercise; here "
    "those of the next rank do.",
    part=mirror,
)
