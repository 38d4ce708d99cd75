"""05.4 Reduce-scatter with unequal shards: reduce_shards(x, sizes)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, hangs, only
from d2lpar.checks.solutions.chapter_05 import SIZES, SPARE, some, two_nodes
from d2lpar.checks.varying import mirror, next_one

ex = Exercise("05.4")


@ex.cases
def cases(rng, reference):
    """Shards of equal and unequal sizes, some of them empty."""
    for n in SIZES:
        one = [7 * (r == n // 2) for r in range(n)]  # one rank has everything
        small = [int(size) for size in rng.integers(1, 6, n)]
        gaps = [size * (r % 3 != 1) for r, size in enumerate(small)]
        large = [int(size) for size in rng.permutation(n) * 40 + 110]
        for sizes in some(([3] * n, one, gaps, small, large), n):
            yield draw(rng, reference, sizes)
        if n == 2:
            yield draw(rng, reference, [0, 0])
        if n == 4:
            uneven = [120, 90, 140, 100]
            yield draw(rng, reference, uneven, two_nodes(n), nodes="of two T4")
            yield draw(rng, reference, [10_007, 10_000, 9_000, 10_001], traced=True)


def draw(rng, reference, sizes, options=None, traced=False, **facts):
    """One case."""
    n, S = len(sizes), sum(sizes)
    tensors = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
    inputs = [(x.clone(), list(sizes)) for x in tensors]
    shards = reference([*tensors], sizes)
    facts = {"S": S, "sizes": str(sizes), **facts}
    return Case.of(n, inputs, shards, options, traced, **facts)


shards = lambda case: case.inputs[0][1]
uneven = lambda case: len({*shards(case)}) > 1
some_empty = lambda case: 0 in shards(case) and any(shards(case))
one_only = lambda case: case.n > 1 and sum(map(bool, shards(case))) == 1
all_empty = lambda case: not any(shards(case))
edges = {"some empty": some_empty, "one only": one_only, "all empty": all_empty}
ex.boundaries("one rank", "two ranks", "no power of two", uneven=uneven, **edges)
others = lambda case: [8 * (sum(shards(case)) - own) for own in shards(case)]
ex.exactly(bytes=others)
ex.at_most(
    rounds=lambda case: case.n - 1,
    memory=lambda case: 3 * 8 * max(shards(case)) + SPARE + case.noise,
)
ex.require(rows.from_messages(), rows.all_waited(), rows.untouched())

# Texts of the answer, for edits

SPLIT, START, EMPTY = "x.split(sizes)", "shards[r].clone()", "torch.empty_like(total)"
LOOP, PEERS, ADD = "range(1, n)", "(r + k) % n, (r - k) % n", "total += incoming"
EXCHANGE = "exchange(shards[dst], dst, incoming, src)"

# Mistakes of its own

ex.slip("equal shards", {SPLIT: "x.tensor_split(n)"}).says("""
    It cuts the tensor into equal parts instead of following `sizes`.
    Hint: Shards may differ in size. `torch.split` accepts a list of sizes, too.
""")
ex.wrong("equal shards", {SPLIT: "x.view(n, -1)"})
ex.slip("own term", {START: "torch.zeros_like(shards[r])"}).says("""
    The sum lacks one term, which is the rank's own part of its shard.
    Hint: Count the terms of a sum. There is one from each of the n ranks, but only n-1
    of them arrive in messages.
""")
one_end = """work = dist.isend(shards[dst], dst) if sizes[dst] else None
        dist.recv(incoming, src)
        if work:
            work.wait()"""
empty = both(hangs, only(lambda case: 0 in shards(case)))
ex.mistake("empty shard", empty, {EXCHANGE: one_end}).says("""
    Only one end of the message leaves an empty shard out, and the other end waits.
    Hint: Both ends know `sizes`, so either both skip the message or neither does.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {LOOP: "range(n)", START: "torch.zeros_like(shards[r])"})
ex.wrong("error", {EMPTY: "torch.empty(sizes[r])"})
send, recv = "dist.send(shards[dst], dst)", "dist.recv(incoming, src)"
ex.wrong("hangs", {EXCHANGE: f"{recv}; {send}"})
ex.wrong("no wait", {EXCHANGE: f"{send.replace('send', 'isend')}; {recv}"})
further = {START: "shards[(r + 1) % n].clone()", "shards[dst]": "shards[(dst + 1) % n]"}
ex.wrong("wrong", further)
ex.wrong("wrong", {"return total": "return total.add_(shards[r])"})
whole = {EMPTY: "torch.empty_like(x)", "exchange(shards[dst]": "exchange(x"}
ex.wrong("costly", {**whole, ADD: "total += incoming.split(sizes)[r]"})
ex.wrong("costly", {START: "shards[r]"})
ex.wrong("costly", {SPLIT: "[shard.clone() for shard in x.split(sizes)]"})
in_pairs = "[i + j - r for i in range(n) for j in range(i) if r in (i, j)]"
ex.wrong("costly", {LOOP: in_pairs, PEERS: "k, k"})
ex.wrong("native collective", {"n, r =": "dist.all_reduce(torch.ones(1)); n, r ="})
skips = """works = [dist.isend(shards[dst], dst)] if sizes[dst] else []
        works += [dist.irecv(incoming, src)] if sizes[r] else []
        [work.wait() for work in works]"""
ex.right({EXCHANGE: skips})
ex.right({PEERS: "(r - k) % n, (r + k) % n"})

ex.variation(
    "b",
    varied="who holds what: rank r has shard n-1-r",
    differs="Rank r returns shard r, as in the public exercise, but here it has to "
    "return shard n-1-r.",
    part=mirror,
)
ex.variation(
    "c",
    varied="who holds what: rank r has shard r+1, round the circle",
    differs="Rank r returns shard r, as in the public exercise, but here it has to "
    "return shard r+1.",
    part=next_one,
)
