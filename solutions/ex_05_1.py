"""05.1 Deal a batch like cards: deal(x, root, rows, features)."""

import torch
import torch.distributed as dist

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.checks.signs import both, breaks, hangs, only, says
from d2lpar.checks.varying import mirror

ex = Exercise("05.1", "Deal a batch like cards")


@ex.cases
def cases(rng):
    """No row, fewer than ranks, as many, more; the first, a middle, the last root."""
    for n in (1, 2, 3, 4, 5, 6, 8, 11):
        sizes = (n, 0, 1, n - 1, 2 * n, 2 * n + 1) if n < 6 else (2 * n + 1, 0, n - 1)
        for B in dict.fromkeys(sizes):
            for root in sorted({0, n // 2, n - 1}):
                D = 1 + (B + root + 1) % 3
                batch = torch.from_numpy(rng.normal(size=(B, D)))
                yield Case(
                    n,
                    f"{ranks(n)}, root {root}, B = {B} rows of {D}",
                    [(batch if r == root else None, root, B, D) for r in range(n)],
                    [batch[r::n] for r in range(n)],
                    facts={"root": root, "S": B},
                )


def leaving(case):
    """Bytes of each message that has to leave the root."""
    root, hands = case.facts["root"], case.expected
    return [hand.nbytes for hand in hands[:root] + hands[root + 1 :] if len(hand)]


def sent(case):
    """Bytes that each rank sends."""
    return [sum(leaving(case)) * (r == case.facts["root"]) for r in range(case.n)]


BYTES = rows.bytes_sent(sent)
MESSAGES = rows.messages(lambda case: len(leaving(case)), exactly=False)
ex.require(BYTES, MESSAGES)
ex.require(rows.from_messages(), rows.all_waited(), rows.untouched())

# Texts of the answer, for edits

SIZES, ROOT, BUFFER = "range(peer, rows, n)", "if r == root:", "torch.float64"
SHARE, OWN = "x[peer::n].contiguous()", "x[root::n].clone()"
SENDS, SEND = " and sizes[peer] > 0", f"dist.send({SHARE}, peer)"
RECEIVES, RECEIVE = "if sizes[r] > 0:", "dist.recv(mine, root)"

# Mistakes of its own

# A figure is at fault only where no outcome is wrong in any call.
every_right = lambda attempt: all(each.right for each in attempt.attempts)
costs = both(breaks(MESSAGES), BYTES.holds, every_right)

blocks = {SHARE: "x.tensor_split(n)[peer]", OWN: "x.tensor_split(n)[root]"}
ex.slip("blocks", blocks).says("""
    Each rank gets a block of neighbouring rows, not every n-th row.
    Hint: Neighbouring rows belong to different ranks. Which slice of the batch takes
    one row and leaves out the next n-1?
""")
root_first = {
    SIZES: "range((peer - root) % n, rows, n)",
    SHARE: "x[(peer - root) % n :: n].contiguous()",
    OWN: "x[::n].clone()",
}
ex.slip("root first", root_first).says("""
    The deal begins at the root, but the first row belongs to the same rank whoever the
    root is.
    Hint: Which rows a rank gets depends on its number and n, and not on `root`.
""")
elsewhere = only(lambda case: case.rank(case.facts["root"]) != 0)
ex.mistake("root", elsewhere, {ROOT: "if r == 0:"}).says("""
    It works only where rank 0 is the root, but any rank may have the batch.
    Hint: Compare the rank with `root`, both where you send and where you receive.
""")
ex.wrong("root", {RECEIVES: "if r * sizes[r] > 0:", RECEIVE: "dist.recv(mine, 0)"})
shape = {"sizes[r], features": "len(x[r::n]), x.shape[1]"}
ex.mistake("no batch", says("NoneType"), shape).says("""
    A rank other than the root uses `x`, which is None there.
    Hint: All ranks know `rows` and `features`, so a receiver can make its tensor
    without `x`.
""")
keeps_nothing = {f"return {OWN}": "return None"}
ex.mistake("no tensor", signs.not_a_tensor, keeps_nothing).says("""
    Some rank does not return a tensor.
    Hint: The root keeps its own rows, and a rank without any returns a tensor of 0
    rows.
""")
few = only(lambda case: case.facts["S"] < case.n)
ex.mistake("rowless", both(hangs, few), {RECEIVES: "if True:"}).says("""
    Sender and receiver disagree about whether a rank without rows gets a message.
    Hint: All ranks know `rows` and n, so the sender and the receiver can both tell
    which ranks get no row.
""")
ex.wrong("rowless", {SENDS: ""})
nothing = only(lambda case: case.facts["S"] < case.n, costs)
ex.mistake("empty messages", nothing, {SENDS: "", RECEIVES: "if True:"}).says("""
    Ranks without rows get messages too, and even an empty message costs time.
    Hint: All ranks know `rows` and n, so the sender and the receiver can both skip the
    message.
""")
each = {SEND: f"[dist.send(row, peer) for row in {SHARE}]"}
each[RECEIVE] = "[dist.recv(row, root) for row in mine]"
ex.mistake("row by row", costs, each).says("""
    The rows of one rank travel in several messages, and each message costs alpha.
    Hint: Copy all rows of a rank into one tensor, and send this tensor.
""")

# Answers to which the general sentences apply

whole = {SEND: "dist.send(x, peer)", "torch.empty(sizes[r]": "torch.empty(rows"}
whole |= {SENDS: " and rows", RECEIVES: "if rows:"}
whole["return mine"] = "return mine[r::n].clone()"
ex.wrong("costly", whole)
emptied = f"mine = {OWN}\n        x.zero_()\n        return mine"
ex.wrong("costly", {f"return {OWN}": emptied})
zeros = {"return mine": "return mine.zero_()", OWN: "torch.zeros_like(x[r::n])"}
ex.wrong("wrong", zeros)
ends_first = {SHARE: "x[peer::n].flip(0)", OWN: "x[root::n].flip(0)"}
ex.wrong("wrong", {**ends_first, SENDS: "", RECEIVES: "if True:"})
ex.wrong("error", {BUFFER: "torch.float32"})
ex.wrong("no wait", {SEND: f"dist.isend({SHARE}, peer)"})


@ex.wrong("native collective")
def torch_scatter(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    padded = torch.zeros(-(-rows // n) * n, features, dtype=torch.float64)
    if r == root:
        padded[:rows] = x
    mine = torch.zeros(-(-rows // n), features, dtype=torch.float64)
    shares = [padded[p::n].contiguous() for p in range(n)] if r == root else None
    dist.scatter(mine, shares, src=root)
    return mine[: len(range(r, rows, n))]


@ex.right
def one_batch_of_messages_last_rank_first(x, root, rows, features):
    n, r = dist.get_world_size(), dist.get_rank()
    mine = x[r::n] if r == root else torch.zeros(max(0, -(-(rows - r) // n)), features)
    mine, calls = mine.double(), []
    if r == root:
        for peer in {*range(min(n, rows))} - {root}:
            hand = torch.stack(list(x[peer::n]))
            calls.insert(0, dist.P2POp(dist.isend, hand, peer))
    elif len(mine):
        calls.append(dist.P2POp(dist.irecv, mine, root))
    for work in dist.batch_isend_irecv(calls) if calls else []:
        work.wait()
    return mine


ex.variation(
    "b",
    varied="who holds what: the last rank is dealt first",
    differs="It deals to rank 0 first, but this exercise asks for the last rank first.",
    part=mirror,
    given=lambda n, x, root, *more: (x, n - 1 - root, *more),
    call=lambda case: case.text.replace(
        f"root {case.facts['root']}", f"root {case.n - 1 - case.facts['root']}"
    ),
)
