"""08.1 Half the bytes: average_on_wire(grads, wire, bucket_bytes, allreduce)."""

from functools import partial

import torch

from d2lpar.allreduce import costs, ring_allreduce
from d2lpar.checks import requirements as rows
from d2lpar.checks import solutions
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, argument, on_views

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
DTYPES = [FLOATS[i] for i in (0, 0, 1, 2, 0, 2, 1, 0)]
SHAPES = [(7, 6), (5,), (3, 9), (40,), (2, 2, 5), (11,), (6, 6), ()]
# Relative errors: of a term when it is rounded, of a sum of up to five of them.
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-6}


def agrees(came, wanted, case):
    """Equal gradients, but for rounding; a None stays, as the list does."""
    pairs = zip(came, wanted, strict=True)
    return all(x is None or near(x, mean, case.inputs[0][1]) for x, mean in pairs)


def near(came, mean, wire):
    """Equal but for what rounding to one of the dtypes costs."""
    worst = max(ROUNDED.get(dtype, 1e-12) for dtype in (wire, mean.dtype))
    finite = mean[mean.isfinite()].double().abs().tolist()
    most = worst * max([1.0, *finite])
    return torch.allclose(came.double(), mean.double(), rtol=0, atol=most)


form = {"outcome": argument(0), "agrees": agrees, "perform": on_views}
ex = Exercise("08.1", "mean_reference", **form)


@ex.cases
def cases(rng, reference):
    """Gradients of three dtypes, some of them None; a few sizes of buckets."""
    worlds = [(1, torch.float32, 64), (2, torch.bfloat16, 200), (3, torch.float64, 0)]
    worlds += [(3, torch.float32, 300), (4, torch.bfloat16, 100_000)]
    worlds += [(4, torch.float16, 120), (5, torch.bfloat16, 150)]
    for n, wire, limit in worlds:
        shapes = [SHAPES[i] for i in rng.permutation(len(SHAPES))]
        nones = {1, 5} if n > 1 else {0}
        yield call(reference, draw(rng, n, wire, shapes, nones), wire, limit)
    for limit, count in (24, 7), (25, 6):  # full to the byte, and a byte more
        grads = draw(rng, 2, torch.bfloat16, [(2, 3)] * count, ())
        yield call(reference, grads, torch.bfloat16, limit)
    large = [[torch.full((3,), x)] for x in (1e5, 1e3)]  # their mean fits into float16
    yield call(reference, large, torch.float16, 100)


def draw(rng, n, wire, shapes, nones):
    """The gradients of each rank; their sum is infinite if `wire` is float16."""
    large, columns = wire is torch.float16, []
    for i, (shape, dtype) in enumerate(zip(shapes, DTYPES, strict=False)):
        values = rng.uniform(0.5, 1, size=(n, *shape)) * (3e4 if large else 1)
        values *= 1 if large else rng.choice([-1, 1], size=values.shape)
        tensors = [torch.tensor(x).to(dtype) for x in values]
        columns.append([None] * n if i in nones else tensors)
    return [list(mine) for mine in zip(*columns, strict=True)]


def call(reference, grads, wire, limit):
    """One case."""
    means = [[g if g is None else g.clone() for g in mine] for mine in grads]
    reference(means)
    inputs = [(mine, wire, limit, ring_allreduce) for mine in grads]
    facts = {"wire": str(wire)[6:], "bucket_bytes": limit}
    return Case.of(len(grads), inputs, means, **facts, gradients=len(grads[0]))


def buckets(case):
    """The bytes of each bucket, in the order in which they travel."""
    grads, wire, limit, _ = case.inputs[0]
    found = []
    for g in [g for g in grads[::-1] if g is not None]:
        if not found or found[-1] >= limit:
            found.append(0)
        found[-1] += g.numel() * wire.itemsize
    return found


def sent(case):
    """Bytes that each rank sends, of all buckets."""
    item, ranks = case.inputs[0][1].itemsize, range(case.n)
    cut = [costs.chunk_sizes(size // item, case.n) for size in buckets(case)]
    kept = lambda chunks, r: chunks[r] + chunks[(r + 1) % case.n]
    return [sum(2 * sum(c) - kept(c, r) for c in cut) * item for r in ranks]


def messages(attempt):
    """The bytes of each message of rank 0, which tell how the buckets are cut."""
    events = attempt.run.timeline.rows[0].get("send", [])
    return sorted(event.bytes for event in events)


def messages_of(answer, case):
    """The same of an answer with this `make`."""
    if answer not in case.fakes:
        case.fakes[answer] = messages(ex.perform(answer.make(), case))
    return case.fakes[answer]


def cut_as(mistake, attempt):
    """All outcomes are right, and all buckets are those of an answer with this."""
    right, case = all(each.right for each in attempt.attempts), attempt.case
    if not right or messages(attempt) == messages_of(solutions.of("08.1"), case):
        return False
    forms = [known for known in ex.known if known.mistake == mistake]
    return any(
        all(messages(a) == messages_of(form, a.case) for a in attempt.attempts)
        for form in forms
    )


limit = lambda case: case.facts["bucket_bytes"]
ex.boundaries("one rank", "two ranks", "no power of two")
ex.boundaries(
    empty_share=lambda case: min(buckets(case)) < case.n * case.inputs[0][1].itemsize,
    exactly_full=lambda case: limit(case) in buckets(case)[:-1],
    one_bucket=lambda case: limit(case) > 10_000,
    no_limit=lambda case: limit(case) == 0,
    no_none=lambda case: None not in case.inputs[0][0],
    overflow=lambda case: case.facts["wire"] == "float16",
)
rings = lambda case: len(buckets(case)) * 2 * (case.n - 1)
ex.exactly(messages=lambda case: rings(case) * case.n, bytes=sent)
ex.require(rows.same_bits(), rows.from_messages())

# Texts of the answer, for edits

MEAN, DIVIDES, SUMS = "(x / n).to(wire).reshape(-1)", "(x / n)", "allreduce(flat)"
SIZE, ORDER, COPY = "g.numel() * wire.itemsize", "reversed(there)", "x.copy_(piece"
FULL, LAST = "size >= bucket_bytes", " or g is there[0]"

# Mistakes of its own

after = {DIVIDES: "x", SUMS: f"{SUMS}\n            flat /= n"}
ex.slip("infinite", after).says("""
    A sum overflows float16 and becomes infinite, although the mean would fit.
    Hint: The largest number of float16 is 65504. Divide before the numbers are added.
""")
ex.slip("infinite", {MEAN: "x.to(wire).reshape(-1) / n"})
ex.slip("sum", {DIVIDES: "x"}).says("""
    The gradients are sums over the ranks, so they are n times too large.
    Hint: `allreduce` sums, and the exercise asks for the mean.
""")
ex.slip("sum", {MEAN: "x.double().reshape(-1)"})
ex.slip("rest", {LAST: ""}).says("""
    The gradients of the last bucket are what they were, because it is never sent.
    Hint: The last bucket may not be full when the list comes to its end.
""")
first = {ORDER: "there", "there[0]": "there[-1]"}
ex.mistake("front", partial(cut_as, "front"), first).says("""
    It fills the buckets starting from the first gradient of the list.
    Hint: The backward pass computes the gradient of the last layer first.
""")
ex.mistake("own bytes", partial(cut_as, "own bytes"), {SIZE: "g.nbytes"}).says("""
    It fills the buckets by the bytes of the gradients, not by the bytes on the wire.
    Hint: A float64 has 8 bytes, but as bfloat16 it takes only 2 on the wire.
""")
ex.mistake("full", partial(cut_as, "full"), {FULL: "size > bucket_bytes"}).says("""
    Some bucket is not closed by the gradient with which it becomes full.
    Hint: Compare after a gradient was added. What if there are just `bucket_bytes`?
""")
following = "g, following in zip(there[::-1], [*there[-2::-1], there[0]])"
filled = f"size + {SIZE.replace('g', 'following', 1)} > bucket_bytes"
ex.wrong("full", {"g in reversed(there)": following, FULL: filled})
wide = {DIVIDES: "(x.double() / n)", ".to(wire)": ""}
ex.mistake("wide", ex.costs("bytes"), wide).says("""
    It sends more bytes than the gradients take in the dtype of the wire.
    Hint: The result of `torch.cat` has the widest of the dtypes that go into it.
""")

# Answers to which the general sentences apply

ex.wrong("not in place", {f"{COPY}.view(x.shape))": "x.data = piece.view_as(x).to(x)"})
ex.wrong("costly", {FULL: "True"})
ex.wrong("native collective", {SUMS: "dist.all_reduce(flat)"})
ex.wrong("pattern", {SUMS: "pass"})
ex.right({DIVIDES: "(x.double() * (1 / n))", SUMS: "allreduce(flat, None)"})
ex.right({f"{COPY}.view(x.shape))": "x[...] = piece.reshape(x.shape)"})

ex.variation(
    "b",
    varied="direction: gradients come in the order of the backward pass",
    differs="It fills the buckets from the end of the list, not from its front.",
    given=lambda n, grads, *more: (grads[::-1], *more),
    says={
        "front": "It fills the buckets starting from the end of the list. Hint: Here "
        "the backward pass computes the gradients in the order of the list."
    },
)
