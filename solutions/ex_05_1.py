"""05.1 Deal a batch like cards: deal(x, root, rows, features)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks import signs
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, hangs, only, says
from d2lpar.checks.varying import mirror

ex = Exercise("05.1")


@ex.cases
def cases(rng, reference):
    """No row, fewer than ranks, as many, more; the first, a middle, the last root."""
    for n in (1, 2, 3, 4, 5, 6, 8, 11):
        sizes = (n, 0, 1, n - 1, 2 * n, 2 * n + 1) if n < 6 else (2 * n + 1, 0, n - 1)
        for S in dict.fromkeys(sizes):
            for root in sorted({0, n // 2, n - 1}):
                D = 1 + (S + root + 1) % 3
                batch = torch.from_numpy(rng.normal(size=(S, D)))
                inputs = [(batch if r == root else None, root, S, D) for r in range(n)]
                yield Case.of(n, inputs, reference(batch, n), root=root, S=S, D=D)


def leaving(case):
    """Bytes of each message that has to leave the root."""
    root, hands = case.facts["root"], case.expected
    return [hand.nbytes for hand in hands[:root] + hands[root + 1 :] if len(hand)]


def sent(case):
    """Bytes that each rank sends."""
    return [sum(leaving(case)) * (r == case.facts["root"]) for r in range(case.n)]


few = lambda case: case.facts["S"] < case.n
ex.boundaries("one rank", "two ranks", "another root", "does not divide")
ex.boundaries("empty", "empty share")
ex.exactly(bytes=sent)
ex.at_most(messages=lambda case: len(leaving(case)))
ex.require(rows.from_messages(), rows.all_waited(), rows.untouched())

# Texts of the answer, for edits

SIZES, ROOT, BUFFER = "range(peer, rows, n)", "if r == root:", "torch.float64"
SHARE, OWN = "x[peer::n].contiguous()", "x[root::n].clone()"
SENDS, SEND = " and sizes[peer] > 0", f"dist.send({SHARE}, peer)"
RECEIVES, RECEIVE = "if sizes[r] > 0:", "dist.recv(mine, root)"

# Mistakes of its own

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
ex.mistake("rowless", both(hangs, only(few)), {RECEIVES: "if True:"}).says("""
    Sender and receiver disagree about whether a rank without rows gets a message.
    Hint: All ranks know `rows` and n, so the sender and the receiver can both tell
    which ranks get no row.
""")
ex.wrong("rowless", {SENDS: ""})
nothing = only(few, ex.costs("messages"))
ex.mistake("empty messages", nothing, {SENDS: "", RECEIVES: "if True:"}).says("""
    Ranks without rows get messages too, and even an empty message costs time.
    Hint: All ranks know `rows` and n, so the sender and the receiver can both skip the
    message.
""")

# Answers to which the general sentences apply

each = {SEND: f"[dist.send(row, peer) for row in {SHARE}]"}
each[RECEIVE] = "[dist.recv(row, root) for row in mine]"
ex.wrong("costly", each)
whole = {SEND: "dist.send(x, peer)", "torch.empty(sizes[r]": "torch.empty(rows"}
whole |= {SENDS: " and rows", RECEIVES: "if rows:"}
whole["return mine"] = "return mine[r::n].clone()"
ex.wrong("costly", whole)
emptied = f"mine = {OWN}\n        x.zero_()\n        return mine"
ex.wrong("costly", {f"return {OWN}": emptied})
zeros = {"return mine": "return mine.zero_()", OWN: "torch.zeros_like(x[r::n])"}
ex.wrong("wrong", zeros)
ex.wrong("error", {BUFFER: "torch.float32"})
native = {"n, r = dist": "dist.all_reduce(torch.ones(1))\n    n, r = dist"}
ex.wrong("native collective", native)
ex.wrong("no wait", {SEND: f"dist.isend({SHARE}, peer)"})
LOOP = "for peer in {}:\n        "
ex.right({LOOP.format("range(n)"): LOOP.format("reversed(range(n))")})

ex.variation(
    "b",
    varied="who holds what: the last rank is dealt first",
    differs="It deals to rank 0 first, but this exercise asks for the last rank first.",
    part=mirror,
    given=lambda n, x, root, *more: (x, n - 1 - root, *more),
    call=lambda case: case.call.replace(
        f"root = {case.facts['root']}", f"root = {case.n - 1 - case.facts['root']}"
    ),
)
