"""05.2 Broadcast something big: broadcast_big(x, root), in place."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, on_views
from d2lpar.checks.signs import both, only
from d2lpar.checks.solutions import chapter_05
from d2lpar.checks.solutions.chapter_05 import SIZES, distances, some
from d2lpar.sim.cluster import Cluster


def equal(came, wanted, case):
    """Copies are equal to the bit."""
    return came.dtype == wanted.dtype and torch.equal(came, wanted)


ex = Exercise(
    "05.2", "broadcast_reference", outcome=argument(0), agrees=equal, perform=on_views
)
ALPHA, BETA = 1e-5, 1e-8  # 10 us, 100 MB/s
KINDS = {1: "int64", 3: "float64", 9: "float64", 250: "float32", 1003: "float64"}


@ex.cases
def cases(rng, reference):
    """Tensors of several types, from empty to 240 KB, other numbers on each rank."""
    for n in SIZES:
        for S in some([*KINDS], n):
            yield draw(rng, reference, n, S, int(rng.integers(n)))
        if n == 2:
            yield draw(rng, reference, n, 0, 0)
        if n == 4:
            root, nodes = int(rng.integers(1, n)), "of two T4"
            yield draw(
                rng, reference, n, 1003, root, chapter_05.two_nodes(n), nodes=nodes
            )
            yield draw(rng, reference, n, 30_011, root, traced=True)


def draw(rng, reference, n, S, root, options=None, traced=False, **facts):
    """One case, with integers beyond any float, and infinities among 9 elements."""
    kind = KINDS.get(S, "float64")
    values = torch.from_numpy(rng.uniform(1, 1e9, size=(n, S)))
    tensors = values.to(getattr(torch, kind))
    if kind == "int64":
        tensors += 2**60
    if S == 9:
        tensors[:, 0], tensors[root, 0] = torch.inf, -torch.inf
    expected = [*tensors.clone()]
    reference(expected, root)
    inputs = [(x.clone(), root) for x in tensors]
    options = options or {"cluster": Cluster.ideal(n, ALPHA, BETA)}
    facts = {"root": root, "S": S, "dtype": kind, **facts}
    return Case.of(n, inputs, expected, options, traced, **facts)


def most_bytes(case):
    """2(n-1) P."""
    piece = -(-case.facts["S"] // case.n)
    return 2 * (case.n - 1) * piece * case.inputs[0][0].element_size()


def longest(case):
    """The time of these rounds and bytes, where the links are equal."""
    time = most_rounds(case) * ALPHA + most_bytes(case) * BETA
    return float("inf") if "nodes" in case.facts else time


most_rounds = lambda case: len(distances(case.n)) + case.n - 1
huge = lambda case: case.facts["dtype"] == "int64"
infinite = lambda case: case.facts["S"] == 9
ex.boundaries("one rank", "two ranks", "no power of two", "another root")
ex.boundaries("does not divide", "empty share", "empty", huge=huge, infinite=infinite)
ex.at_most(
    bytes=most_bytes,
    rounds=most_rounds,
    seconds=longest,
    memory=lambda case: chapter_05.SPARE + case.noise,
)
ex.require(rows.from_messages(), rows.all_waited())

# Texts of the answer, for edits

SPLIT = "pieces = x.tensor_split(n)"
UPPER, SEND = "x[starts[middle] : starts[high]]", "dist.send(upper"
GATHER = "ring_all_gather([pieces[(i - root) % n] for i in range(n)])"
FROM, TO = "(r - 1) % n", "(r + 1) % n"
CHAIN = f"""for piece in pieces:
        if place > 0:
            dist.recv(piece, {FROM})
        if place < n - 1:
            dist.send(piece, {TO})"""


def instead(text):
    """Edits: these lines take the place of all that is sent."""
    return {"while half > 0": "while half > n", GATHER: text}


# Mistakes of its own

few_chunks = lambda case: len(torch.empty(case.facts["S"]).chunk(case.n)) < case.n
ex.mistake("chunk", only(few_chunks), {SPLIT: "pieces = x.chunk(n)"}).says("""
    It fails only for sizes of which `torch.chunk` makes fewer than n pieces.
    Hint: Every rank needs a piece, even an empty one. `tensor_split(n)` always makes n
    pieces.
""")


def large(question):
    """Where ways differ: right, on 5 ranks or more, with a large tensor."""
    ways = lambda a: a.right and a.case.n > 4 and a.case.facts["S"] > 1000
    return both(ways, lambda attempt: question(attempt, attempt.run.traffic > 0))


one_each = lambda attempt, to: sum(attempt.run.messages) == attempt.case.n - 1
flat = "dist.recv(x, root) if place else "
flat += "[dist.send(x, i) for i in range(n) if i != r]"
ex.mistake("whole", large(one_each), instead(flat)).says("""
    Each rank receives the whole tensor in one message, so most ranks only wait.
    Hint: A rank that has a part of the tensor can already pass it on. Cut the tensor
    into n pieces. How does each rank get a piece of its own in few rounds?
""")
ex.wrong("whole", {UPPER: "x", GATHER: "pass"})
everyone = lambda a, to: min(a.run.bytes_sent) > 0.95 * most_bytes(a.case)
zeros = """from d2lpar.allreduce import ring_allreduce
    ring_allreduce(x.zero_() if place else x)"""
ex.mistake("all-reduce", large(everyone), instead(zeros)).says("""
    Every rank sends nearly 2 S, as in an all-reduce.
    Hint: In an all-reduce every rank contributes, but here only the root has data and
    the others pass them on.
""")
line = lambda a, to: sorted(to.sum(axis=1)) == [0] + [1] * (a.case.n - 1)
ex.mistake("chain", large(line), instead(CHAIN)).says("""
    It is a chain: the first piece reaches its far end only after n-1 rounds, and with
    fewer, larger pieces each round takes long.
    Hint: A chain cannot meet both limits. Give each rank one piece first. In a tree
    this takes ceil(log2 n) rounds.
""")
few = "pieces = x.tensor_split((n - 1).bit_length() + 1)"
ex.wrong("chain", instead(CHAIN) | {SPLIT: few})
served = lambda a, to: sum(to[a.case.facts["root"]]) == a.case.n - 1
scatter = f"""if place > 0:
        dist.recv(pieces[place], root)
    for i in range(1, n) if r == root else ():
        dist.send(pieces[i], (root + i) % n)
    {GATHER}"""
ex.mistake("one by one", large(served), instead(scatter)).says("""
    The root sends to all ranks itself, which alone takes n-1 rounds.
    Hint: Another rank can serve for the root. Send half of the tensor to one rank,
    which then serves half of the others.
""")

# Answers to which the general sentences apply

ex.wrong("not in place", {SPLIT: f"x = x.clone()\n    {SPLIT}"})
by_rank = GATHER.replace("(i - root) % n", "i")
ex.wrong("pattern", {GATHER: by_rank})
ex.wrong("pattern", {SPLIT: "pieces = x[: len(x) // n * n].tensor_split(n)"})
copied = {SPLIT: f"y, x = x, x.clone()\n    {SPLIT}"}
ex.wrong("costly", copied | {GATHER: f"{GATHER}\n    y.copy_(x)"})
ex.wrong("costly", {"min(low + 2 * half, n)": "n"})
ex.wrong("raises", instead(scatter.replace("range(1, n)", "range(n)")))
ex.wrong("hangs", instead(CHAIN.replace("place < n - 1", "n > 1")))
ex.wrong("race", {SEND: "dist.isend(upper"})
ex.wrong("native collective", instead("dist.broadcast(x, root)"))
to_the_left = """for k in range(n - 1):
        mine, theirs = pieces[(place + k) % n], pieces[(place + k + 1) % n]
        exchange(mine, (r - 1) % n, theirs, (r + 1) % n)"""
ex.right({GATHER: to_the_left})
by_hand = "[x[i * len(x) // n : (i + 1) * len(x) // n] for i in range(n)]"
ex.right({SPLIT: f"pieces = {by_hand}"})
