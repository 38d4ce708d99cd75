"""04.1 Shift by k: shift(x, k)."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, breaks, hangs, says, waiting
from d2lpar.checks.solutions.chapter_04 import BATCHED, NO_BATCH
from d2lpar.checks.varying import mirror

ex = Exercise("04.1")
FORMS = [(torch.float64, (1,)), (torch.float32, (2, 3)), (torch.int64, (5,))]
FORMS += [(torch.bool, (3,)), (torch.complex64, (2, 1, 2)), (torch.int64, ())]


@ex.cases
def cases(rng, reference):
    """Any k: 0, negative, n and more; tensors of several shapes and types."""
    for n in (1, 2, 3, 4, 5, 6, 7, 8):
        ks = (0, 1, 2, -1, n + 3, -1, -2 * n, n + 1)
        calls = [(k, *FORMS[i % len(FORMS)]) for i, k in enumerate(ks)]
        for k, dtype, shape in [*calls, *[(1, torch.float32, (0, 2))] * (n == 2)]:
            xs = [drawn(rng, shape, dtype) for _ in range(n)]
            kind = str(dtype).removeprefix("torch.")
            inputs = [(x.clone(), k) for x in xs]
            yield Case.of(n, inputs, reference(xs, k), k=k, x=f"{kind} {list(shape)}")


def drawn(rng, shape, dtype):
    """A tensor of any kind; integers with more digits than a float has."""
    if dtype == torch.bool:
        return torch.tensor(rng.integers(0, 2, shape)).bool()
    if dtype.is_complex:
        return torch.tensor(rng.normal(size=(*shape, 2)) @ [1, 1j]).to(dtype)
    if dtype == torch.float64:
        return torch.full(shape, rng.choice([-1, 1]) * torch.inf).to(dtype)
    return torch.tensor(rng.integers(-(2**60), 2**60, shape)).to(dtype)


given = lambda case: case.inputs[0][0]
moves = lambda case: case.facts["k"] % case.n != 0
BYTES = rows.bytes_sent(lambda case: moves(case) * given(case).nbytes)
MESSAGES = rows.messages(lambda case: moves(case) * case.n)
ROUNDS = rows.rounds(lambda case: int(moves(case)))
WAITED = rows.all_waited()
ex.require(MESSAGES, BYTES, ROUNDS, WAITED, BATCHED)
ex.require(rows.from_messages(), rows.untouched())
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    nowhere=lambda case: case.facts["k"] == 0,
    round_and_round=lambda case: case.facts["k"] and not moves(case),
    backwards=lambda case: case.facts["k"] < 0,
    beyond_n=lambda case: case.facts["k"] > case.n,
    half_way=lambda case: case.n > 2 and 2 * case.facts["k"] % case.n == 0,
    empty=lambda case: given(case).numel() == 0,
    without_dimensions=lambda case: given(case).dim() == 0,
    beyond_float64=lambda case: (
        given(case).dtype == torch.int64 and abs(given(case)).max() > 2**53
    ),
    infinite=lambda case: bool(given(case).isinf().any()),
)

# Texts of the answer, for edits

NOWHERE, RETURN = "k % n == 0", "return incoming"
EXCHANGE = "exchange(x, (r + k) % n, incoming, (r - k) % n)"
SEND, RECV = "dist.send(x, (r + k) % n)", "dist.recv(incoming, (r - k) % n)"
TURNS = f"[{RECV}, {SEND}] if {{}} else [{SEND}, {RECV}]"

# Mistakes of its own


def in_pairs(attempt):
    """Ranks send to the ones that they receive from, and wait for no others."""
    n, k = attempt.case.n, attempt.case.facts["k"]
    waits = waiting(attempt)
    return 2 * k % n == 0 and all((peer - r - k) % n == 0 for r, _, peer in waits)


works = "works = dist.isend(x, r + k), dist.irecv(incoming, r - k); "
no_mod = {EXCHANGE: works + "[work.wait() for work in works]"}
ex.mistake("no mod", says("ranks 0 to"), no_mod).says("""
    It sends to, or receives from, a rank number that does not exist.
    Hint: Rank numbers wrap around, so 0 comes after n-1. The operator `%` does that,
    even for negative numbers.
""")
send_first = {EXCHANGE: f"{SEND}; {RECV}"}
ex.mistake("all send first", both(hangs, in_pairs), send_first).says("""
    All ranks in a circle start with the same blocking call and wait for each other.
    Hint: For some k every order of blocking calls hangs or takes long. Start the send
    and the receive at the same time, as `exchange` does.
""")
ex.wrong("all send first", {EXCHANGE: TURNS.format("r % 2")})
other_way = {EXCHANGE: "exchange(x, (r - k) % n, incoming, (r + k) % n)"}
ex.slip("direction", other_way).says("""
    It shifts in the wrong direction, so rank r gets what rank r+k had.
    Hint: If every rank r sends to r+k, rank r must receive from r-k.
""")
step = "exchange(x, (r + 1) % n, incoming, (r - 1) % n); x = incoming.clone()"
steps = {EXCHANGE: f"for _ in range(k % n): {step}"}
ex.mistake("step by step", both(breaks(BYTES), breaks(ROUNDS)), steps).says("""
    The tensor gets there in several steps, and is sent again in each.
    Hint: A rank can send to any other rank, not only to its neighbour.
""")
one_by_one = {EXCHANGE: f"work = {RECV.replace('recv', 'irecv')}; {SEND}; work.wait()"}
ex.mistake("no batch", both(breaks(BATCHED), WAITED.holds), one_by_one).says(NO_BATCH)

# Answers to which the general sentences apply

ex.wrong("raises", {NOWHERE: "k == 0"})
ex.wrong("no wait", {EXCHANGE: f"{SEND.replace('send', 'isend')}; {RECV}"})
ex.wrong("hangs", {EXCHANGE: "exchange(x, (r + k) % n, incoming, (r + k) % n)"})
first = "r == min((r + i * k) % n for i in range(n))"
ex.wrong("costly", {EXCHANGE: TURNS.format(first)})
ex.wrong("costly", {RETURN: "return x.copy_(incoming)"})
ex.wrong("wrong", {RETURN: "return incoming.double().to(x.dtype)"})
ex.wrong("wrong", {RETURN: "return incoming.reshape(-1) if x.dim() < 2 else incoming"})
all_of_them = "every = [x.clone() for _ in range(n)]; dist.all_gather(every, x)"
of_one = f"{all_of_them}; incoming = every[(r - k) % n]"
ex.wrong("native collective", {EXCHANGE: of_one})
board = "board = __import__('builtins').__dict__.setdefault('_board041', {})"
carried = {EXCHANGE: f"{board}; board[r] = x.clone(); {EXCHANGE}"}
ex.wrong("processes", carried | {RETURN: "return board[(r - k) % n]"})
as_bytes = """here, there = (z.reshape(-1).view(torch.uint8) for z in (x, incoming))
    ops = [dist.P2POp(dist.isend, here, (r + k) % n)]
    ops.append(dist.P2POp(dist.irecv, there, (r - k) % n))
    [work.wait() for work in dist.batch_isend_irecv(ops)]"""
ex.right({EXCHANGE: as_bytes})
ex.right({"return x.clone()": "return x"})

ex.variation(
    "b",
    varied="direction: to rank r-k",
    differs="It shifts to rank r+k, but this exercise asks for rank r-k.",
    part=mirror,
    says={
        "direction": """
            It shifts in the wrong direction, so rank r gets what rank r-k had.
            Hint: If every rank r sends to r-k, rank r must receive from r+k.
        """
    },
)
