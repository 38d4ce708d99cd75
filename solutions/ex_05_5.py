"""05.5 Transpose what no rank can hold: transpose(shard)."""

import torch
import torch.distributed as dist

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import both, breaks, only
from d2lpar.sim.cluster import Cluster

ex = Exercise("05.5")
SPARE = 512  # bytes that nobody counts
# On links of unequal speed, what is touched too early comes out wrong.
TWO_NODES = {"cluster": Cluster.of("2x2xT4")}


@ex.cases
def cases(rng):
    """No row, fewer than ranks, as many, more, with rows that divide and do not."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 11):
        sizes = (n, 0, 1, n + 1, 64, 67) if n < 6 else (n - 1, 2 * n, 67)
        yield from (draw(rng, n, N) for N in dict.fromkeys(sizes))
        if n == 4:
            yield draw(rng, n, 67, ", on nodes of two T4", options=TWO_NODES)
            yield draw(rng, n, 203, traced=True)


def draw(rng, n, N, where="", **how):
    """A matrix that is cut by rows."""
    whole = torch.from_numpy(rng.uniform(1, 9, size=(N, N)))
    shards, turned = whole.tensor_split(n), whole.t().tensor_split(n)
    inputs = [(shard.clone(),) for shard in shards]
    facts = {"S": N, "rows": [*map(len, shards)]}
    return Case(n, f"{ranks(n)}, N = {N}{where}", inputs, [*turned], facts, **how)


def result_and_four_blocks(case):
    N, sizes = case.facts["S"], case.facts["rows"]
    return [8 * (own * N + 4 * sizes[0] ** 2) + SPARE + case.noise for own in sizes]


BYTES = rows.bytes_sent(
    lambda case: [8 * own * (case.facts["S"] - own) for own in case.facts["rows"]]
)
MESSAGES = rows.messages(lambda case: case.n * (case.n - 1), exactly=False)
ROUNDS = rows.rounds(lambda case: case.n - 1, exactly=False)
MEMORY = rows.extra_memory(result_and_four_blocks)
WAITED = rows.all_waited()
ex.require(BYTES, MESSAGES, ROUNDS, MEMORY)
ex.require(rows.from_messages(), WAITED, rows.untouched())

# Texts of the answer, for edits

OWN, PLACE = "places[r].copy_(blocks[r].t())", "places[src].copy_(incoming.t())"
BUFFER, SEND = "shard.new_empty(rows[src], rows[r])", "blocks[dst].contiguous()"
LOOP, ROWS = "for k in range(1, n):", "N // n + (i < N % n)"
PEERS, EXCHANGE = "(r + k) % n, (r - k) % n", f"exchange({SEND}, dst, incoming, src)"
ALL, RETURN = "shard.split(rows, dim=1)", "return result"

# Mistakes of its own

# A figure is at fault only where no outcome is wrong in any call.
every_right = lambda attempt: all(each.right for each in attempt.attempts)
costs = lambda row: both(breaks(row), every_right)

swapped = {OWN: "places[r].copy_(blocks[r])", PLACE: "places[src].copy_(incoming)"}
swapped[BUFFER] = "shard.new_empty(rows[r], rows[src])"
ex.slip("not transposed", swapped).says("""
    The blocks have changed places, but inside each block nothing is transposed.
    Hint: What is in row i and column j of a block belongs in row j and column i of the
    transposed block.
""")
ex.slip("not transposed", {PLACE: "places[src].copy_(incoming)"})
ex.slip("not moved", {EXCHANGE: "incoming = blocks[src]"}, somewhere=True).says("""
    Each block is transposed where it stood, but none has moved to another rank.
    Hint: Rank r needs a block of columns from the rows of every other rank.
""")
spare = {
    LOOP: f"spare, works = shard.new_empty(rows[0] ** 2), []\n    {LOOP}",
    SEND: "spare[: blocks[dst].numel()].view(blocks[dst].shape).copy_(blocks[dst])",
    "exchange": "works += d2lpar.messages.start_exchange",
    PLACE: f"works.pop().wait()\n        {PLACE}",
    RETURN: f"[work.wait() for work in works]\n    {RETURN}",
}
ex.mistake("touches what leaves", signs.touches_what_leaves, spare).says("""
    A rank changes a tensor while the message that carries it is still leaving.
    Hint: Do not change a tensor that is being sent until `wait` has returned.
""")
uneven = lambda case: case.facts["S"] % case.n
there = only(lambda case: uneven(case) or not case.facts["S"])
equal = both(there, lambda attempt: uneven(attempt.case))
ex.mistake("sizes", equal, {ROWS: "N // n"}).says("""
    It works only where n divides N, so that all blocks are square and of one size.
    Hint: Rank i's block for rank j has as many rows as rank i, and as many as rank j
    after `t()`.
""")
ex.wrong("sizes", {BUFFER: "shard.new_empty(rows[r], rows[r])"})


def whole_somewhere(attempt):
    """On four ranks and less, or in a small matrix, a few shards are as large."""
    n, N = attempt.case.n, attempt.case.facts["S"]
    return n > 4 and N > 60 and max(attempt.run.peak_memory) >= 8 * N * N


gather = {
    ALL: "shard.new_empty(N, N).split(rows)",
    SEND: "shard",
    "incoming, src)": "blocks[src], src)",
    PLACE: "places[src].copy_(blocks[src][:, sum(rows[:r]) :][:, : rows[r]].t())",
    OWN: "places[r].copy_(shard.split(rows, dim=1)[r].t())",
}
ex.mistake("whole matrix", both(costs(MEMORY), whole_somewhere), gather).says("""
    Some rank holds the whole matrix, which no rank has the memory for.
    Hint: Rank i needs only one block of each other rank's rows.
""")
small = both(costs(MEMORY), BYTES.holds, MESSAGES.holds, WAITED.holds)
copies = {ALL: "[block.contiguous() for block in shard.split(rows, dim=1)]"}
ex.mistake("many blocks", small, copies).says("""
    Some rank holds more than four blocks besides the result at the same time.
    Hint: At any time one block leaves and one arrives. Copy each block into the result
    as soon as it arrives.
""")
in_pairs = "[i + j - r for i in range(n) for j in range(i) if r in (i, j)]"
pairs = {LOOP: f"for other in {in_pairs}:", PEERS: "other, other"}
ex.mistake("in turn", both(costs(ROUNDS), MESSAGES.holds), pairs).says("""
    It takes more than n-1 rounds, because some ranks wait while others exchange their
    blocks.
    Hint: In step k, rank r can send to r+k and receive from r-k, for all r at once.
""")

# Answers to which the general sentences apply

ex.wrong("raises", {LOOP: "for k in range(n):"})
ex.wrong("raises", {SEND: "blocks[dst]"})
ex.wrong("error", {BUFFER: "torch.empty(rows[src], rows[r])"})
by_row = f"""works = [dist.isend(row, dst) for row in {SEND}]
        works += [dist.irecv(row, src) for row in incoming]
        [work.wait() for work in works]"""
ex.wrong("costly", {EXCHANGE: by_row})
rows_to_all = {BUFFER: "shard.new_empty(rows[src], N)", SEND: "shard"}
rows_to_all[PLACE] = "places[src].copy_(incoming.split(rows, dim=1)[r].t())"
ex.wrong("costly", rows_to_all)
ex.wrong("costly", {RETURN: f"shard.zero_()\n    {RETURN}"})
unwaited = f"dist.isend({SEND}, dst)\n        dist.recv(incoming, src)"
ex.wrong("no wait", {EXCHANGE: unwaited})
with_torch = f"""coming = [shard.new_empty(rows[i], rows[r]) for i in range(n)]
    dist.all_to_all(coming, [block.contiguous() for block in blocks])
    {LOOP}"""
ex.wrong("native collective", {LOOP: with_torch, EXCHANGE: "incoming = coming[src]"})
ex.right({RETURN: f"spare = shard.new_empty(2 * rows[0] ** 2)\n    {RETURN}"})


@ex.right
def filled_by_rows_and_turned_as_a_whole(shard):
    n, r, N = dist.get_world_size(), dist.get_rank(), shard.shape[1]
    result = torch.zeros(N, len(shard)).double()
    places, blocks = result.tensor_split(n), shard.tensor_split(n, dim=1)
    places[r].copy_(blocks[r])
    for k in range(n - 1, 0, -1):
        src, leaving, works = (r + k) % n, blocks[r - k].contiguous().flatten(), []
        if places[src].numel():
            works.append(dist.irecv(places[src], src))
        if leaving.numel():
            works.append(dist.isend(leaving, (r - k) % n))
        for work in works:
            work.wait()
    return result.t()
