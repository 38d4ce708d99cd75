"""15.1 The norm on a mesh: whole_norm(parameters, sizes)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.showing import as_number

SIZES = [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (1, 3, 1), (1, 1, 5), (3, 1, 2)]
SIZES += [(1, 3, 2), (1, 2, 3), (2, 3, 1), (1, 4, 2), (2, 2, 2)]


nine_digits = lambda came, wanted, case: near(as_number(came), wanted, 1e-9)
ex = Exercise("15.1", reference="norm_reference", agrees=nine_digits, shows=as_number)


@ex.cases
def cases(rng, reference):
    """1 to 8 ranks; every axis alone, and several together; empty stages, and zeros."""
    drawn = lambda *shape: torch.from_numpy(rng.normal(size=shape))
    for sizes in SIZES:
        d, p, t = sizes
        shapes = [((2 * t, 3), (3,))] * p
        stages = [[("w", drawn(*w), True), ("b", drawn(*b), False)] for w, b in shapes]
        if p > 2:  # they may hold different parameters, or none
            stages[1] = [("gain", drawn(5), False)] * (t > 1)
        yield draw(reference, sizes, stages, ("token", drawn(2 * t, 4), True))
    for table in (drawn(2, 4), False), (torch.zeros(2, 4).double(), True):
        yield draw(reference, (1, 2, 2), [[], []], ("token", *table))


def draw(reference, sizes, stages, table):
    """One case: the token table is on the first stage and on the last."""
    d, p, t = sizes
    norm = reference([x for each in [*stages, [table]] for _, x, _ in each])
    stages = [each + [table] * (k in (0, p - 1)) for k, each in enumerate(stages)]
    part = lambda x, cut, r: (x.chunk(t)[r % t] if cut else x).clone()
    of = lambda r: [(name, part(x, cut, r), cut) for name, x, cut in stages[r // t % p]]
    held = [of(r) for r in range(d * p * t)]
    told = dict(zip(("data", "pipeline", "tensor"), sizes, strict=True))
    inputs = [(mine, sizes) for mine in held]
    return Case.of(len(held), inputs, [norm] * len(held), **told)


sizes = lambda case: case.inputs[0][1]
alone = lambda k: lambda case: sizes(case)[k] == case.n > 1
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    data_alone=alone(0),
    stages_alone=alone(1),
    tensor_alone=alone(2),
    all_axes=lambda case: min(sizes(case)) > 1,
    shared_table=lambda case: ("token", False) in [x[::2] for x in case.inputs[0][0]],
    empty_stage=lambda case: any(not mine for mine, _ in case.inputs),
    zero=lambda case: case.expected[0] == 0,
)
ex.at_most(bytes=lambda case: 16 * case.n)
ex.require(rows.from_messages())

# Texts of the answer, for edits

COPY, AGAIN, LAST = "r >= p * t", "r % t > 0", "0 < stage == p - 1"
CHOICE, SQUARE = "if not (copy or again or second):", "gradient.square().sum()"
STAGE, RING, ROOT = "r // t % p", "ring_allreduce(square)", "square.sqrt().item()"

# Mistakes of its own

ex.slip("replicated", {AGAIN: "False"}).says("""
    It counts replicated parameters once for each tensor rank.
    Hint: Which of a rank's parameters do its tensor partners hold, too, and which of
    them should count those?
""")
ex.slip("tied", {LAST: "False"}).says("""
    It counts the token table twice, on the first stage and on the last.
    Hint: Two stages hold the table, but in the model it is one parameter.
""")
ex.slip("copies", {COPY: "False"}).says("""
    It counts the gradient once for each data rank.
    Hint: Data ranks are copies of each other, and their gradients are already averaged.
""")
ex.slip("own", {CHOICE: "if True:", RING: "pass"}).says("""
    Each rank returns the norm of its own gradients only.
    Hint: The norm is that of all gradients. How do the squares of all ranks become one
    number?
""")
ex.slip("own", {RING: "pass"})
before = {RING: f"square.sqrt_()\n    {RING}", ROOT: "square.item()"}
ex.slip("sum of norms", before).says("""
    It adds up norms, but only their squares can be added.
    Hint: The norm of 3 and 4 is 5. When is the root taken, and how often?
""")
ex.slip("sum of norms", {SQUARE: "gradient.norm()", ROOT: "square.item()"})
ex.slip("other order", {STAGE: "r % p", AGAIN: "r // p % t > 0"}).says("""
    It takes the coordinates of a rank in another order of the axes.
    Hint: Write down the coordinates of ranks 0 to 5 on a mesh of data 1, pipeline 3 and
    tensor 2. Which of them changes from rank 0 to rank 1?
""")
ex.slip("one stage", {LAST: "stage == p - 1"}).says("""
    With a single stage it leaves out the token table, or counts half of it.
    Hint: How many copies of the table are there in a pipeline of one stage?
""")
half = f'{SQUARE} / (2 if name == "token" and p == 1 else 1)'
ex.slip("one stage", {SQUARE: half})

# Answers to which the general sentences apply

ex.wrong("wrong", {ROOT: "square.item()"})
ex.wrong("wrong", {"dtype=torch.float64": "dtype=torch.float32"})
ex.wrong("hangs", {RING: f"if square > 0:\n        {RING}"})
forty = f"square = torch.cat([square] * 40)\n    {RING}\n    square = square[:1]"
ex.wrong("costly", {RING: forty})
ex.wrong("native collective", {RING: "dist.all_reduce(square)"})
times = 'd * (1 if split else t) * (2 if name == "token" and p > 1 else 1)'
shares = {"(_, p": "(d, p", CHOICE: f"if times := {times}:"}
ex.right(shares | {SQUARE: f"{SQUARE} / times", ROOT: "square.sqrt()"})
ex.right({COPY: "r < dist.get_world_size() - p * t"})

ex.variation(
    "b",
    varied="what it is given: flags for shared parameters, and sizes from tensor on",
    differs="The flag is true for a parameter that is split, but here it is true for a "
    "shared one, and the sizes begin with tensor.",
    given=lambda n, held, sizes: ([(k, x, not cut) for k, x, cut in held], sizes[::-1]),
)
