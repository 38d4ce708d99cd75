"""05.5 Transpose what no rank can hold: transpose(shard)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only
from d2lpar.checks.solutions.chapter_05 import SIZES, SPARE, two_nodes

ex = Exercise("05.5")


@ex.cases
def cases(rng, reference):
    """No row, fewer than ranks, as many, more, with rows that divide and do not."""
    for n in SIZES:
        sizes = (n, 0, 1, n + 1, 64, 67) if n < 6 else (n - 1, 2 * n, 67)
        yield from (draw(rng, reference, n, N) for N in dict.fromkeys(sizes))
        if n == 4:
            yield draw(rng, reference, n, 67, two_nodes(n), nodes="of two T4")
            yield draw(rng, reference, n, 203, traced=True)


def draw(rng, reference, n, N, options=None, traced=False, **facts):
    """A matrix that is cut by rows."""
    shards = torch.from_numpy(rng.uniform(1, 9, size=(N, N))).tensor_split(n)
    inputs = [(shard.clone(),) for shard in shards]
    return Case.of(n, inputs, reference(shards), options, traced, S=N, **facts)


def result_and_four_blocks(case):
    N, sizes = case.facts["S"], heights(case)
    return [8 * (own * N + 4 * sizes[0] ** 2) + SPARE + case.noise for own in sizes]


heights = lambda case: [len(shard) for (shard,) in case.inputs]
uneven = lambda case: case.facts["S"] % case.n
ex.boundaries("one rank", "two ranks", "no power of two", "does not divide")
ex.boundaries("empty share", "empty")
ex.exactly(
    bytes=lambda case: [8 * own * (case.facts["S"] - own) for own in heights(case)]
)
ex.at_most(
    messages=lambda case: case.n * (case.n - 1),
    rounds=lambda case: case.n - 1,
    memory=result_and_four_blocks,
)
ex.require(rows.from_messages(), rows.all_waited(), rows.untouched())

# Texts of the answer, for edits

OWN, PLACE = "places[r].copy_(blocks[r].t())", "places[src].copy_(incoming.t())"
BUFFER, SEND = "shard.new_empty(rows[src], rows[r])", "blocks[dst].contiguous()"
LOOP, ROWS = "for k in range(1, n):", "N // n + (i < N % n)"
PEERS, EXCHANGE = "(r + k) % n, (r - k) % n", f"exchange({SEND}, dst, incoming, src)"
ALL, RETURN = "shard.split(rows, dim=1)", "return result"

# Mistakes of its own

swapped = {OWN: "places[r].copy_(blocks[r])", PLACE: "places[src].copy_(incoming)"}
swapped[BUFFER] = "shard.new_empty(rows[r], rows[src])"
ex.slip("not transposed", swapped).says("""
    The blocks have changed places, but inside each block nothing is transposed.
    Hint: What is in row i and column j of a block belongs in row j and column i of the
    transposed block.
""")
ex.slip("not transposed", {PLACE: "places[src].copy_(incoming)"})
there = only(lambda case: uneven(case) or not case.facts["S"])
equal = both(there, lambda attempt: uneven(attempt.case))
ex.mistake("sizes", equal, {ROWS: "N // n"}).says("""
    It works only where n divides N, so that all blocks are square and of one size.
    Hint: Rank i's block for rank j has as many rows as rank i, and as many as rank j
    after `t()`.
""")
ex.wrong("sizes", {BUFFER: "shard.new_empty(rows[r], rows[r])"})
gather = {
    ALL: "shard.new_empty(N, N).split(rows)",
    SEND: "shard",
    "incoming, src)": "blocks[src], src)",
    PLACE: "places[src].copy_(blocks[src][:, sum(rows[:r]) :][:, : rows[r]].t())",
    OWN: "places[r].copy_(shard.split(rows, dim=1)[r].t())",
}
ex.mistake("rows", ex.costs("memory", "bytes"), gather).says("""
    A rank sends more than the blocks that others need, and so it also holds too much.
    Hint: Which columns of its rows does each of the other ranks need?
""")
copies = {ALL: "[block.contiguous() for block in shard.split(rows, dim=1)]"}
ex.mistake("many blocks", ex.costs("memory"), copies).says("""
    Some rank holds more than four blocks besides the result at the same time, perhaps
    even the whole matrix.
    Hint: At any time one block leaves and one arrives: copy it into the result at once.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {LOOP: "for k in range(n):"})
in_pairs = "[i + j - r for i in range(n) for j in range(i) if r in (i, j)]"
ex.wrong("costly", {LOOP: f"for other in {in_pairs}:", PEERS: "other, other"})
ex.wrong("error", {BUFFER: "torch.empty(rows[src], rows[r])"})
by_row = f"""works = [dist.isend(row, dst) for row in {SEND}]
        works += [dist.irecv(row, src) for row in incoming]
        [work.wait() for work in works]"""
ex.wrong("costly", {EXCHANGE: by_row})
ex.wrong("costly", {RETURN: f"shard.zero_()\n    {RETURN}"})
unwaited = f"dist.isend({SEND}, dst)\n        dist.recv(incoming, src)"
ex.wrong("no wait", {EXCHANGE: unwaited})
with_torch = f"""coming = [shard.new_empty(rows[i], rows[r]) for i in range(n)]
    dist.all_to_all(coming, [block.contiguous() for block in blocks])
    {LOOP}"""
ex.wrong("native collective", {LOOP: with_torch, EXCHANGE: "incoming = coming[src]"})
spare = {
    LOOP: f"spare, works = shard.new_empty(rows[0] ** 2), []\n    {LOOP}",
    SEND: "spare[: blocks[dst].numel()].view(blocks[dst].shape).copy_(blocks[dst])",
    "exchange": "works += d2lpar.messages.start_exchange",
    PLACE: f"works.pop().wait()\n        {PLACE}",
    RETURN: f"[work.wait() for work in works]\n    {RETURN}",
}
ex.wrong("race", spare)
ex.right({RETURN: f"spare = shard.new_empty(2 * rows[0] ** 2)\n    {RETURN}"})
into_their_places = {
    "shard.new_empty(rows[r], N)": "shard.new_empty(N, rows[r])",
    "result.split(rows, dim=1)": "result.split(rows)",
    OWN: "places[r].copy_(blocks[r])",
    BUFFER: "places[src]",
    PLACE: "pass",
    RETURN: "return result.t()",
}
ex.right(into_their_places)
skips = f"""works = [dist.irecv(incoming, src)] if incoming.numel() else []
        works += [dist.isend({SEND}, dst)] if blocks[dst].numel() else []
        [work.wait() for work in works]"""
ex.right({EXCHANGE: skips, PEERS: "(r - k) % n, (r + k) % n"})
