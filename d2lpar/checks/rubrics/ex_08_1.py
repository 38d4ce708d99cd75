"""08.1 Half the bytes."""

import math
from functools import partial
from itertools import zip_longest

import torch

from ...allreduce import costs, ring_allreduce
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, Requirement, on_ranks, ranks
from ..signs import both, breaks

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
DTYPES = [FLOATS[i] for i in (0, 0, 1, 2, 0, 2, 1, 0)]
SHAPES = [(7, 6), (5,), (3, 9), (40,), (2, 2, 5), (11,), (6, 6), ()]
# Relative errors: of a term when it is rounded, of a sum of up to five of them.
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-6}


def cases(rng):
    """Gradients of three dtypes, some of them None; a few sizes of buckets."""
    worlds = [(1, torch.float32, 64), (2, torch.bfloat16, 200), (3, torch.float64, 0)]
    worlds += [(3, torch.float32, 300), (4, torch.bfloat16, 100_000)]
    worlds += [(4, torch.float16, 120), (5, torch.bfloat16, 150)]
    for n, wire, limit in worlds:
        shapes = [SHAPES[i] for i in rng.permutation(len(SHAPES))]
        yield case(rng, n, wire, limit, shapes, {1, 5} if n > 1 else {0})
    for limit, count in (24, 7), (25, 6):  # full to the byte, and a byte more
        yield case(rng, 2, torch.bfloat16, limit, [(2, 3)] * count, ())
    large = [[torch.full((3,), x)] for x in (1e5, 1e3)]  # their mean fits into float16
    yield case_of(large, torch.float16, 100)


def case(rng, n, wire, limit, shapes, nones):
    """Values whose sum is infinite in float16, if that is on the wire."""
    large, terms = wire is torch.float16, []  # of each gradient, one per rank
    for i, (shape, dtype) in enumerate(zip(shapes, DTYPES, strict=False)):
        values = rng.uniform(0.5, 1, size=(n, *shape)) * (3e4 if large else 1)
        values *= 1 if large else rng.choice([-1, 1], size=values.shape)
        tensors = [torch.tensor(x).to(dtype) for x in values]
        terms.append(None if i in nones else tensors)
    return case_of([[x and x[r] for x in terms] for r in range(n)], wire, limit)


def case_of(grads, wire, limit):
    """One call on each rank's gradients."""
    text = f"{ranks(len(grads))}, {str(wire)[6:]} on the wire, buckets of {limit:,}"
    return Case(
        len(grads),
        f"{text} bytes" + ", no gradient is None" * (None not in grads[0]),
        inputs=[(mine, wire, limit, ring_allreduce) for mine in grads],
        truth=partial(means, grads, wire),
    )


def means(grads, wire, slip=""):
    """The gradients of each rank afterwards."""
    parts = 1 if slip == "sum" else len(grads)
    found = []
    for terms in zip(*grads, strict=True):
        there = terms[0] is not None
        dtype = there and (wire if slip == "dtype" else terms[0].dtype)
        mean = there and sum(term.double() for term in terms) / parts
        found.append(mean.to(dtype) if there else None)
    return [found] * len(grads)


def agrees(came, wanted, case):
    """As many gradients, equal but for rounding."""
    if not isinstance(came, list) or len(came) != len(wanted):
        return False
    own, wire, _, _ = case.inputs[0]
    return all(near(*each, wire) for each in zip(came, wanted, own, strict=True))


def near(came, wanted, own, wire):
    """Both are None, or equal but for what rounding to one of the dtypes costs."""
    if wanted is None or not torch.is_tensor(came):
        return came is wanted
    if came.shape != wanted.shape or came.dtype != wanted.dtype:
        return False
    worst = max(ROUNDED.get(dtype, 1e-12) for dtype in (wire, own.dtype))
    off = (came.double() - wanted.double()).abs().max()
    return bool(off <= worst * max(1.0, wanted.double().abs().max()))


def buckets(case, slip=""):
    """The elements of each bucket, in the order in which they travel."""
    grads, wire, limit, _ = case.inputs[0]
    limit = {"one by one": 0, "all at once": math.inf}.get(slip, limit)
    found, size = [], math.inf  # so the first gradient begins a bucket
    for g in grads if slip == "from the front" else grads[::-1]:
        if g is None:
            continue
        more = g.numel() * (g.dtype if slip == "own bytes" else wire).itemsize
        full = size > limit if slip == "overfull" else size >= limit
        if size + more > limit if slip == "not filled" else full:
            found, size = [*found, 0], 0
        found[-1] += g.numel()
        size += more
    return found


def rings(case, slip=""):
    """Bytes that each rank sends, of each bucket."""
    n, item = case.n, case.inputs[0][1].itemsize
    for size in buckets(case, slip):
        chunks = costs.chunk_sizes(size, n)
        kept = [chunks[r] + chunks[(r + 1) % n] for r in range(n)]
        yield [(2 * size - k) * item for k in kept]


def cuts(attempt):
    """The buckets are as which slips make them?  "" makes none."""
    sent = [event.bytes for event in attempt.run.timeline.rows[0].get("send", [])]
    each = 2 * (attempt.case.n - 1) or 1
    came = sorted(sum(sent[i : i + each]) for i in range(0, len(sent), each))
    made = {x: sorted(r[0] for r in rings(attempt.case, x)) for x in ("", *SLIPS)}
    return [x for x in made if made[x] == came]


def cut(slip, attempt):
    """The buckets of a call are as this slip alone makes them, all as it does."""
    every = [a for a in attempt.attempts if a.right and a.case.n > 1]
    return cuts(attempt) == [slip] and all(slip in cuts(a) for a in every)


def infinite(attempt):
    """The outcome is wrong: a gradient is infinite, and the wire is float16."""
    if not signs.wrong(attempt) or attempt.case.inputs[0][1] is not torch.float16:
        return False
    grads = [g for came in attempt.came for g in came if torch.is_tensor(g)]
    return any(bool(g.isinf().any()) for g in grads)


def watched(fn, case, **options):
    """Tried by `run`; what comes back is how many gradients are in new tensors."""
    return on_ranks(partial(replaced, fn), case, **options)


def replaced(fn, grads, *more):
    before = list(grads)
    fn(grads, *more)
    return sum(x is not g for x, g in zip_longest(grads, before))


NONE = both(
    signs.raises(AttributeError, TypeError), lambda a: "NoneType" in str(a.cause)
)
MESSAGES = rows.messages(lambda case: len(buckets(case)) * case.n * 2 * (case.n - 1))
BYTES = rows.bytes_sent(lambda case: list(map(sum, zip(*rings(case), strict=True))))
KEPT = Requirement(
    "gradients in new tensors", lambda a: sum(a.values), lambda case: 0, vital=True
)
SLIPS = ["from the front", "own bytes", "not filled", "overfull"]
SLIPS += ["one by one", "all at once"]

exercise = Exercise(
    "08.1",
    cases,
    [KEPT, MESSAGES, BYTES, rows.same_bits(), rows.from_messages()],
    {
        "its result": both(NONE, lambda a: None not in a.case.inputs[0][0]),
        "none": both(NONE, signs.only(lambda case: None in case.inputs[0][0])),
        "left alone": signs.always(signs.left_alone(0)),
        "infinite": signs.always(infinite),
        **signs.slips("sum", "dtype"),
        "new tensors": breaks(KEPT),
        **{slip: both(signs.right, partial(cut, slip)) for slip in SLIPS},
        "wide": both(
            signs.always(MESSAGES.holds, breaks(BYTES)),
            lambda a: sum(a.run.bytes_sent) > 1.2 * sum(BYTES.allowed(a.case)),
        ),
    },
    outcome=lambda attempt, rank: attempt.args[rank][0],
    agrees=agrees,
    perform=watched,
)
