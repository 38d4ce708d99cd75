"""00.1 The mirror: mirror(x, n, r), in place."""

from itertools import product

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, ranks
from d2lpar.checks.signs import both

ex = Exercise("00.1", outcome=argument(0))


@ex.cases
def cases(rng):
    """A tensor of S elements on each of n ranks; half of the worlds have a middle."""
    for n, S in product((1, 2, 3, 4, 5, 6, 7, 8), (1, 6)):
        xs = list(torch.from_numpy(rng.normal(size=(n, S))))
        yield Case(
            n,
            f"{ranks(n)}, S = {S} element{'s' * (S != 1)}",
            [(x.clone(), n, r) for r, x in enumerate(xs)],
            xs[::-1],
            facts={"sent": [8 * S * (2 * r + 1 != n) for r in range(n)]},
        )


ex.exactly(
    messages=lambda case: case.n - case.n % 2,
    bytes=lambda case: case.facts["sent"],
    rounds=lambda case: min(1, case.n // 2),
)
ex.require(rows.from_messages())

# Texts of the answer, for edits

IF, COPY = "if partner != r:", "x.copy_(theirs)"
EXCHANGE = "exchange(x, partner, theirs, partner)"
RING = "exchange(x, (r + 1) % n, theirs, (r - 1) % n)"

# Mistakes of its own

hangs = both(signs.hangs, lambda a: a.case.n == 2)  # partners are right there
ex.mistake("hangs", hangs, {EXCHANGE: "torch.distributed.send(x, partner)"}).says("""
    Both partners begin with the same call, and then wait for each other.
    Hint: `exchange` sends and receives at the same time.
""")
ex.wrong("hangs", {"n - 1 - r": "(r + 1) % n"})
ex.slip("neighbour", {IF: "if n > 1:", EXCHANGE: RING}).says("""
    Every rank has the tensor of its left neighbour, as in a ring.
    Hint: Rank 0 swaps with the last rank, and rank 1 with the last but one.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {IF: "if True:"})
ex.wrong("not in place", {COPY: "x = theirs"})
in_turn = """import torch.distributed as dist
        calls = [(dist.send, x), (dist.recv, theirs)]
        [call(y, partner) for call, y in (calls if r < partner else calls[::-1])]"""
ex.wrong("costly", {EXCHANGE: in_turn})
gathered = """every = [torch.empty_like(x) for _ in range(n)]
        torch.distributed.all_gather(every, x)
        theirs = every[partner]"""
ex.wrong("native collective", {IF: "if True:", EXCHANGE: gathered})
receives_first = """import torch.distributed as dist
        works = dist.irecv(theirs, partner), dist.isend(x, partner)
        [work.wait() for work in reversed(works)]"""
ex.right({EXCHANGE: receives_first, COPY: "x -= x\n        x += theirs"})
