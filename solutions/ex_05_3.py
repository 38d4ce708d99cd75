"""05.3 Running sum: running_sum(x), in place."""

import torch

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, on_views
from d2lpar.checks.solutions import chapter_05
from d2lpar.checks.solutions.chapter_05 import SIZES, distances, some
from d2lpar.checks.varying import mirror

ex = Exercise("05.3", outcome=argument(0), perform=on_views)


@ex.cases
def cases(rng, reference):
    """A tensor per rank, empty ones, and links of unequal speed."""
    for n in SIZES:
        for S in some((1, 7, 1000), n):
            yield draw(rng, reference, n, S)
        if n == 2:
            yield draw(rng, reference, n, 0)
        if n == 4:
            yield draw(
                rng, reference, n, 1000, chapter_05.two_nodes(n), nodes="of two T4"
            )
            yield draw(rng, reference, n, 30_011, traced=True)
        if n == 8:
            yield draw(rng, reference, n, 0)


def draw(rng, reference, n, S, options=None, traced=False, **facts):
    """One case."""
    terms = torch.from_numpy(rng.uniform(1, 9, size=(n, S)))
    sums = [*terms.clone()]
    reference(sums)
    inputs = [(x.clone(),) for x in terms]
    return Case.of(n, inputs, sums, options, traced, S=S, **facts)


fewest = lambda case: sum(case.n - d for d in distances(case.n))
size = lambda case: 8 * case.facts["S"]
ex.boundaries("one rank", "two ranks", "no power of two", "empty")
ex.at_most(
    rounds=lambda case: len(distances(case.n)),
    messages=fewest,
    bytes=lambda case: len(distances(case.n)) * size(case),
    memory=lambda case: 3 * size(case) + chapter_05.SPARE + case.noise,
)
ex.require(rows.from_messages(), rows.all_waited())

# Texts of the answer, for edits

SENDS, SEND = "if r + d < n:", "works.append(dist.isend(x, r + d))"
RECEIVES, ADDS = ("if r >= d:\n            " + x for x in ("works", "x += incoming"))
LOOP, END, WAIT = "while d < n:", "d *= 2", "work.wait()"


def receives_where(condition):
    """Edits: a rank receives and adds where this is true."""
    return {x: x.replace("r >= d", condition) for x in (RECEIVES, ADDS)}


# Mistakes of its own

circle = {SENDS: "if True:", **receives_where("True")}
circle |= {"isend(x, r + d)": "isend(x, (r + d) % n)", "g, r - d": "g, (r - d) % n"}
ex.slip("wraps", circle).says("""
    Some ranks add what came round the end, as if the ranks formed a circle.
    Hint: Not every rank is sent something in every step. Where there is no rank d
    places away, nothing is received and nothing is added.
""")
from_1 = {SENDS: "if 0 < r < n - d:", **receives_where("r > d")}
ex.slip("rank 0", from_1).says("""
    The tensor of rank 0 is missing from the sums of all other ranks.
    Hint: Look at your conditions for the two ranks at the ends of a message. Rank d is
    d places from rank 0, so there r - d is 0, and it does receive.
""")
mirrored = {SENDS: "if d <= r:", **receives_where("r + d < n")}
mirrored |= {"isend(x, r + d)": "isend(x, r - d)", "g, r - d": "g, r + d"}
ex.slip("mirrored", mirrored).says("""
    Rank r has the sum of ranks r to n-1, because the messages go the wrong way.
    Hint: Which rank has its result from the start? All others need its tensor.
""")
late = f"if r + d < n:\n            dist.send(x, r + d)\n        {END}"
ex.slip("adds before sending", {SEND: "pass", END: late}).says("""
    A rank adds what arrives before it has sent its own sum, so some terms are counted
    twice.
    Hint: In every step each rank sends what it had when the step began.
""")
ex.slip("too few steps", {LOOP: "while 2 * d <= n:"}).says("""
    A step is missing, so the terms of some ranks never reach the ranks far from them.
    Hint: After the last step a sum may have n terms. If n is not a power of two, round
    the number of steps up, not down.
""")
ex.slip("too few steps", {LOOP: "while 2 * d < n:"})

# Answers to which the general sentences apply

returned = {END: f"{END}\n    return x", ADDS: ADDS.replace("x +=", "x = x +")}
ex.wrong("not in place", returned)
ex.wrong("not in place", {ADDS: ADDS.replace("x += ", "x.data = x + ")})
early = {"works.append(dist.irecv(incoming, r - d))": "dist.recv(incoming, r - d)"}
early |= {"for work in works:\n            work.wait()": "pass"}
early |= {END: f"[work.wait() for work in works]\n        {END}"}
ex.wrong("race", early)
ex.wrong("wrong", {ADDS: ADDS.replace("x += incoming", "x.copy_(incoming)")})
ex.wrong("hangs", {RECEIVES: RECEIVES.replace(">=", ">")})
chain = """if r > 0:
        dist.recv(incoming, r - 1)
        x.add_(incoming)
    if r < n - 1:
        dist.send(x, r + 1)
    while d < 1:"""
ex.wrong("costly", {LOOP: chain})
then = f"{WAIT}\n        if r + d < n:\n            dist.send(x, r + d)"
ex.wrong("costly", {SEND: "pass", WAIT: then})
ex.wrong("costly", {at: text for at, text in circle.items() if at != ADDS})
twice = {"isend(x,": "isend(torch.cat([x, x]),", ADDS: f"{ADDS}[: len(x)]"}
twice["empty_like(x)"] = "empty(2 * len(x)).double()"
ex.wrong("costly", twice)
ex.wrong("costly", {"works = []": "works, spare = [], x.new_empty(3 * len(x))"})
ex.wrong("native collective", {"while": "dist.all_reduce(torch.ones(1))\n    while"})
ex.right({"isend(x,": "isend(x.clone(),"})
ex.right({LOOP: "for d in [d for d in (8, 4, 2, 1) if d < n]:"})

ex.variation(
    "b",
    varied="direction: the sum of ranks r to n-1",
    differs="It sums ranks 0 to r, but this exercise asks for ranks r to n-1.",
    part=mirror,
    says={
        "mirrored": "Rank r has the sum of ranks 0 to r, because the messages go the "
        "wrong way."
    },
    reads={"rank 0": "rank n-1", "Rank d": "Rank n-1-d", "r - d is 0": "r + d is n-1"},
)
