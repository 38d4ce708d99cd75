"""06.1 The ring, mirrored: mirrored_ring(tensor, op)."""

import torch

from d2lpar.allreduce import costs
from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, argument
from d2lpar.checks.signs import both, only
from d2lpar.checks.varying import mirror, next_one
from d2lpar.report.units import show_bytes

ex = Exercise("06.1", outcome=argument(0))
CALLS = [(0, "sum", "float64"), (1, "max", "int64"), (5, "sum", "float64")]
CALLS += [(12, "sum", "int64"), (13, "max", "float64"), (1001, "sum", "float64")]
CALLS += [(1001, "max", "float64")]


@ex.cases
def cases(rng, reference):
    """Sizes that divide by n and do not, below n, and 0; all values below zero.

    The integers have more digits than a float64.
    """
    for n in range(1, 9):
        large = [(30_011, "sum", "float64")] * (n == 4)
        for S, op, dtype in (*(CALLS if n < 6 else CALLS[2::2]), *large):
            terms = rng.normal(size=(n, S)) - 5
            if dtype == "int64":
                terms = -rng.integers(2**54, 2**56, (n, S))
            terms = list(torch.from_numpy(terms))  # [n, S]
            inputs, traced = [(x.clone(), op) for x in terms], S > 10_000
            wanted = reference(terms, op)
            yield Case.of(n, inputs, wanted, traced=traced, S=S, dtype=dtype, op=op)


def fewest(case):
    """Bytes: all but chunk r on the first way, all but chunk r-1 on the second."""
    S, chunks = case.facts["S"], costs.chunk_sizes(case.facts["S"], case.n)
    return [8 * (2 * S - chunks[r] - chunks[r - 1]) for r in range(case.n)]


def elsewhere(attempt, way=-1):
    """Bytes of each rank to others than its left neighbour (way=1: its right one)."""
    n, traffic = attempt.case.n, attempt.run.traffic
    return [int(sent.sum() - sent[(r + way) % n]) for r, sent in enumerate(traffic)]


def telling(attempt):
    """It ended, and enough ranks and elements tell one way from another."""
    return attempt.error is None and 2 < attempt.case.n <= attempt.case.facts["S"]


def first_half_right(attempt):
    """The outcome is wrong, and chunk r of rank r is what it should be."""
    n, came, wanted = attempt.case.n, attempt.came, attempt.case.expected
    return signs.wrong(attempt) and all(
        same(*(x[r].tensor_split(n)[r] for x in (came, wanted))) for r in range(n)
    )


TO_OTHERS = "bytes to others than the left"
LEFT = Requirement(TO_OTHERS, elsewhere, lambda case: 0, show=show_bytes)
returned = lambda attempt: sum(value is not None for value in attempt.values)
SAID = Requirement("ranks that return a value", returned, lambda case: 0)
spare = lambda case: 8 * -(-case.facts["S"] // case.n) + 100 + case.noise
ex.boundaries("one rank", "two ranks", "no power of two", "does not divide")
ex.boundaries("empty", "empty share")
ex.require(rows.from_messages(), rows.all_waited())
ex.exactly(bytes=fewest)
ex.at_most(rounds=lambda case: 2 * (case.n - 1), memory=spare)
ex.require(LEFT, rows.same_bits(), SAID)

# Texts of the answer, for edits

NEIGHBOURS, SPLIT = "left, right = (r - 1) % n, (r + 1) % n", "tensor.tensor_split(n)"
CHUNKS = "chunks[(r + 1 + k) % n], chunks[(r + 2 + k) % n]"
LATER = "chunks[(r + k) % n], chunks[(r + 1 + k) % n]"
FIRST = "exchange(mine, left, incoming, right)"
SECOND = "exchange(mine, left, theirs, right)"
SPARE, MAXIMUM = "spare[: len(theirs)]", "torch.maximum(theirs, incoming, out=theirs)"


to_the_right = lambda a: any(elsewhere(a)) and not any(elsewhere(a, way=1))
as_in_the_chapter = {
    NEIGHBOURS: "right, left = (r - 1) % n, (r + 1) % n",
    CHUNKS: "chunks[(r - k - 1) % n], chunks[(r - k - 2) % n]",
    LATER: "chunks[(r - k) % n], chunks[(r - k - 1) % n]",
}
ex.mistake("direction", both(telling, to_the_right), as_in_the_chapter).says("""
    The chunks travel to the right, as in the chapter, but in this ring they have to
    travel to the left.
    Hint: Rank r sends to r-1 and receives from r+1. Write down which chunk it sends in
    each step.
""")
out = signs.raises(IndexError)
few = only(lambda case: case.facts["S"] % case.n or not case.facts["S"], out)
ex.mistake("too few chunks", few, {SPLIT: "tensor.chunk(n)"}).says("""
    It cuts the tensor into fewer chunks than there are ranks.
    Hint: For 5 elements and 4 ranks, torch.chunk makes only 3 chunks. tensor_split
    makes 4, some of them shorter or empty.
""")
again = f"incoming = {SPARE}; {FIRST}; {{}}"
add = "theirs += incoming if op == 'sum' else torch.maximum(theirs, incoming) - theirs"
ex.slip("combined twice", {SECOND: again.format(add)}).says("""
    The second half adds chunks again, although the sums are complete by then.
    Hint: A chunk that arrives in the second half is complete, so it replaces what the
    rank had.
""")
ex.slip("op", {'op == "sum"': "True"}).says("""
    It adds even when `op` is "max".
    Hint: torch.maximum(a, b, out=a) keeps the larger of two values, element by element.
""")
ex.mistake("second half", signs.always(first_half_right), {SECOND: "pass"}).says("""
    At the end chunk r is right on rank r but others are wrong, so the first half works
    and the second does not.
    Hint: At half time rank r sends chunk r. Which chunk does it pass on one step later?
""")
same_sum = lambda a: sum(a.run.bytes_sent) == sum(fewest(a.case))
other_owner = {NEIGHBOURS: NEIGHBOURS + "; r += 1"}
ex.mistake("owner", both(ex.costs("bytes"), same_sum), other_owner).says("""
    The total number of bytes is right, but some ranks send more than their share and
    others less.
    Hint: As tensor_split cuts them, chunk r is complete on rank r at half time. So rank
    r never sends it in the first half.
""")
longer_last = "tensor.split([(len(tensor) + i) // n for i in range(n)])"
ex.wrong("owner", {SPLIT: longer_last, "chunks[0]": "chunks[-1]"})
ex.mistake("spare", ex.costs("memory"), {SPARE: "torch.empty_like(theirs)"}).says("""
    It allocates more memory than one spare chunk at a time.
    Hint: A buffer that is made anew in each step exists twice for a moment, and `a + b`
    makes one more tensor. Make one buffer before the loop, and use `out=`.
""")
ex.wrong("spare", {MAXIMUM: "theirs.copy_(torch.maximum(theirs, incoming))"})
ex.wrong("spare", {SPLIT: SPLIT + "; before = tensor.tolist() if r == 2 else []"})

# Answers to which the general sentences apply

ex.wrong("pattern", {SPLIT: "tensor[: len(tensor) // n * n].tensor_split(n)"})
ex.wrong("costly", {SECOND: again.format("incoming -= theirs; theirs += incoming")})
turns = "for give in (r % 2 == 0, r % 2): "
turns += "dist.send(mine, left) if give else dist.recv({})"
turns = {FIRST: turns.format("incoming, right"), SECOND: turns.format("theirs, right")}
ex.wrong("costly", turns)
ex.wrong("hangs", {FIRST: "dist.send(mine, left); dist.recv(incoming, right)"})
ex.wrong("raises", {"chunks[(r + 2 + k) % n]": "chunks[r + 2 + k]"})
native = "return dist.all_reduce(tensor, getattr(dist.ReduceOp, op.upper()))"
ex.wrong("native collective", {SPLIT: f"{SPLIT}; {native}"})
# empty chunks stay
skip = "works = [dist.irecv({0}, right)] if len({0}) else []; "
skip += "works += [dist.isend(mine, left)] if len(mine) else []; "
skip += "[work.wait() for work in works]"
ex.right({FIRST: skip.format("incoming"), SECOND: skip.format("theirs")})

ex.variation(
    "b",
    varied="direction and chunk owner: to the right, chunk n-1-r complete on rank r",
    differs="The chunks travel to the left, as in the public exercise, but here they "
    "have to travel to the right.",
    part=mirror,
    says={
        "direction": """
            The chunks travel to the left, but in this ring they have to travel to the
            right.
            Hint: Rank r sends to r+1 and receives from r-1. Write down which chunk it
            sends in each step.
        """
    },
    reads={"chunk r": "chunk n-1-r"},
    rows={TO_OTHERS: TO_OTHERS.replace("left", "right")},
)
ex.variation(
    "c",
    varied="chunk owner: chunk r+1 complete on rank r",
    differs="Chunk r is complete on rank r at half time, but this exercise asks for "
    "chunk r+1.",
    part=next_one,
    reads={"chunk r": "chunk r+1"},
)
