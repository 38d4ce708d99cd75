"""07.1 The mean over tokens."""

import copy
from functools import partial

import torch
from torch.nn import functional as F

from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, ranks
from ..signs import both, breaks, either
from .chapter_07 import batch, equal_nets, idle, near, ring_bytes, sizes, weights

NOTHING = -100  # the target where there is no token

# Sequences of each micro-batch, rank by rank, and how long they are.
WORLDS = [([[2]], 3), ([[1, 3]], 4), ([[2, 3], [3, 1]], 4)]
WORLDS += [([[1, 2], [4], [3, 1, 2]], 5), ([[2, 2], [2, 2], [2, 2], [2, 2]], 3)]
WORLDS += [([[3], [], [1, 1]], 4), ([[2, 0], [1], [], [3]], 3)]
WORLDS += [([[1], [2], [1, 1], [3], [2]], 4), ([[1], [2]], 3)]
MORE = {4: ", rank 1 has no token", 8: ", no .grad so far"}


def cases(rng):
    """Ranks with other numbers of micro-batches and tokens; some have none."""
    for i, (counts, length) in enumerate(WORLDS):
        data = [[sequences(rng, rows, length) for rows in mine] for mine in counts]
        if i == 4:
            data[1] = [(x, torch.full_like(y, NOTHING)) for x, y in data[1]]
        nets = equal_nets(rng, len(counts))
        for p in [p for net in nets for p in net.parameters() if i < 8]:
            p.grad = torch.full_like(p, 7.0)  # from the step before
        yield Case(
            len(counts),
            f"{ranks(len(counts))}, sequences in their micro-batches {counts}"
            + MORE.get(i, ""),
            inputs=list(zip(nets, data, strict=True)),
            truth=partial(mean, nets[0], data),
        )


def sequences(rng, rows, length):
    """x [rows, length, 4] and targets [rows, length] with padding at the ends."""
    x, y = batch(rng, rows, length)
    for row in range(rows):
        y[row, int(rng.integers(1, length + 1)) :] = NOTHING
    return x, y


def tokens(pairs):
    """How many targets of these micro-batches are tokens."""
    return sum(int((y != NOTHING).sum()) for _, y in pairs)


def mean(net, data, slip=""):
    """[loss, gradients, weights] of each rank, computed in one process."""
    net, n, total = copy.deepcopy(net), len(data), 0.0
    net.zero_grad()
    every = [pair for mine in data for pair in mine]
    for mine, (x, y) in [(part, pair) for part in data for pair in part]:
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
        total += loss.item()
        loss = loss * len(y) if slip == "sequences" else loss
        divisor = {
            "mean of means": tokens([(x, y)]) * len(mine) * n,
            "mean over ranks": tokens(mine) * n,
            "sequences": tokens([(x, y)]) * sum(len(y) for _, y in every),
            "padding": sum(y.numel() for _, y in every),
        }
        (loss / divisor.get(slip, tokens(every))).backward()
    loss = ... if slip else total / tokens(every)
    return [[loss, *(p.grad for p in net.parameters()), *weights(net)]] * n


def outcome(attempt, rank):
    """The loss that was returned, then all gradients, then all weights."""
    net = attempt.args[rank][0]
    return [attempt.values[rank], *(p.grad for p in net.parameters()), *weights(net)]


def empty(case):
    """Some rank or some micro-batch has no token."""
    parts = [(mine, *([pair] for pair in mine)) for _, mine in case.inputs]
    return any(tokens(pairs) == 0 for part in parts for pairs in part)


def right_from(attempt, k):
    """The outcome is wrong; its entry k and all later ones are right."""
    known = [[...] * k + wanted[k:] for wanted in attempt.case.expected]
    return signs.wrong(attempt) and attempt.gives(known)


def too_large(attempt):
    """All gradients are too large by one and the same number."""
    pairs = list(zip(attempt.came[0], attempt.case.expected[0], strict=True))
    grads = pairs[1 : 1 + len(sizes(attempt.case))]
    off = torch.cat([(came - wanted).flatten() for came, wanted in grads])
    return off.min() > 0.01 and off.max() - off.min() < 1e-9


def allowed(case):
    """Bytes of rings over the gradients and two numbers."""
    return ring_bytes([*sizes(case), 2], case.n)


BYTES = rows.bytes_sent(allowed, exactly=False)

exercise = Exercise(
    "07.1",
    cases,
    [BYTES, rows.from_messages()],
    {
        "weights moved": lambda a: (
            signs.wrong(a) and not right_from(a, 1 + len(sizes(a.case)))
        ),
        "old gradients": both(signs.wrong, too_large),
        **signs.slips("mean of means", "mean over ranks", "sequences", "padding"),
        "not a number": both(signs.only(empty), signs.not_a_number),
        "no micro-batch": both(
            signs.only(idle), either(signs.raises(BaseException), signs.hangs)
        ),
        "loss": signs.always(lambda a: right_from(a, 1)),
        "every micro-batch": both(
            breaks(BYTES), lambda a: min(a.run.bytes_sent) >= 1.5 * allowed(a.case)
        ),
        "bytes": breaks(BYTES),
    },
    outcome=outcome,
    agrees=near,
)
