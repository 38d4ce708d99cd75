"""What the exercises of chapter 07 ask for."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from ..judging import Case, Exercise, Mistake, Requirement, ranks
from ..requirements import bytes_sent, from_messages, messages
from ..signs import both, hangs, raises, right, wrong

ITEM = 8  # bytes of a float64
NOTHING = -100  # the target where there is no token
CLASSES = 5


def _net(seed):
    """A small net in float64: 4 inputs, 5 classes."""
    torch.manual_seed(seed)
    layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)
    return nn.Sequential(*layers).double()


def _nets(rng, n):
    """n equal nets; the caller's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        net = _net(int(rng.integers(2**31)))
    return [copy.deepcopy(net) for _ in range(n)]


def _near(came, wanted):
    """Equal in kind and shape, and in value to 1e-10."""
    if torch.is_tensor(wanted):
        alike = torch.is_tensor(came) and came.shape == wanted.shape
        return alike and torch.allclose(came.double(), wanted, rtol=1e-9, atol=1e-10)
    if isinstance(wanted, list):
        alike = isinstance(came, list) and len(came) == len(wanted)
        return alike and all(map(_near, came, wanted))
    try:
        return math.isclose(came, wanted, rel_tol=1e-9, abs_tol=1e-10)
    except (TypeError, ValueError, RuntimeError):
        return False


def _ring_bytes(sizes, n):
    """Most bytes that a rank of rings over tensors of these sizes sends."""
    return sum(2 * (n - 1) * -(-size // n) * ITEM for size in sizes)


def _sizes(case):
    return [p.numel() for p in case.inputs[0][0].parameters()]


def _weights(net):
    return [p.detach().clone() for p in net.parameters()]


# 07.1 The mean over tokens

# Sequences of each micro-batch, rank by rank; the last number of a world is the length.
WORLDS = [
    ([[2]], 3),
    ([[1, 3]], 4),
    ([[2, 3], [3, 1]], 4),
    ([[1, 2], [4], [3, 1, 2]], 5),
    ([[2, 2], [2, 2], [2, 2], [2, 2]], 3),
    ([[3], [], [1, 1]], 4),
    ([[2, 0], [1], [], [3]], 3),
    ([[1], [2], [1, 1], [3], [2]], 4),
]


def token_cases(rng):
    """Ranks with other numbers of micro-batches and tokens; some have none."""
    for i, (counts, length) in enumerate(WORLDS):
        n, data = len(counts), []
        for mine in counts:
            data.append([_sequences(rng, rows, length) for rows in mine])
        if i == 4:
            data[1] = [(x, torch.full_like(y, NOTHING)) for x, y in data[1]]
        nets = _nets(rng, n)
        for net in nets:
            for p in net.parameters():  # from the step before
                p.grad = torch.full_like(p, 7.0)
        sums = [[_summed(nets[0], *pair) for pair in mine] for mine in data]
        truth = _combined(sums, lambda part, whole: 1 / whole["tokens"])
        loss = sum(s["loss"] for mine in sums for s in mine)
        loss /= sum(s["tokens"] for mine in sums for s in mine)
        text = f"{ranks(n)}, sequences in their micro-batches {counts}"
        yield Case(
            n,
            text + ", rank 1 has no token" * (i == 4),
            inputs=[(net, mine) for net, mine in zip(nets, data, strict=True)],
            expected=[[loss, *truth, *_weights(nets[0])]] * n,
            facts={"sums": sums, "steps": max(map(len, counts))},
        )


def _sequences(rng, rows, length):
    """(x [rows, length, 4], targets [rows, length]) with padding at the ends."""
    x = torch.from_numpy(rng.normal(size=(rows, length, 4)))
    y = torch.from_numpy(rng.integers(CLASSES, size=(rows, length)))
    for row in range(rows):
        y[row, int(rng.integers(1, length + 1)) :] = NOTHING
    return x, y


def _summed(net, x, y):
    """Sums over one micro-batch: loss, gradients, tokens, sequences, positions."""
    net = copy.deepcopy(net)
    net.zero_grad()
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum")
    loss.backward()
    return {
        "loss": loss.item(),
        "grads": [p.grad for p in net.parameters()],
        "tokens": int((y != NOTHING).sum()),
        "rows": len(y),
        "places": y.numel(),
    }


def _combined(sums, weight):
    """The gradients of all parts, each times weight(part, totals of all ranks)."""
    parts = [(part, mine) for mine in sums for part in mine]
    whole = {k: sum(part[k] for part, _ in parts) for k in ("tokens", "rows", "places")}
    whole |= {"n": len(sums), "parts": len(parts)}
    total = [torch.zeros_like(g) for g in parts[0][0]["grads"]]
    for part, mine in parts:
        of_rank = sum(p["tokens"] for p in mine)
        w = weight(part | {"of_rank": of_rank, "m": len(mine)}, whole)
        for t, g in zip(total, part["grads"], strict=True):
            t += w * g
    return total


def _like(weight):
    """The gradients are those with this weight for each micro-batch."""

    def ask(attempt):
        sums = attempt.case.facts["sums"]
        tokens = [part["tokens"] for mine in sums for part in mine]
        if not wrong(attempt) or not all(sums) or 0 in tokens:
            return False
        fake = _combined(sums, weight)
        if _near(fake, attempt.case.expected[0][1 : 1 + len(fake)]):
            return False  # here this mistake makes no difference
        return all(_near(came[1 : 1 + len(fake)], fake) for came in attempt.came)

    return ask


def _token_outcome(attempt, rank):
    """The loss that was returned, then all gradients, then all weights."""
    parameters = list(attempt.args[rank][0].parameters())
    grads = [p.grad for p in parameters]
    return [attempt.values[rank], *grads, *(p.detach() for p in parameters)]


def _only_loss(attempt):
    """All is right but the number that is returned."""
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return wrong(attempt) and all(_near(a[1:], b[1:]) for a, b in pairs)


def _stale(attempt):
    """The gradients are right plus what `.grad` held before."""
    if not wrong(attempt):
        return False
    count = len(_sizes(attempt.case))
    for came, wanted in zip(attempt.came, attempt.case.expected, strict=True):
        for a, b in zip(came[1 : 1 + count], wanted[1 : 1 + count], strict=True):
            if a is None or a.shape != b.shape or not (a - b).min() > 0.01:
                return False
    return True


def _not_finite(attempt):
    grads = [t for came in attempt.came or [] for t in came[1:]]
    return any(torch.is_tensor(t) and not t.isfinite().all() for t in grads)


def _stepped(attempt):
    """The weights have moved."""
    if not wrong(attempt):
        return False
    count = len(_sizes(attempt.case))
    pairs = zip(attempt.came, attempt.case.expected, strict=True)
    return any(not _near(a[1 + count :], b[1 + count :]) for a, b in pairs)


def _nothing_there(attempt):
    """Some rank has no micro-batch."""
    return not all(attempt.case.facts["sums"])


def _token_bytes(case):
    return _ring_bytes([*_sizes(case), 2], case.n)


def _too_much(attempt):
    return right(attempt) and max(attempt.run.bytes_sent) > _token_bytes(attempt.case)


def _per_micro_batch(attempt):
    """The gradients have gone round once for each micro-batch."""
    case = attempt.case
    if not attempt.right or case.n < 2:
        return False
    return min(attempt.run.bytes_sent) >= 1.5 * _token_bytes(case)


tokens = Exercise(
    "07.1",
    "The mean over tokens",
    token_cases,
    [bytes_sent(_token_bytes, exactly=False), from_messages()],
    [
        Mistake(
            "weights moved",
            _stepped,
            "The weights have changed; only the gradients are asked for.",
        ),
        Mistake(
            "old gradients",
            _stale,
            "The gradients of the step before are still in it.",
            "`.grad` holds something when your function is called.",
        ),
        Mistake(
            "mean of means",
            _like(lambda part, whole: 1 / part["tokens"] / part["m"] / whole["n"]),
            "It is a mean of means: micro-batches with few tokens count as much as "
            "those with many.",
            "Sum the losses; divide once, by the number of all tokens.",
        ),
        Mistake(
            "mean over ranks",
            _like(lambda part, whole: 1 / part["of_rank"] / whole["n"]),
            "Each rank's mean is right, and then all ranks count the same.",
            "A rank with twice the tokens has twice the weight.",
        ),
        Mistake(
            "sequences",
            _like(lambda part, whole: part["rows"] / part["tokens"] / whole["rows"]),
            "It weighs by sequences, but a sequence may have one token or many.",
            "What is counted in the mean is tokens.",
        ),
        Mistake(
            "padding",
            _like(lambda part, whole: 1 / whole["places"]),
            "It divides by all places, also by those without a token.",
            "Count the targets that are not -100.",
        ),
        Mistake(
            "not a number",
            _not_finite,
            "A gradient is NaN where a rank or a micro-batch has no token.",
            "The mean over no tokens is 0/0. A sum over none is 0.",
        ),
        Mistake(
            "no micro-batch",
            both(
                _nothing_there,
                lambda a: raises(BaseException)(a) or hangs(a),
            ),
            "It fails where a rank has no micro-batch.",
            "Such a rank has gradients, too: zeros. The others wait for them.",
        ),
        Mistake(
            "loss",
            _only_loss,
            "The gradients are right, but the number returned is not the mean loss "
            "over the tokens of all ranks.",
            "Two numbers can travel together, in float64: the sum of the losses and "
            "the tokens.",
        ),
        Mistake(
            "every micro-batch",
            _per_micro_batch,
            "The gradients travel for each micro-batch.",
            "Gradients add up in `.grad`. One all-reduce at the end is enough.",
        ),
        Mistake(
            "bytes",
            _too_much,
            "Some rank sends more than a ring of the gradients and two numbers.",
        ),
    ],
    outcome=_token_outcome,
    agrees=lambda came, wanted, case: _near(came, wanted),
)


# 07.2 The last batches

RATE = 0.5
COUNTS = [[2], [2, 2], [1, 2], [3, 1], [2, 0], [2, 1, 3], [1, 4, 0, 2], [1, 1, 2, 3, 1]]


def last_cases(rng):
    """Ranks with other numbers of batches, of other numbers of rows."""
    for counts in COUNTS:
        n = len(counts)
        data = [[_rows(rng) for _ in range(count)] for count in counts]
        nets = _nets(rng, n)
        yield Case(
            n,
            f"{ranks(n)} with {counts} batches",
            inputs=[(net, mine, RATE) for net, mine in zip(nets, data, strict=True)],
            expected=[_trained(nets[0], data, _by_rows)] * n,
            facts={"data": data, "net": copy.deepcopy(nets[0]), "counts": counts},
        )


def _rows(rng):
    N = int(rng.integers(1, 6))
    x = torch.from_numpy(rng.normal(size=(N, 4)))
    return x, torch.from_numpy(rng.integers(CLASSES, size=N))


def _by_rows(sizes, n):
    """Each rank's mean counts as its rows do."""
    return [size / sum(sizes) for size in sizes]


def _trained(net, data, weigh, steps=max, pad=False):
    """The weights of one device after all steps; `weigh` gives the ranks' weights."""
    net = copy.deepcopy(net)
    for k in range(steps(map(len, data))):
        if pad:
            active = [mine[min(k, len(mine) - 1)] for mine in data if mine]
        else:
            active = [mine[k] for mine in data if k < len(mine)]
        net.zero_grad()
        sizes = [len(y) for _, y in active]
        for (x, y), w in zip(active, weigh(sizes, len(data)), strict=True):
            (w * F.cross_entropy(net(x), y)).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= RATE * (p.grad if p.grad is not None else 0)
    return _weights(net)


def _trained_like(weigh, **change):
    """All ranks have the weights of this other training."""

    def ask(attempt):
        if not wrong(attempt):
            return False
        facts = attempt.case.facts
        fake = _trained(facts["net"], facts["data"], weigh, **change)
        return all(_near(came, fake) for came in attempt.came)

    return ask


def _differ(attempt):
    """Ranks end with different weights."""
    came = attempt.came or []
    return wrong(attempt) and not all(_near(c, came[0]) for c in came)


def _uneven(attempt):
    return len(set(attempt.case.facts["counts"])) > 1


def _small(case):
    """All-reduces of up to n numbers that are allowed: one a step, and one more."""
    return max(case.facts["counts"]) + 1


def _last_bytes(case):
    steps = max(case.facts["counts"])
    gradients = steps * _ring_bytes(_sizes(case), case.n)
    return gradients + _small(case) * _ring_bytes([case.n], case.n)


def _last_messages(case):
    steps = max(case.facts["counts"])
    tensors = steps * len(_sizes(case)) + _small(case)
    return tensors * 2 * (case.n - 1) * case.n


def _many(attempt):
    case = attempt.case
    sent = max(attempt.run.bytes_sent) > _last_bytes(case)
    return attempt.right and (sent or sum(attempt.run.messages) > _last_messages(case))


last = Exercise(
    "07.2",
    "The last batches",
    last_cases,
    [
        bytes_sent(_last_bytes, exactly=False),
        messages(_last_messages, exactly=False),
        from_messages(),
    ],
    [
        Mistake(
            "no batch at all",
            both(lambda a: 0 in a.case.facts["counts"], raises(BaseException)),
            "It fails where a rank has no batch at all.",
            "Such a rank has no gradient yet. The others wait for its zeros.",
        ),
        Mistake(
            "runs out",
            both(hangs, _uneven),
            "A rank that has no batch left stops, and the others wait for it.",
            "It must take part, with zeros, until nobody has a batch left. How does "
            "it know?",
        ),
        Mistake(
            "too few steps",
            _trained_like(_by_rows, steps=min),
            "Training ends when the first rank has no batch left.",
            "The rows of the others are lost. Who has the most batches?",
        ),
        Mistake(
            "again",
            _trained_like(_by_rows, pad=True),
            "A rank that has no batch left takes its last one again.",
            "Its rows then count twice. It should add nothing.",
        ),
        Mistake(
            "all ranks",
            both(_uneven, _trained_like(lambda sizes, n: [1 / n] * len(sizes))),
            "It divides by the number of ranks, also of those without a batch.",
            "Divide by the rows of this step, over all ranks.",
        ),
        Mistake(
            "mean of means",
            both(
                _uneven,
                _trained_like(lambda sizes, n: [1 / len(sizes)] * len(sizes)),
            ),
            "Every rank with a batch counts the same, however many rows it has.",
            "Sum the losses, and divide by the rows of this step over all ranks.",
        ),
        Mistake(
            "replicas differ",
            _differ,
            "The ranks end with different weights.",
            "Every rank makes every step, also one without rows.",
        ),
        Mistake(
            "talk",
            _many,
            "It sends more than the gradients and a small tensor a step, and one more.",
            "The rows of this step can tell two things: the divisor, and whether "
            "anybody had a batch.",
        ),
    ],
    outcome=lambda attempt, rank: _weights(attempt.args[rank][0]),
    agrees=lambda came, wanted, case: _near(came, wanted),
)


# 07.3 How many ranks, which batch?


def plan_cases(rng):
    """Nets and links of many kinds; the curve of steps has a bend."""
    for i in range(10):
        bend = float(_log_uniform(rng, 16, 512))
        floor = float(_log_uniform(rng, 50, 500))
        steps = {
            2**k: math.ceil(floor * (1 + bend / 2**k)) for k in range(2, 12 + i % 3)
        }
        row = _log_uniform(rng, 2e-6, 2e-3)
        S = int(_log_uniform(rng, 1e4, 1e9))
        alpha, beta = _log_uniform(rng, 2e-6, 2e-4), _log_uniform(rng, 3e-12, 1e-9)
        most = (1, 2, 8, 16, 64, 6, 100, 32, 256, 12)[i]
        arguments = (steps, row, S, most, alpha, beta)
        found = _best(*arguments)
        yield Case(
            1,
            f"up to {ranks(most)}, {row * 1e6:.3g} us a row, S = {S:,} bytes",
            inputs=[arguments],
            expected=[found],
            facts={"arguments": arguments, "best": found[2]},
        )


def _log_uniform(rng, low, high):
    """A number between the two, its logarithm uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _ring_seconds(n, S, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * S / n)


def _total(n, B, steps, row, S, alpha, beta, link=_ring_seconds, share=None):
    """Seconds to the target on n ranks with B rows in a batch."""
    mine = math.ceil(B / n) if share is None else share(B, n)
    return steps[B] * (mine * row + link(n, S, alpha, beta))


def _best(steps, row, S, most, alpha, beta, **change):
    """(n, B, seconds) of the fastest choice."""
    seconds, n, B = min(
        (_total(n, B, steps, row, S, alpha, beta, **change), n, B)
        for n in range(1, most + 1)
        for B in steps
    )
    return n, B, seconds


def _choice(attempt):
    """(n, B, seconds) where it is such a triple of a known batch, else None."""
    came, (steps, _, _, most, *_) = attempt.values[0], attempt.case.facts["arguments"]
    if not isinstance(came, list | tuple) or len(came) != 3:
        return None
    n, B, seconds = came
    whole = all(isinstance(k, int) and not isinstance(k, bool) for k in (n, B))
    if not whole or B not in steps or not 1 <= n <= most:
        return None
    try:
        return n, B, float(seconds)
    except (TypeError, ValueError, RuntimeError):
        return None


def _true_seconds(attempt):
    n, B, _ = _choice(attempt)
    steps, row, S, _, alpha, beta = attempt.case.facts["arguments"]
    return _total(n, B, steps, row, S, alpha, beta)


def _seconds_off(attempt):
    """By how much the seconds differ from those of the choice that is named."""
    if _choice(attempt) is None:
        return math.inf
    return abs(_choice(attempt)[2] / _true_seconds(attempt) - 1)


def _good_choice(came, wanted, case):
    """Its true time is at most 1 % above the best."""
    steps, row, S, most, alpha, beta = case.facts["arguments"]
    if not isinstance(came, list | tuple) or len(came) != 3:
        return False
    n, B = came[:2]
    if B not in steps or n not in range(1, most + 1):
        return False
    return _total(n, B, steps, row, S, alpha, beta) <= 1.01 * case.facts["best"]


def _chosen_as_if(**change):
    """The choice and the seconds are the best of a wrong formula."""

    def ask(attempt):
        if attempt.error is not None or not _choice(attempt):
            return False
        if attempt.right and _seconds_off(attempt) <= 0.01:
            return False
        n, B, seconds = _choice(attempt)
        other = _best(*attempt.case.facts["arguments"], **change)
        return (n, B) == other[:2] and math.isclose(seconds, other[2], rel_tol=1e-3)

    return ask


def _fewest_steps(attempt):
    if not wrong(attempt) or not _choice(attempt):
        return False
    steps, *_ = attempt.case.facts["arguments"]
    return steps[_choice(attempt)[1]] == min(steps.values())


def _all_ranks(attempt):
    if not wrong(attempt) or not _choice(attempt):
        return False
    return _choice(attempt)[0] == attempt.case.facts["arguments"][3] > 1


def _one_step(attempt):
    """The seconds are those of a step, not of all of them."""
    if attempt.error is not None or not _choice(attempt):
        return False
    n, B, seconds = _choice(attempt)
    steps, row, S, _, alpha, beta = attempt.case.facts["arguments"]
    one = _total(n, B, dict.fromkeys(steps, 1), row, S, alpha, beta)
    return math.isclose(seconds, one, rel_tol=1e-3)


plan = Exercise(
    "07.3",
    "How many ranks, which batch?",
    plan_cases,
    [
        Requirement(
            "seconds are off by",
            _seconds_off,
            lambda case: 0.01,
            exactly=False,
            show="{:.1%}".format,
        )
    ],
    [
        Mistake(
            "no triple",
            lambda a: a.error is None and _choice(a) is None,
            "It does not return (n, B, seconds) with a number of ranks that is there "
            "and a batch of the table.",
        ),
        Mistake(
            "one step",
            _one_step,
            "The seconds are those of one step.",
            "How many steps does it take to the target?",
        ),
        Mistake(
            "free links",
            _chosen_as_if(link=lambda n, S, alpha, beta: 0.0),
            "The all-reduce takes no time in it.",
            "After each step the ring sends 2(n-1) messages, one after the other.",
        ),
        Mistake(
            "no alpha",
            _chosen_as_if(
                link=lambda n, S, alpha, beta: _ring_seconds(n, S, 0.0, beta)
            ),
            "The messages have no alpha.",
            "Each of 2(n-1) messages costs alpha, however small it is.",
        ),
        Mistake(
            "whole tensor",
            _chosen_as_if(
                link=lambda n, S, alpha, beta: 2 * (n - 1) * (alpha + beta * S)
            ),
            "Each message carries the whole gradient in it.",
            "The ring sends chunks of S / n bytes.",
        ),
        Mistake(
            "fraction of a row",
            _chosen_as_if(share=lambda B, n: B / n),
            "It deals out fractions of a row.",
            "The slowest rank decides, and it has B / n rows, rounded up.",
        ),
        Mistake(
            "largest batch",
            _fewest_steps,
            "It takes the batch with the fewest steps, whatever a step costs.",
            "Beyond the bend twice the rows save hardly a step.",
        ),
        Mistake(
            "all ranks",
            _all_ranks,
            "It takes all ranks; with fewer it would be faster.",
            "Every further rank makes the ring two messages longer.",
        ),
    ],
    agrees=_good_choice,
)

EXERCISES = [tokens, last, plan]
