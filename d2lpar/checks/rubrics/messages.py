"""What the exercises of chapter 04 ask for: shift and mend here, three elsewhere."""

from itertools import product

import torch

from ..judging import Case, Exercise, Mistake, ranks
from ..requirements import (
    all_waited,
    bytes_sent,
    from_messages,
    messages,
    rounds,
    untouched,
)
from ..signs import both, gives, hangs, raises, right
from ..tasks import free
from .waiting import cycles
from .weighing import weigh

SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
SHAPES = (
    (torch.float64, (1,)),
    (torch.float32, (2, 3)),
    (torch.int64, (5,)),
    (torch.bool, (3,)),
    (torch.complex64, (2, 1, 2)),
    (torch.int64, ()),
)


def _forgets_to_wait(attempt):
    """It ended, and some message was started for which nobody waited."""
    return attempt.error is None and attempt.run.unwaited > 0


# 04.1 Shift by k


def shift_cases(rng):
    """Any k: 0, negative, n and more; tensors of several shapes and types."""
    for n in SIZES:
        for i, k in enumerate((0, 1, 2, -1, n + 3, -1, -2 * n, n + 1)):
            dtype, shape = SHAPES[i % len(SHAPES)]
            xs = [_drawn(rng, shape, dtype) for _ in range(n)]
            kind = str(dtype).removeprefix("torch.")
            yield Case(
                n,
                f"{ranks(n)}, k = {k}, x is {kind} {list(shape)}",
                inputs=[(x.clone(), k) for x in xs],
                expected=[xs[(r - k) % n] for r in range(n)],
                facts={"k": k, "xs": xs},
            )


def _drawn(rng, shape, dtype):
    """A tensor of any kind; integers with more digits than a float has."""
    if dtype == torch.bool:
        return torch.tensor(rng.integers(0, 2, shape)).bool()
    if dtype.is_complex:
        return torch.tensor(rng.normal(size=(*shape, 2)) @ [1, 1j]).to(dtype)
    return torch.tensor(rng.integers(-(2**60), 2**60, shape)).to(dtype)


def _moves(case):
    """Whether anything has to travel."""
    return case.facts["k"] % case.n != 0


def _shift_bytes(case):
    return _moves(case) * case.facts["xs"][0].nbytes


def _other_way(case):
    xs, k = case.facts["xs"], case.facts["k"]
    return [xs[(r + k) % case.n] for r in range(case.n)]


def _overwrites(attempt):
    return attempt.error is None and not untouched(0).holds(attempt)


shift = Exercise(
    "04.1",
    "Shift by k",
    shift_cases,
    [
        messages(lambda case: _moves(case) * case.n),
        bytes_sent(_shift_bytes),
        rounds(lambda case: int(_moves(case))),
        all_waited(),
        from_messages(),
        untouched(0),
    ],
    [
        Mistake(
            "itself",
            both(raises(ValueError), lambda a: not _moves(a.case)),
            "Where k mod n is 0, a rank tries to send to itself.",
            "Nothing has to travel then: return before any message.",
        ),
        Mistake(
            "no mod",
            both(raises(ValueError), lambda a: _moves(a.case)),
            "It names a rank that does not exist, or itself.",
            "Ranks count round: after n-1 comes 0. `%` does that, also below 0.",
        ),
        Mistake(
            "all send first",
            hangs,
            "Ranks in a circle do the same first, and wait for each other.",
            "For some k every order of blocking calls hangs or takes long. Let a send "
            "and a receive be under way at once.",
        ),
        Mistake(
            "no wait",
            _forgets_to_wait,
            "It starts a message and never waits for it.",
            "Both `isend` and `irecv` return a work. Wait for each of them.",
        ),
        Mistake(
            "overwrites",
            _overwrites,
            "It receives into the tensor that it sends, so `x` is changed.",
            "`torch.empty_like(x)` makes room for what comes.",
        ),
        Mistake(
            "direction",
            gives(_other_way),
            "It shifts the other way: rank r gets what rank r+k had.",
            "Rank r sends to r+k. From whom does it receive?",
        ),
        Mistake(
            "step by step",
            both(right, lambda a: sum(a.run.messages) > a.case.n),
            "It goes to rank r+k in several steps, each a message of its own.",
            "A rank can send to any other, not only to its neighbour.",
        ),
        Mistake(
            "in turns",
            both(right, lambda a: a.run.rounds > 1),
            "It is right, but some ranks receive before they send: that takes rounds.",
            "In one round every rank sends and receives at the same time.",
        ),
    ],
)


# 04.2 Mend three hangs


def mended_cases(rng):
    """Each program on 1 to 8 ranks; where tensors are collected, some are empty."""
    for program, n in product(TRUTHS, SIZES):
        sizes = [3] * n
        if program == "collect":
            sizes = [int(size) for size in rng.integers(0, 3, size=n)]
            sizes[n // 2] = 0
        xs = [torch.from_numpy(rng.normal(size=size)) for size in sizes]
        more = (sizes,) if program == "collect" else ()
        text = f"{program}, {ranks(n)}" + (f", sizes {sizes}" if more else "")
        yield Case(
            n,
            text,
            inputs=[(program, x.clone(), *more) for x in xs],
            expected=TRUTHS[program](xs),
            facts={"program": program, "xs": xs},
        )


def _neighbours(xs):
    n = len(xs)
    return [(xs[max(r - 1, 0)], xs[min(r + 1, n - 1)]) for r in range(n)]


def _pair_sum(xs):
    return [x + xs[r ^ 1] if r ^ 1 < len(xs) else x for r, x in enumerate(xs)]


def _collect(xs):
    return [[x for x in xs if len(x)], *[None] * (len(xs) - 1)]


TRUTHS = {"neighbours": _neighbours, "pair_sum": _pair_sum, "collect": _collect}


def _mended_messages(case):
    """How many messages each rank sends."""
    n, xs = case.n, case.facts["xs"]
    return {
        "neighbours": [(r > 0) + (r < n - 1) for r in range(n)],
        "pair_sum": [int(r ^ 1 < n) for r in range(n)],
        "collect": [int(r > 0 and len(xs[r]) > 0) for r in range(n)],
    }[case.facts["program"]]


def _mended_bytes(case):
    xs = case.facts["xs"]
    return [m * x.nbytes for m, x in zip(_mended_messages(case), xs, strict=True)]


def _own(case):
    """What the programs return when nothing comes."""
    xs = case.facts["xs"]
    alone = {
        "neighbours": [(x, x) for x in xs],
        "pair_sum": xs,
        "collect": [[x for x in xs[:1] if len(x)], *[None] * (case.n - 1)],
    }
    return alone[case.facts["program"]]


def _of(program):
    return lambda attempt: attempt.case.facts["program"] == program


def _more_messages(attempt):
    return sum(attempt.run.messages) > sum(_mended_messages(attempt.case))


def _both_ways(case):
    return [(b, a) for a, b in _neighbours(case.facts["xs"])]


mended = Exercise(
    "04.2",
    "Mend three hangs",
    mended_cases,
    [
        messages(lambda case: sum(_mended_messages(case))),
        bytes_sent(_mended_bytes),
        all_waited(),
        from_messages(),
        untouched(1),
    ],
    [
        Mistake(
            "neighbours hangs",
            both(hangs, _of("neighbours")),
            "In `neighbours`, ranks side by side do the same first and wait for each "
            "other.",
            "The four calls are the right ones. Which order lets the last rank of the "
            "line receive at once?",
        ),
        Mistake(
            "pair_sum hangs",
            both(hangs, _of("pair_sum")),
            "In `pair_sum`, both partners wait for a message before they start the "
            "next one.",
            "`isend(...).wait()` is `send`. Start both messages, then wait for both.",
        ),
        Mistake(
            "collect hangs",
            both(hangs, _of("collect")),
            "In `collect`, rank 0 and another rank disagree about whether an empty "
            "tensor travels.",
            "Rank 0 knows `sizes`: it can tell who sends nothing.",
        ),
        Mistake(
            "no partner",
            both(raises(ValueError), _of("pair_sum")),
            "In `pair_sum`, the last of an odd number of ranks has no partner.",
            "What does `r ^ 1` give for rank 2 of 3?",
        ),
        Mistake(
            "no wait",
            _forgets_to_wait,
            "It starts a message and never waits for it.",
            "A program that does not hang because nobody waits is not mended.",
        ),
        Mistake(
            "exchange gone",
            gives(_own),
            "It no longer hangs, but nothing arrives any more.",
            "The messages are what the program is for. Keep them, in another order.",
        ),
        Mistake(
            "sides swapped",
            both(_of("neighbours"), gives(_both_ways)),
            "In `neighbours`, left and right have changed places.",
        ),
        Mistake(
            "empty travels",
            both(right, _more_messages, _of("collect")),
            "In `collect`, empty tensors travel too; a message costs alpha even so.",
            "Mend the side that waits, not the side that is silent.",
        ),
        Mistake(
            "more messages",
            both(right, _more_messages),
            "It is right, but it sends more messages than the program that hangs.",
            "The messages are the right ones. Only their order is not.",
        ),
    ],
)


EXERCISES = [shift, mended, cycles, weigh, free]
