"""04.2 Mend three hangs: mended(program, *args) calls one of three programs."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks import solutions
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, breaks, hangs, waiting, wrong
from d2lpar.checks.solutions.chapter_04 import BATCHED, NO_BATCH

ex = Exercise("04.2")
SENT = {  # messages of rank r, which has so many elements
    "neighbours": lambda r, n, size: (r > 0) + (r < n - 1),
    "pair_sum": lambda r, n, size: int(r ^ 1 < n),
    "collect": lambda r, n, size: int(r > 0 and size > 0),
}
MORE = {1: [[2]], 3: [[0, 0, 0], [0, 2, 1]], 4: [[1, 1, 2, 0]]}  # sizes


@ex.cases
def cases(rng):
    """Each program on 1 to 8 ranks; where tensors are collected, some are empty."""
    for program in SENT:
        reference = solutions.of(ex.name).reference(f"{program}_reference")
        for n in (1, 2, 3, 4, 5, 6, 7, 8):
            drawn = rng.integers(0, 3, size=n).tolist()
            drawn[n // 2] = 0
            for sizes in [drawn, *MORE.get(n, [])] if program == "collect" else [None]:
                xs = [torch.from_numpy(rng.normal(size=k)) for k in sizes or [3] * n]
                inputs = [(program, x.clone(), *[sizes] * bool(sizes)) for x in xs]
                more = {"sizes": str(sizes)} if sizes else {}
                yield Case.of(n, inputs, reference(xs), program=program, **more)


def messages(case):
    """How many messages each rank sends."""
    given = enumerate(case.inputs)
    return [SENT[name](r, case.n, len(x)) for r, (name, x, *_) in given]


def sent(case):
    """Bytes that each rank sends."""
    pairs = zip(messages(case), case.inputs, strict=True)
    return [count * x.nbytes for count, (_, x, *_) in pairs]


def of(program):
    """This is a call of that program."""
    return lambda attempt: attempt.case.facts["program"] == program


MESSAGES = rows.messages(lambda case: sum(messages(case)))
WAITED = rows.all_waited()
ex.require(MESSAGES, rows.bytes_sent(sent), WAITED, BATCHED)
ex.require(rows.from_messages(), rows.untouched(1))
sizes = lambda case: [len(x) for _, x, *_ in case.inputs]
ex.boundaries(
    "one rank",
    "two ranks",
    "no power of two",
    rank_0_is_empty=lambda case: sizes(case)[0] == 0 < max(sizes(case)),
    last_rank_is_empty=lambda case: sizes(case)[0] > sizes(case)[-1] == 0,
    one_rank_without_elements=lambda case: sizes(case) == [0],
    all_empty=lambda case: case.n > 1 and max(sizes(case)) == 0,
    without_partner=lambda case: case.facts["program"] == "pair_sum" and case.n % 2,
)

# Texts of the answer, for edits

LINE = "dist.recv(left, r - 1)  # the last rank begins here, so the line moves"
LEFT, RIGHT = "dist.send(x, r - 1)", "dist.send(x, r + 1)"
TAKE = "dist.recv(right, r + 1)"
SWAP = "exchange(x, partner, theirs, partner)  # both in one batch"
SILENT = "if sizes[src] > 0:  # the others are silent"
SEND = "if len(x) > 0:\n            dist.send(x, 0)"

# Mistakes of its own


def face_to_face(attempt):
    """Two ranks are in the same call, and each waits for the other."""
    waits = waiting(attempt)
    return any((b, way, a) in waits for a, way, b in waits)


def over_nothing(attempt):
    """The first rank that waits does so because of an empty tensor."""
    rank, _, peer = waiting(attempt)[0]
    return sizes(attempt.case)[max(rank, peer)] == 0


as_it_was = {LEFT: "dist.recv(left, r - 1)", LINE: LEFT}
in_line = both(hangs, of("neighbours"), face_to_face)
ex.mistake("neighbours hangs", in_line, as_it_was).says("""
    In `neighbours`, ranks next to each other start with the same call and wait for each
    other.
    Hint: The four calls are the right ones, so change only their order. Which order
    lets the last rank of the line receive at once?
""")
receives = {f"{TAKE}\n    return": "dist.send(x, dst=r + 1)\n    return", RIGHT: TAKE}
ex.wrong("neighbours hangs", receives)
at_once = "dist.isend(x, partner).wait(); dist.irecv(theirs, partner).wait()"
in_pairs = both(hangs, of("pair_sum"), face_to_face)
ex.mistake("pair_sum hangs", in_pairs, {SWAP: at_once}).says("""
    In `pair_sum`, both partners wait for a message before they start the next one.
    Hint: `isend(...).wait()` does the same as `send`. Start both messages first, and
    then wait for both.
""")
nothing = both(hangs, of("collect"), over_nothing)
ex.mistake("collect hangs", nothing, {SILENT: "if True:"}).says("""
    In `collect`, rank 0 and another rank disagree about whether an empty tensor
    travels.
    Hint: Rank 0 knows `sizes`, so it knows which ranks send nothing.
""")


def gone(attempt):
    """No message is left of those that the program should send."""
    return sum(messages(attempt.case)) > 0 == sum(attempt.run.messages)


no_messages = {LINE: "pass", LEFT: "pass", RIGHT: "pass", TAKE: "pass"}
ex.mistake("exchange gone", both(wrong, gone), no_messages).says("""
    It no longer hangs, but nothing arrives any more.
    Hint: Keep all messages of the program, and change only their order or the way of
    waiting.
""")
each_one = lambda attempt: sum(attempt.run.messages) == attempt.case.n - 1
empty_too = both(breaks(MESSAGES), of("collect"), each_one)
all_send = {SILENT: "if True:", SEND: SEND.replace("len(x) > 0", "True")}
all_send["parts.append(part)"] = "parts += [part] * (len(part) > 0)"
ex.mistake("empty travels", empty_too, all_send).says("""
    In `collect`, it sends empty tensors as well, and each of them still costs alpha.
    Hint: The ranks with empty tensors are right to send nothing. Mend rank 0, which
    waits for them.
""")
works = "works = dist.isend(x, partner), dist.irecv(theirs, partner); "
one_by_one = {SWAP: works + "[work.wait() for work in works]"}
ex.mistake("no batch", both(breaks(BATCHED), WAITED.holds), one_by_one).says(NO_BATCH)

# Answers to which the general sentences apply

ex.wrong("raises", {"partner >= n": "False"})
ex.wrong("raises", {f"if r > 0:\n        {LINE}": "dist.recv(left, max(r - 1, 0))"})
hasty = "dist.isend(x, partner); dist.irecv(theirs, partner).wait()"
ex.wrong("no wait", {SWAP: hasty})
ex.wrong("wrong", {"return parts": "return parts or None"})
ex.wrong("wrong", {"return left, right": "return right, left"})
ex.wrong("wrong", {"x, partner, theirs": "x.float().double(), partner, theirs"})
ex.wrong("costly", {SWAP: f"{SWAP}\n    {SWAP}"})
ex.wrong("native collective", {LINE: "dist.recv(left, r - 1)\n    dist.barrier()"})
both_ways = "dist.send(x, partner), dist.recv(theirs, partner)"
odd_first = "dist.recv(theirs, partner), dist.send(x, partner)"
ex.right({SWAP: f"[{both_ways}] if r % 2 else [{odd_first}]"})
ex.right({"dist.recv(part, src)": "dist.irecv(part, src).wait()"})
