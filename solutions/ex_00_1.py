"""00.1 The mirror: mirror(x, n, r), in place."""

from itertools import product

import torch
import torch.distributed as dist

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, ranks
from d2lpar.checks.signs import both, breaks

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


ROUNDS = rows.rounds(lambda case: min(1, case.n // 2))
ex.require(
    rows.messages(lambda case: case.n - case.n % 2),
    rows.bytes_sent(lambda case: case.facts["sent"]),
    ROUNDS,
    rows.from_messages(),
)

IF, COPY = "if partner != r:", "x.copy_(theirs)"
EXCHANGE = "exchange(x, partner, theirs, partner)"
RING = "exchange(x, (r + 1) % n, theirs, (r - 1) % n)"

in_the_middle = lambda attempt: 2 * attempt.error.rank + 1 == attempt.case.n
itself = signs.several(both(signs.to_itself, in_the_middle))
ex.mistake("middle", itself, {IF: "if True:"}).says("""
    With an odd number of ranks, the rank in the middle tries to send to itself.
    Hint: With five ranks, n-1-r is 2 for rank 2. It already has the tensor that it
    needs, so it must not send.
""")
hangs = both(signs.hangs, lambda a: a.case.n == 2)  # partners are right there
ex.mistake("hangs", hangs, {EXCHANGE: "torch.distributed.send(x, partner)"}).says("""
    Both partners begin with the same call, and then wait for each other.
    Hint: `exchange` sends and receives at the same time.
""")
ex.wrong("hangs", {"n - 1 - r": "(r + 1) % n"})
ex.slip("untouched", {COPY: "x = theirs"}).says("""
    Every rank still has its own tensor, because nothing was copied into `x`.
    Hint: `x = theirs` only gives the name `x` to a different tensor, but
    `x.copy_(theirs)` fills the tensor that is there.
""")
ex.slip("neighbour", {IF: "if n > 1:", EXCHANGE: RING}).says("""
    Every rank has the tensor of its left neighbour, as in a ring.
    Hint: Rank 0 swaps with the last rank, and rank 1 with the last but one.
""")


@ex.mistake("one after the other", breaks(ROUNDS))
def lower_half_sends_first(x, n, r):
    """The outcome is right, but the tensors do not all travel at the same time.
    Hint: All pairs can swap in one round, because no pair needs anything from a
    different pair.
    """
    partner, theirs = n - 1 - r, torch.empty_like(x)
    if r < partner:
        dist.send(x, partner)
    if r != partner:
        dist.recv(theirs, partner)
    if r > partner:
        dist.send(x, partner)
    if r != partner:
        x.copy_(theirs)


@ex.wrong("native collective")
def gathers_all(x, n, r):
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    x.copy_(every[n - 1 - r])


@ex.right
def receives_first(x, n, r):
    partner, theirs = n - 1 - r, x.clone()
    if partner != r:
        works = [dist.irecv(theirs, partner), dist.isend(x, partner)]
        for work in reversed(works):
            work.wait()
        x -= x
        x += theirs
