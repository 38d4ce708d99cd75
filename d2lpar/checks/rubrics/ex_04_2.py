"""04.2 Mend three hangs."""

from functools import partial
from itertools import product

import torch

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, hangs, raises, violates, wrong
from .chapter_04 import BATCHED, SIZES, WAITED

PROGRAMS = "neighbours", "pair_sum", "collect"


def cases(rng):
    """Each program on 1 to 8 ranks; where tensors are collected, some are empty."""
    for program, n in product(PROGRAMS, SIZES):
        sizes, text, more = [3] * n, f"{program}, {ranks(n)}", ()
        if program == "collect":
            sizes = rng.integers(0, 3, size=n).tolist()
            sizes[n // 2] = 0
            text, more = f"{text}, sizes {sizes}", (sizes,)
        xs = [torch.from_numpy(rng.normal(size=size)) for size in sizes]
        messages = {
            "neighbours": [(r > 0) + (r < n - 1) for r in range(n)],
            "pair_sum": [int(r ^ 1 < n) for r in range(n)],
            "collect": [0, *[int(size > 0) for size in sizes[1:]]],
        }[program]
        yield Case(
            n,
            text,
            inputs=[(program, x.clone(), *more) for x in xs],
            facts={
                "program": program,
                "messages": sum(messages),
                "bytes": [m * x.nbytes for m, x in zip(messages, xs, strict=True)],
            },
            truth=partial(mended, program, xs),
        )


def mended(program, xs, slip=""):
    """What each rank returns."""
    n = len(xs)
    if program == "collect":
        return [[x for x in xs if len(x)], *[None] * (n - 1)]
    if program == "pair_sum":
        return [x + xs[r ^ 1] if r ^ 1 < n else x for r, x in enumerate(xs)]
    sides = [(xs[max(r - 1, 0)], xs[min(r + 1, n - 1)]) for r in range(n)]
    return [side[::-1] for side in sides] if slip == "sides swapped" else sides


def of(program):
    """This is a call of that program."""
    return lambda attempt: attempt.case.facts["program"] == program


def face_to_face(attempt):
    """Two ranks are in the same call, and each waits for the other."""
    waits = signs.waiting(attempt)
    return any((b, way, a) in waits for a, way, b in waits)


def over_nothing(attempt):
    """The first rank that waits does so because of an empty tensor."""
    rank, _, peer = signs.waiting(attempt)[0]
    return attempt.case.inputs[0][2][max(rank, peer)] == 0


MESSAGES = rows.messages(lambda case: case.facts["messages"])
BYTES = rows.bytes_sent(lambda case: case.facts["bytes"])

exercise = Exercise(
    "04.2",
    cases,
    [MESSAGES, BYTES, WAITED, BATCHED, rows.from_messages(), rows.untouched(1)],
    {
        "neighbours hangs": both(hangs, of("neighbours"), face_to_face),
        "pair_sum hangs": both(hangs, of("pair_sum"), face_to_face),
        "collect hangs": both(hangs, of("collect"), over_nothing),
        "no partner": both(
            raises(ValueError),
            signs.only(lambda c: c.facts["program"] == "pair_sum" and c.n % 2),
        ),
        "no wait": violates(WAITED),
        **signs.slips_somewhere("sides swapped"),
        "exchange gone": both(wrong, lambda a: sum(a.run.messages) == 0),
        "empty travels": both(
            breaks(MESSAGES),
            of("collect"),
            lambda a: sum(a.run.messages) == a.case.n - 1,
        ),
        "more messages": breaks(MESSAGES),
        "no batch": breaks(BATCHED),
    },
)
