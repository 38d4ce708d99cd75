"""06.1 The ring, mirrored: mirrored_ring(tensor, op)."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import costs
from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.equality import same
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, argument, ranks
from d2lpar.checks.signs import both, breaks
from d2lpar.checks.varying import mirror, next_one
from d2lpar.messages import exchange
from d2lpar.report.units import show_bytes

ex = Exercise("06.1", outcome=argument(0))
CALLS = [  # S, op, dtype
    (0, "sum", "float64"),
    (1, "max", "int64"),
    (5, "sum", "float64"),
    (12, "sum", "int64"),
    (13, "max", "float64"),
    (1001, "sum", "float64"),
    (1001, "max", "float64"),
]


@ex.cases
def cases(rng):
    """Sizes that divide by n and do not, below n, and 0; all values below zero.

    The integers have more digits than a float64.
    """
    for n in range(1, 9):
        large = [(30_011, "sum", "float64")] * (n == 4)
        for S, op, dtype in (*(CALLS if n < 6 else CALLS[2::2]), *large):
            if dtype == "int64":
                terms = -rng.integers(2**54, 2**56, (n, S))
            else:
                terms = rng.normal(size=(n, S)) - 5
            terms = torch.from_numpy(terms)  # [n, S]
            yield Case(
                n,
                f'{ranks(n)}, S = {S}, {dtype}, "{op}"',
                [(x.clone(), op) for x in terms],
                [terms.sum(0) if op == "sum" else terms.amax(0)] * n,
                facts={"S": S},
                traced=S > 10_000,
            )


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


def one_hub(attempt):
    """All that is sent is sent by one rank, or to it."""
    traffic = attempt.run.traffic
    return (traffic.sum(0) + traffic.sum(1)).max() == traffic.sum() > 0


def too_few_chunks(attempt):
    """An index is out of range, and in no call in which n divides S."""
    out = signs.raises(IndexError)
    found = [(a.case.n, a.case.facts["S"]) for a in attempt.attempts if out(a)]
    return out(attempt) and all(S % n or S == 0 for n, S in found)


def first_half_right(attempt):
    """The outcome is wrong, and chunk r of rank r is what it should be."""
    n, came, wanted = attempt.case.n, attempt.came, attempt.case.expected
    return signs.wrong(attempt) and all(
        same(*(x[r].tensor_split(n)[r] for x in (came, wanted))) for r in range(n)
    )


def whole_tensors(attempt):
    """Every rank sends n-1 times the whole tensor, whatever n is."""
    every = [a for a in attempt.attempts if telling(a)]
    sent = [8 * (a.case.n - 1) * a.case.facts["S"] for a in every]
    return [{*a.run.bytes_sent} for a in every] == [{each} for each in sent]


BYTES = rows.bytes_sent(fewest)
LEFT = Requirement(
    "bytes to others than the left", elsewhere, lambda case: 0, show=show_bytes
)
ROUNDS = rows.rounds(lambda case: 2 * (case.n - 1), exactly=False)
MEMORY = rows.extra_memory(
    lambda case: 8 * -(-case.facts["S"] // case.n) + 100 + case.noise
)
BITS = rows.same_bits()
SAID = Requirement(
    "ranks that return a value",
    lambda a: sum(value is not None for value in a.values),
    lambda case: 0,
)
ex.require(rows.from_messages(), rows.all_waited(), BYTES, LEFT, ROUNDS, MEMORY)
ex.require(BITS, SAID)

# Texts of the answer, for edits

NEIGHBOURS, SPLIT = "left, right = (r - 1) % n, (r + 1) % n", "tensor.tensor_split(n)"
CHUNKS = "chunks[(r + 1 + k) % n], chunks[(r + 2 + k) % n]"
LATER = "chunks[(r + k) % n], chunks[(r + 1 + k) % n]"
FIRST = "exchange(mine, left, incoming, right)"
SECOND = "exchange(mine, left, theirs, right)"
SPARE, MAXIMUM = "spare[: len(theirs)]", "torch.maximum(theirs, incoming, out=theirs)"


@ex.mistake("whole tensor", both(telling, whole_tensors))
def whole_tensor_round(tensor, op):
    """Every rank sends the whole tensor n-1 times, which is no cheaper than sending
    everything to everyone.
    Hint: Cut the tensor into n chunks, and send one of them in each step.
    """
    n, r, travelling = dist.get_world_size(), dist.get_rank(), tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(tensor)
        exchange(travelling, (r - 1) % n, incoming, (r + 1) % n)
        both = tensor, incoming
        tensor.copy_(sum(both) if op == "sum" else torch.maximum(*both))
        travelling = incoming


@ex.mistake("hub", both(telling, one_hub))
def gather_and_broadcast(tensor, op):
    """All traffic goes through one rank, so this is not a ring.
    Hint: Every rank sends to its left neighbour only, one chunk in each step.
    """
    n, r, incoming = dist.get_world_size(), dist.get_rank(), torch.empty_like(tensor)
    for peer in range(n - 1, 0, -1) if r == 0 else ():
        dist.recv(incoming, peer)
        both = tensor, incoming
        tensor.copy_(sum(both) if op == "sum" else torch.maximum(*both))
    for peer in range(n - 1, 0, -1) if r == 0 else ():
        dist.send(tensor, peer)
    if r > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


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
ex.mistake("too few chunks", too_few_chunks, {SPLIT: "tensor.chunk(n)"}).says("""
    It cuts the tensor into fewer chunks than there are ranks.
    Hint: For 5 elements and 4 ranks, torch.chunk makes only 3 chunks. tensor_split
    makes 4, some of them shorter or empty.
""")
ex.slip("tail", {SPLIT: "tensor[: len(tensor) // n * n].tensor_split(n)"}).says("""
    It leaves out the last S mod n elements when n does not divide S.
    Hint: n chunks of S // n elements do not cover the tensor. Look at how tensor_split
    cuts it.
""")
ex.slip("unchanged", {SPLIT: "tensor.clone().tensor_split(n)"}).says("""
    The tensor is unchanged, so the result, if there is one, is in a different tensor.
    Hint: `x = x + y` makes a new tensor, but `x += y` and `x.copy_(y)` change x itself.
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
    Chunk r of rank r is right but others are wrong, so the first half works and the
    second does not.
    Hint: At half time rank r sends chunk r. Which chunk does it pass on one step later?
""")
nearer = again.format(
    "incoming -= theirs; theirs += incoming"
)  # right but for rounding
ex.mistake("bits", breaks(BITS), {SECOND: nearer}).says("""
    The results on different ranks differ in their last digits.
    Hint: Only the rank that completes a chunk may round its sum. The other ranks copy
    the chunk.
""")
same_sum = lambda a: sum(a.run.bytes_sent) == sum(fewest(a.case))
other_owner = {NEIGHBOURS: NEIGHBOURS + "; r += 1"}
ex.mistake("owner", both(breaks(BYTES), same_sum), other_owner).says("""
    The total number of bytes is right, but some ranks send more than their share and
    others less.
    Hint: Chunk r, as tensor_split cuts it, is complete on rank r at half time. So rank
    r never sends this chunk in the first half.
""")
longer_last = "tensor.split([(len(tensor) + i) // n for i in range(n)])"
ex.wrong("owner", {SPLIT: longer_last, "chunks[0]": "chunks[-1]"})
ex.mistake("spare", breaks(MEMORY), {SPARE: "torch.empty_like(theirs)"}).says("""
    It allocates more memory than one spare chunk at a time.
    Hint: A buffer that is made anew in each step exists twice for a moment, and `a + b`
    makes one more tensor. Make one buffer before the loop, and use `out=`.
""")
ex.wrong("spare", {MAXIMUM: "theirs.copy_(torch.maximum(theirs, incoming))"})
ex.wrong("spare", {SPLIT: SPLIT + "; before = tensor.tolist() if r == 2 else []"})
of_numpy = "(copy := torch.from_numpy(tensor.numpy().copy())).tensor_split(n)"
ex.wrong("spare", {SPLIT: of_numpy, SECOND: SECOND + "; tensor.copy_(copy)"})
turns = (
    "for give in (r % 2 == 0, r % 2): dist.send(mine, left) if give else dist.recv({})"
)
turns = {FIRST: turns.format("incoming, right"), SECOND: turns.format("theirs, right")}
ex.mistake("rounds", both(breaks(ROUNDS), BYTES.holds), turns).says("""
    The ranks take turns, although all of them could send at the same time.
    Hint: Receive while you send, with `exchange`, or with isend and irecv and a wait
    for both.
""")
ex.wrong("hangs", {FIRST: "dist.send(mine, left); dist.recv(incoming, right)"})
ex.wrong("raises", {"chunks[(r + 2 + k) % n]": "chunks[r + 2 + k]"})


@ex.wrong("native collective")
def torchs_own(tensor, op):
    dist.all_reduce(tensor, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)


@ex.right
def empty_chunks_stay_at_home(tensor, op):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, spare = tensor.tensor_split(n), tensor.new_empty(-(-len(tensor) // n))
    for k in range(2 * (n - 1)):
        first = k < n - 1
        i = r + 1 + k if first else r + k - (n - 1)
        mine, theirs = chunks[i % n], chunks[(i + 1) % n]
        incoming = spare[: len(theirs)] if first else theirs
        works = [dist.irecv(incoming, src=(r + 1) % n)] if len(theirs) else []
        works += [dist.isend(mine, dst=(r - 1) % n)] if len(mine) else []
        for work in works:
            work.wait()
        if first and op == "sum":
            theirs += incoming
        elif first:
            torch.maximum(theirs, incoming, out=theirs)


# Variations


def with_owner(chunk):
    """What the report says where this chunk is complete on rank r at half time."""
    return {
        "second half": f"""
            Chunk {chunk} of rank r is right but others are wrong, so the first half
            works and the second does not.
            Hint: At half time rank r sends chunk {chunk}. Which chunk does it pass on
            one step later?""",
        "owner": f"""
            {ex.words["owner"]["sentence"]}
            Hint: Chunk {chunk}, as tensor_split cuts it, is complete on rank r at half
            time. So rank r never sends this chunk in the first half.""",
    }


ex.variation(
    "b",
    varied="direction and chunk owner: to the right, chunk n-1-r complete on rank r",
    differs="The chunks travel to the left, as in the public exercise, but here they "
    "have to travel to the right.",
    part=mirror,
    says={
        "hub": """
            All traffic goes through one rank, so this is not a ring.
            Hint: Every rank sends to its right neighbour only, one chunk in each step.
        """,
        "direction": """
            The chunks travel to the left, but in this ring they have to travel to the
            right.
            Hint: Rank r sends to r+1 and receives from r-1. Write down which chunk it
            sends in each step.
        """,
        **with_owner("n-1-r"),
    },
    rows={"bytes to others than the left": "bytes to others than the right"},
)
ex.variation(
    "c",
    varied="chunk owner: chunk r+1 complete on rank r",
    differs="Chunk r is complete on rank r at half time, but this exercise asks for "
    "chunk r+1.",
    part=next_one,
    says=with_owner("r+1"),
)
