"""08.4 Two buffers in flight: average_buckets(buckets, size)."""

import torch

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, Requirement, argument, on_views
from d2lpar.checks.signs import breaks

ex = Exercise("08.4", "mean_reference", outcome=argument(0), perform=on_views)
# Elements of the gradients of each bucket; () is a gradient that is one number.
BUCKETS = [
    [],
    [[(3, 2), ()]],
    [[(5,)], [(2, 2)]],
    [[(4,), (3,)], [()], [(2, 3), (2,)]],
    [[(7,)], [], [(1,), (2, 2)], [(0,), (6,)], [(3,)], [(2,)]],
]


@ex.cases
def cases(rng, reference):
    """No bucket, one, two, as many as there are buffers and more; an empty one."""
    for n in (1, 2, 3, 4, 5, 8):
        for shapes in BUCKETS if n in (2, 3) else BUCKETS[2:]:
            whole = [draw(rng, shapes) for _ in range(n)]
            means = [[[g.clone() for g in bucket] for bucket in mine] for mine in whole]
            reference([[g for bucket in mine for g in bucket] for mine in means])
            size = max([0, *(sum(g.numel() for g in each) for each in whole[0])])
            inputs = [(mine, size) for mine in whole]
            yield Case.of(n, inputs, means, buckets=len(shapes), size=size)


def draw(rng, shapes):
    """The gradients of one rank."""
    return [[torch.tensor(rng.normal(size=s)) for s in bucket] for bucket in shapes]


def alone(attempt):
    """All-reduces for which all those before it have been waited for, of all ranks."""
    found = 0
    for entries in attempt.run.ledger.entries:
        begun = waited = 0
        for kind, *_ in entries:
            found += kind == "join" and 0 < begun <= waited
            begun, waited = begun + (kind == "join"), waited + (kind == "wait")
    return found


def reduced(attempt):
    """All-reduces of each rank."""
    entries = attempt.run.ledger.entries
    return [sum(kind == "join" for kind, *_ in mine) for mine in entries]


two = lambda case: case.facts["buckets"] == 2
many = lambda case: case.facts["buckets"] > 2
ex.boundaries("one rank", "two ranks", "no power of two", two=two, many=many)
ex.boundaries(none=lambda case: case.facts["buckets"] == 0)
ALONE = Requirement("all-reduces that nothing overlaps", alone, lambda case: 0)
COUNT = Requirement("all-reduces", reduced, lambda case: case.facts["buckets"], False)
ex.require(ALONE, COUNT)
ex.at_most(memory=lambda case: 24 * case.facts["size"])

# Texts of the answer, for edits

WAIT, DIVIDE = "works[k].wait()\n        ", "buffers[k % 2] /= n\n        start = 0"
PART = "buffers[k % 2, :start]"
BEGIN = f"works.append(dist.all_reduce({PART}, async_op=True))"
EACH, LAST = "if k > 0:\n            unpack(k - 1)", "if buckets:"
TWO, PACK = "torch.empty(2, size", "buffers[k % 2, start : start + g.numel()] = "
FETCH = "g.copy_(buffers[k % 2, start : start + g.numel()].view(g.shape))"

# Mistakes of its own

ex.mistake("alone", breaks(ALONE), {EACH: "unpack(k)", LAST: "if False:"}).says("""
    It waits for each bucket before it begins the next, so nothing overlaps any more.
    Hint: Which buffer does the next bucket need, and which bucket was in it before?
    You must have waited for that one, and for no other.
""")
ex.wrong("alone", {", async_op=True": "", WAIT: ""})
own = {TWO: "torch.empty(len(buckets), size", PACK: PACK.replace(" % 2", "")}
own |= {text: text.replace(" % 2", "") for text in (FETCH, DIVIDE, PART)}
ex.mistake("buffers", ex.costs("memory"), own).says("""
    It holds more than two buffers at once, perhaps one for each bucket.
    Hint: A buffer is free again as soon as its bucket has arrived and is unpacked.
""")
ex.slip("last", {LAST: "if False:"}).says("""
    The last bucket never gets its mean.
    Hint: In the loop, each bucket is unpacked after the next one has begun. Which one
    has no next?
""")

# Answers to which the general sentences apply

early = {DIVIDE: "start = 0", BEGIN: f"{BEGIN}\n        buffers[k % 2] /= n"}
ex.wrong("race", early)
ex.wrong("race", {WAIT: ""})
at_the_end = {EACH: "", LAST: "for k in range(len(buckets)):"}
ex.wrong("race", at_the_end | {"unpack(len(buckets) - 1)": "unpack(k)"})
ex.wrong("wrong", {DIVIDE: "start = 0"})
ex.right({DIVIDE: "start = 0", "= g.reshape(-1)": "= g.reshape(-1) / n"})
ex.right({DIVIDE: "start = 0", FETCH: f"{FETCH}\n            g /= n"})
