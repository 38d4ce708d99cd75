"""What the exercises of chapter 10 ask for."""

import functools
import math
from itertools import product

import torch

from ..judging import Case, Exercise, Mistake, ranks
from ..requirements import bytes_sent, extra_memory, untouched
from ..requirements import messages as messages_of
from ..signs import both, fails, gives, hangs, mismatched, right, wrong

RANKS = (1, 2, 3, 4, 5, 8)
SPARE = 512  # bytes that nobody counts


def _ring(n, elements, moves):
    """Bytes that a rank sends at most in so many moves of a ring."""
    return moves * (n - 1) * -(-elements // n) * 8


# 10.1 Clip by the global norm


def clip_cases(rng):
    """Long and short gradients, no gradient at all, empty shards."""
    sizes = {"even": [4, 3], "one shard": [9], "empty shards": [5, 0, 2]}
    for n, (kind, shards) in product(RANKS, sizes.items()):
        for factor in (0.5, 2.0):
            yield _clip_case(rng, n, f"{kind}, {factor:g} x the limit", shards, factor)
    for n in (1, 4):
        yield _clip_case(rng, n, "all zero", [3, 2], 0.0)
    yield _clip_case(rng, 3, "some gradients are None", [4, None, 3], 3.0)
    yield _clip_case(rng, 4, "larger shards", [30_000, 1000], 2.0)
    yield _clip_case(rng, 4, "large shards", [3000, 1000], 2.0)


def _clip_case(rng, n, kind, shards, factor):
    """`factor`: the global norm, in limits."""
    draw = lambda size: torch.from_numpy(rng.normal(size=size) * (factor > 0))
    grads = [[None if s is None else draw(s) for s in shards] for _ in range(n)]
    norm = math.sqrt(sum(float((x * x).sum()) for rank in grads for x in _there(rank)))
    limit = norm / factor if factor else 1.0
    share = min(1.0, limit / norm) if norm else 1.0
    wanted = [[None if x is None else share * x for x in rank] for rank in grads]
    copies = [[None if x is None else x.clone() for x in rank] for rank in grads]
    return Case(
        n,
        f"{ranks(n)}, {kind}",
        [(copies[r], limit) for r in range(n)],
        expected=[(norm, wanted[r]) for r in range(n)],
        facts={"grads": grads, "norm": norm, "limit": limit, "shards": shards},
        traced=30_000 in shards,
    )


def _there(tensors):
    return [x for x in tensors if x is not None]


def _norm_and_gradients(attempt, rank):
    return attempt.values[rank], attempt.args[rank][0]


def _clip_agrees(came, wanted, case):
    """The norm as a number of Python or torch; gradients to nine digits."""
    (norm, grads), (true_norm, true_grads) = came, wanted
    try:
        near = math.isclose(float(norm), true_norm, rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False
    return near and _all_close(grads, true_grads)


def _all_close(came, wanted):
    for a, b in zip(came, wanted, strict=True):
        if (a is None) != (b is None):
            return False
        if a is not None and not torch.allclose(a, b, rtol=1e-9, atol=1e-12):
            return False
    return True


def _largest_shard(case):
    return 8 * max(s for s in case.facts["shards"] if s is not None)


def _scaled_by(share):
    """Gradients are scaled by `share(case, rank)`, which is not 1 everywhere."""

    def so(attempt):
        case = attempt.case
        shares = [share(case, r) for r in range(case.n)]
        if not wrong(attempt) or shares == [1.0] * case.n:
            return False
        for r, (grads, _) in enumerate(attempt.args):
            before = case.facts["grads"][r]
            scaled = [x if x is None else shares[r] * x for x in before]
            if not _all_close(grads, scaled):
                return False
        return True

    return so


def _norms(case):
    return [
        math.sqrt(sum(float((x * x).sum()) for x in _there(rank)))
        for rank in case.facts["grads"]
    ]


def _clipped(norm, case):
    return min(1.0, case.facts["limit"] / norm) if norm else 1.0


def _by_own_norm(case, r):
    return _clipped(_norms(case)[r], case)


def _by_sum_of_norms(case, r):
    return _clipped(sum(_norms(case)), case)


def _by_mean_of_squares(case, r):
    return _clipped(case.facts["norm"] / math.sqrt(case.n), case)


def _stretched(case, r):
    return case.facts["limit"] / case.facts["norm"] if case.facts["norm"] else 1.0


def _not_a_number(attempt):
    if not wrong(attempt):
        return False
    return any(
        bool(x.isnan().any()) for grads, _ in attempt.args for x in _there(grads)
    )


def _many_collectives(attempt):
    return right(attempt) and len(_collectives(attempt)) > 1


def _collectives(attempt):
    """The collectives of rank 0, in order."""
    events = attempt.run.timeline.events if attempt.run else []
    return [e.name for e in events if e.rank == 0 and e.stream.startswith("comm")]


def _many_bytes(attempt):
    return right(attempt) and max(attempt.run.bytes_sent) > 16


def _only_returned(attempt):
    """The norm is right, and no gradient was touched."""
    if not wrong(attempt):
        return False
    pairs = zip(attempt.args, attempt.case.facts["grads"], strict=True)
    alike = all(_all_close(after, before) for (after, _), before in pairs)
    try:
        return alike and math.isclose(attempt.values[0], attempt.case.facts["norm"])
    except (TypeError, ValueError):
        return False


clip = Exercise(
    "10.1",
    "Clip by the global norm",
    clip_cases,
    [
        bytes_sent(lambda case: 16, exactly=False),
        messages_of(lambda case: 2 * case.n * (case.n - 1), exactly=False),
        extra_memory(lambda case: _largest_shard(case) + SPARE + case.noise),
    ],
    [
        Mistake(
            "not a number",
            _not_a_number,
            "Gradients that were all zero are not numbers any more.",
            "What is the limit divided by a norm of 0?",
        ),
        Mistake(
            "own norm",
            lambda a: a.case.n > 1 and _scaled_by(_by_own_norm)(a),
            "Each rank clips by the norm of its own shards.",
            "The ranks must agree on one factor: what do they have to add up?",
        ),
        Mistake(
            "sum of norms",
            lambda a: a.case.n > 1 and _scaled_by(_by_sum_of_norms)(a),
            "The norms of the ranks are added, and norms do not add.",
            "Their squares do.",
        ),
        Mistake(
            "mean",
            lambda a: a.case.n > 1 and _scaled_by(_by_mean_of_squares)(a),
            "The squares are averaged over the ranks, not added.",
            "Shards are different parts of one vector, not copies of it.",
        ),
        Mistake(
            "not in place",
            _only_returned,
            "The norm is right, and the gradients are as they were.",
            "`mul_` works in place, `x * factor` does not.",
        ),
        Mistake(
            "stretched",
            _scaled_by(_stretched),
            "A gradient that is short enough is made longer.",
            "The factor is never above 1.",
        ),
        Mistake(
            "several all-reduces",
            _many_collectives,
            "There are several all-reduces where one would do.",
            "Add up this rank's squares first, and send the sum.",
        ),
        Mistake(
            "whole gradient",
            _many_bytes,
            "More than one number is sent.",
            "Each rank knows the sum of its squares: that is one number.",
        ),
        Mistake(
            "None",
            both(fails, lambda a: "NoneType" in str(a.cause)),
            "It does not expect that a shard has no gradient.",
            "Frozen parameters have None: leave them out.",
        ),
    ],
    outcome=_norm_and_gradients,
    agrees=_clip_agrees,
)


# 10.2 Accumulate without extra traffic


def accumulate_cases(rng):
    """Micro-batches of unequal sizes; ranks may have fewer of them, or none."""
    plans = {
        "equal micro-batches": lambda r: [2, 2],
        "unequal micro-batches": lambda r: [1, 3 + r, 2],
        "rank 0 has no micro-batch": lambda r: [] if r == 0 else [2, 1],
    }
    for n, (kind, plan) in product(RANKS, plans.items()):
        if n == 1 and kind == "rank 0 has no micro-batch":
            continue
        k = 3
        w = torch.from_numpy(rng.normal(size=n * k))
        batches = [
            [torch.from_numpy(rng.normal(size=(rows, n * k))) for rows in plan(r)]
            for r in range(n)
        ]
        yield _accumulate_case(n, k, kind, w, batches)


def _gradient(w, x):
    """Of the sum over rows of (x w)^2, by w."""
    return 2 * x.T @ (x @ w)


def _accumulate_case(n, k, kind, w, batches):
    rows = sum(len(x) for rank in batches for x in rank)
    whole = sum(_gradient(w, x) for rank in batches for x in rank) / rows
    return Case(
        n,
        f"{ranks(n)}, {kind}, {rows} rows in all",
        [(w.clone(), batches[r], rows) for r in range(n)],
        expected=list(whole.split(k)),
        facts={"w": w, "batches": batches, "rows": rows, "k": k},
    )


def _shards(case, whole):
    return list(whole.split(case.facts["k"]))


def _mean_of_means(case):
    w, each = case.facts["w"], case.facts["batches"]
    found = [
        sum(_gradient(w, x) / len(x) for x in rank) / len(rank)
        if rank
        else torch.zeros_like(w)
        for rank in each
    ]
    return _shards(case, sum(found) / case.n)


def _last_only(case):
    w, each = case.facts["w"], case.facts["batches"]
    found = [_gradient(w, rank[-1]) for rank in each if rank]
    return _shards(case, sum(found) / case.facts["rows"])


def _own_rows(case):
    """Each rank divides by its own rows, and the sum is taken."""
    w, each = case.facts["w"], case.facts["batches"]
    found = [
        sum(_gradient(w, x) for x in rank) / sum(map(len, rank))
        for rank in each
        if rank
    ]
    return _shards(case, sum(found))


def _traffic(case):
    return _ring(case.n, case.n * case.facts["k"], 1)


def _reduces_each(attempt):
    many = [name for name in _collectives(attempt) if name == "reduce_scatter"]
    return right(attempt) and len(many) > 1


def _all_reduces(attempt):
    return "all_reduce" in _collectives(attempt)


accumulate = Exercise(
    "10.2",
    "Accumulate without extra traffic",
    accumulate_cases,
    [
        bytes_sent(_traffic, exactly=False),
        messages_of(lambda case: case.n * (case.n - 1), exactly=False),
        untouched(0),
    ],
    [
        Mistake(
            "absent",
            lambda a: (
                (hangs(a) or mismatched(a) or a.error is not None)
                and "rank 0 has no micro-batch" in a.case.text
            ),
            "A rank without micro-batches does not take part, or fails.",
            "All ranks call the collective, also one whose gradient is zero.",
        ),
        Mistake(
            "mean of means",
            gives(_mean_of_means),
            "It is the mean of the micro-batches' means, and they differ in size.",
            "Sum over rows, and divide once by the rows of all.",
        ),
        Mistake(
            "last only",
            gives(_last_only),
            "Only the last micro-batch of each rank counts.",
            "`backward` adds to what is there. Who sets it back?",
        ),
        Mistake(
            "own rows",
            gives(_own_rows),
            "Each rank divides by its own rows, and then the sum is taken.",
            "`rows` counts the rows of all ranks.",
        ),
        Mistake(
            "each time",
            _reduces_each,
            "Every micro-batch is reduced by itself: m times the traffic.",
            "Sums can be added before they travel.",
        ),
        Mistake(
            "all-reduce",
            both(right, _all_reduces),
            "An all-reduce gives everyone the whole: twice the bytes that are needed.",
            "Each rank wants its shard only.",
        ),
    ],
    agrees=lambda came, wanted, case: (
        torch.is_tensor(came)
        and came.shape == wanted.shape
        and torch.allclose(came, wanted, rtol=1e-9, atol=1e-12)
    ),
)


# 10.3 Which stage?


def stage_cases(rng, state=12):
    """Models of some units, on cards where another stage fits each time.

    The optimizer holds `state` bytes an element.
    """
    need = functools.partial(_need, state=state)
    for _ in range(40):
        units = [int(x) for x in rng.integers(1, 3000, size=rng.integers(1, 7))]
        n = int(rng.choice([1, 2, 3, 4, 7, 8, 64]))
        needs = [need(units, n, stage) for stage in (1, 2, 3)]
        target = int(rng.integers(0, 4))  # the stage that just fits; 0: none
        card = needs[target - 1] if target else min(needs) - 1
        yield Case(
            1,
            f"units of {units}, n = {n}, a card of {card:,} bytes",
            [(units, n, card)],
            expected=[_choice(units, n, card, need, _sent)],
            facts={"units": units, "n": n, "card": card, "state": state},
        )


def _cut(size, n):
    return -(-size // n)


def _need(units, n, stage, pad=True, working=True, largest=max, state=12):
    """Bytes that a rank needs; the keywords leave something out."""
    shard = sum(_cut(size, n) for size in units) if pad else sum(units) / n
    whole = n * shard
    held = (
        2 * (shard if stage == 3 else whole)
        + 2 * (shard if stage >= 2 else whole)
        + state * shard
    )
    unit = n * _cut(largest(units), n) if pad else largest(units)
    return held + 2 * unit * {1: 0, 2: 2, 3: 4}[stage] * working


def _sent(units, n, stage):
    return (n - 1) * 2 * (3 if stage == 3 else 2) * sum(_cut(s, n) for s in units)


def _choice(units, n, card, need, sent, order=(1, 2, 3)):
    for stage in order:
        if need(units, n, stage) <= card:
            return stage, need(units, n, stage), sent(units, n, stage)
    return None


def _would(case, order=(1, 2, 3), **changes):
    facts = case.facts
    need = functools.partial(_need, state=facts["state"], **changes)
    return _choice(facts["units"], facts["n"], facts["card"], need, _sent, order)


def _answers(order=(1, 2, 3), **changes):
    """The outcome is wrong, and it is what this way gives."""
    return gives(lambda case: [_would(case, order, **changes)])


def _same_choice(came, wanted, case):
    if wanted is None or came is None:
        return came is wanted
    try:
        return [float(x) for x in came] == [float(x) for x in wanted]
    except (TypeError, ValueError):
        return False


def _traffic_wrong(attempt):
    came, wanted = attempt.came and attempt.came[0], attempt.case.expected[0]
    both_there = isinstance(came, tuple) and len(came) == 3 and wanted is not None
    return wrong(attempt) and both_there and tuple(came[:2]) == tuple(wanted[:2])


choose = Exercise(
    "10.3",
    "Which stage?",
    stage_cases,
    [],
    [
        Mistake(
            "leanest",
            _answers((3, 2, 1)),
            "It takes the stage that needs the least, though one with less to do fits.",
            "Try the stages from 1 on, and stop at the first that fits.",
        ),
        Mistake(
            "no padding",
            _answers(pad=False),
            "The shards are not rounded up: n rarely divides a unit.",
            "A shard of a unit has ceil(size / n) elements, and n of them are whole.",
        ),
        Mistake(
            "held only",
            _answers(working=False),
            "It counts what is held, and not what is whole while the ranks work.",
            "Stages 2 and 3 need room for units that are whole for a moment.",
        ),
        Mistake(
            "bytes sent",
            _traffic_wrong,
            "Stage and memory are right, the bytes sent are not.",
            "A move sends n-1 shards. How many moves has the stage?",
        ),
    ],
    agrees=_same_choice,
    processes=(),
)


EXERCISES = [clip, accumulate, choose]
