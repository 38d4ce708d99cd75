"""What the exercises of chapter 08 ask for."""

import copy
import math

import torch
from torch import nn

from ...allreduce import ring_allreduce
from ...costs import chunk_sizes
from ..judging import Case, Exercise, Mistake, Requirement, ranks
from ..requirements import bytes_sent, from_messages, messages
from ..signs import both, left_alone, not_a_tensor, raises, right, wrong

FLOATS = (torch.float32, torch.float64, torch.bfloat16)


def cut(sizes, limit):
    """[[sizes], ...]: each list is full from `limit` on; in the order given."""
    plan, filling = [], []
    for size in sizes:
        filling.append(size)
        if sum(filling) >= limit:
            plan.append(filling)
            filling = []
    return [*plan, filling] if filling else plan


# 08.1 Half the bytes


def wire_cases(rng):
    """Gradients of three dtypes, some of them None; a few sizes of buckets."""
    worlds = [(1, torch.float32, 64), (2, torch.bfloat16, 200), (3, torch.float64, 0)]
    worlds += [(3, torch.float32, 300), (4, torch.bfloat16, 100_000)]
    worlds += [(4, torch.float16, 120), (5, torch.bfloat16, 150)]
    for n, wire, limit in worlds:
        yield _wire_case(rng, n, wire, limit)


def _wire_case(rng, n, wire, limit):
    dtypes = [FLOATS[i] for i in (0, 0, 1, 2, 0, 2, 1, 0)]
    shapes = [(7, 6), (5,), (3, 9), (40,), (2, 2, 5), (11,), (6, 6), ()]
    shapes = [shapes[i] for i in rng.permutation(len(shapes))]
    nones = {1, 5} if n > 1 else {0}
    factor = 3e4 if wire is torch.float16 else 1.0  # a sum of these is infinite
    every, mean = [], []
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        values = rng.uniform(0.5, 1, size=(n, *shape)) * factor
        if factor == 1.0:
            values *= rng.choice([-1, 1], size=values.shape)
        terms = [torch.tensor(v).to(dtype) for v in values]
        every.append([None] * n if i in nones else terms)
        mean.append(None if i in nones else sum(t.double() for t in terms) / n)
    text = f"{ranks(n)}, {str(wire)[6:]} on the wire, buckets of {limit:,} bytes"
    grads = [[column[r] for column in every] for r in range(n)]
    facts = {"sizes": [None if m is None else m.numel() for m in mean], "terms": every}
    facts |= {"wire": wire, "limit": limit, "dtypes": dtypes}
    return Case(
        n,
        text,
        inputs=[(g, wire, limit, ring_allreduce) for g in grads],
        expected=[
            [None if m is None else m.to(d) for m, d in zip(mean, dtypes, strict=True)]
            for _ in range(n)
        ],
        facts=facts,
    )


# Relative errors: of a term when it is rounded, of a sum of up to five of them.
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-6}


def _agrees(came, wanted, case):
    return _near(came, wanted, case.facts["wire"])


def _near(came, wanted, wire, scale=1.0):
    """The gradients are those wanted times `scale`, but for rounding."""
    if not isinstance(came, list) or len(came) != len(wanted):
        return False
    for a, b in zip(came, wanted, strict=True):
        if b is None or not torch.is_tensor(a):
            if a is not b:
                return False
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        worst = max(ROUNDED.get(wire, 1e-12), ROUNDED.get(b.dtype, 1e-12))
        difference = a.double() - scale * b.double()
        most = scale * max(1.0, float(b.double().abs().max()))
        if not bool((difference.abs() <= worst * most).all()):
            return False
    return True


def _wire_sizes(case, itemsize=None):
    """Bytes of the gradients that are there, from the last to the first."""
    item = case.facts["wire"].itemsize
    pairs = zip(case.facts["sizes"], case.facts["dtypes"], strict=True)
    sizes = [(s, item if itemsize is None else itemsize(d)) for s, d in pairs if s]
    return [size * bytes for size, bytes in sizes][::-1]


def _wire_plan(case):
    return cut(_wire_sizes(case), case.facts["limit"])


def _ring_messages(case, calls):
    return calls * case.n * 2 * (case.n - 1)


def _wire_messages(case):
    return _ring_messages(case, len(_wire_plan(case)))


def _wire_bytes(case):
    """What each rank sends, bucket by bucket, in the rings of chapter 06."""
    return _sent(case, _wire_plan(case), case.facts["wire"].itemsize)


def _sent(case, plan, item):
    n, sent = case.n, [0] * case.n
    for bucket in plan if n > 1 else ():
        chunks = chunk_sizes(sum(bucket) // item, n)
        for r in range(n):
            kept = chunks[r] + chunks[(r + 1) % n]
            sent[r] += (2 * sum(chunks) - kept) * item
    return sent


def _calls(attempt):
    """How many rings were made; counted in messages."""
    each = _ring_messages(attempt.case, 1)
    return sum(attempt.run.messages) / each if each else None


def _makes(plan):
    """It is right, but cuts its buckets like this."""

    def ask(attempt):
        case = attempt.case
        if not attempt.right or case.n == 1:
            return False
        made = plan(case)
        same = _sent(case, made, case.facts["wire"].itemsize)
        return len(made) == _calls(attempt) and same == attempt.run.bytes_sent

    return ask


def _from_the_front(case):
    return cut(_wire_sizes(case)[::-1], case.facts["limit"])


def _by_own_bytes(case):
    """Full by the bytes of the gradients' own dtypes."""
    own, sizes = _wire_sizes(case, lambda d: d.itemsize), iter(_wire_sizes(case))
    plan = cut(own, case.facts["limit"])
    return [[next(sizes) for _ in bucket] for bucket in plan]


def _before_too_full(case):
    """A bucket is closed before it has more than the limit."""
    plan, limit = [], case.facts["limit"]
    for size in _wire_sizes(case):
        if plan and sum(plan[-1]) + size <= limit:
            plan[-1].append(size)
        else:
            plan.append([size])
    return plan


def _apart(case):
    return [[size] for size in _wire_sizes(case)]


def _whole(case):
    return [_wire_sizes(case)]


def _too_many_bytes(attempt):
    case = attempt.case
    sent, wanted = sum(attempt.run.bytes_sent), sum(_wire_bytes(case))
    return attempt.right and sent > 1.2 * wanted


def _sums(attempt):
    case = attempt.case
    return wrong(attempt) and all(
        _near(came, wanted, case.facts["wire"], case.n)
        for came, wanted in zip(attempt.came, case.expected, strict=True)
    )


def _other_dtype(attempt):
    if not wrong(attempt):
        return False
    pairs = zip(attempt.came[0], attempt.case.expected[0], strict=False)
    return any(
        torch.is_tensor(a) and torch.is_tensor(b) and a.dtype != b.dtype
        for a, b in pairs
    )


def _infinite(attempt):
    return wrong(attempt) and any(
        torch.is_tensor(g) and bool(g.isinf().any())
        for came in attempt.came
        for g in came
    )


def _none_trouble(attempt):
    return "NoneType" in str(attempt.cause) and raises(AttributeError, TypeError)(
        attempt
    )


def _bits_differ(attempt):
    """Ranks whose gradients are not, bit for bit, those of rank 0."""

    def bits(came):
        grads = [g for g in came if torch.is_tensor(g)]
        return [g.contiguous().view(-1).view(torch.uint8).tolist() for g in grads]

    first = bits(attempt.came[0])
    return sum(bits(came) != first for came in attempt.came)


wire = Exercise(
    "08.1",
    "Half the bytes",
    wire_cases,
    [
        messages(_wire_messages),
        bytes_sent(_wire_bytes),
        Requirement("ranks with other bits than rank 0", _bits_differ, lambda case: 0),
        from_messages(),
    ],
    [
        Mistake(
            "none",
            _none_trouble,
            "It takes every gradient for a tensor, and some are None.",
            "A layer that was not used has no gradient: leave it out.",
        ),
        Mistake(
            "left alone",
            left_alone(0),
            "The gradients are what they were: the means were not written into them.",
            "`g = mean` names another tensor. `g.copy_(mean)` fills this one.",
        ),
        Mistake(
            "infinite",
            _infinite,
            "A sum in float16 is infinite, though the mean would fit.",
            "float16 ends at 65504. Divide by n first, then send.",
        ),
        Mistake(
            "sum",
            _sums,
            "The gradients are the sums over the ranks, n times too large.",
            "The mean is wanted.",
        ),
        Mistake(
            "dtype",
            _other_dtype,
            "A gradient has changed its dtype.",
            "What comes off the wire is converted back: `copy_` does that.",
        ),
        Mistake(
            "from the front",
            _makes(_from_the_front),
            "The buckets are filled from the first gradient on.",
            "Backward makes the last gradient first.",
        ),
        Mistake(
            "own bytes",
            _makes(_by_own_bytes),
            "The buckets count the bytes of the gradients, not those on the wire.",
            "A float64 of 8 bytes takes 2 of them as bfloat16.",
        ),
        Mistake(
            "not filled",
            _makes(_before_too_full),
            "A bucket is closed before the gradient that would fill it.",
            "It is full as soon as it has `bucket_bytes` or more.",
        ),
        Mistake(
            "one by one",
            _makes(_apart),
            "Each gradient travels alone.",
            "Put them together with `torch.cat` until the bucket is full.",
        ),
        Mistake(
            "all at once",
            _makes(_whole),
            "All gradients travel in one piece.",
            "A bucket is full as soon as it has `bucket_bytes` or more.",
        ),
        Mistake(
            "wide",
            _too_many_bytes,
            "More bytes than the dtype of the wire needs.",
            "`torch.cat` of two dtypes has the wider one: convert first.",
        ),
    ],
    outcome=lambda attempt, rank: attempt.args[rank][0],
    agrees=_agrees,
)


# 08.2 What is exposed


def exposed_cases(rng):
    """Layers with and without parameters; slow and fast networks."""
    rates = (1e9, 1e9, 2e8, 5e9, 1e9, 1e8, 3e9, 1e10, 6e8, 4e8)
    limits = (0, 2, 1, 1.5, 1000, 0.5, 1e-6, 2.5, 4, 5)  # in MB
    for i, (rate, limit) in enumerate(zip(rates, limits, strict=True)):
        count = int(rng.integers(3, 9)) if i < 8 else 8
        layers = []
        for _ in range(count):
            forward = float(rng.uniform(0.5e-3, 2e-3))
            size = int(rng.integers(200_000, 3_000_000))
            size = 0 if rng.random() < 0.25 else size
            layers.append((forward, 2 * forward, size))
        if i in (3, 7):
            layers[0] = (*layers[0][:2], 0)  # nothing left to send at the end
        yield _exposed_case(layers, round(limit * 1e6), 5e-5, rate)


def _exposed_case(layers, limit, alpha, rate):
    def seconds(size):
        return alpha + size / rate

    return Case(
        1,
        f"{len(layers)} layers, buckets of {limit:,} bytes, {rate / 1e9:g} GB/s",
        inputs=[(layers, limit, seconds)],
        expected=[timing(layers, limit, seconds)],
        facts={"layers": layers, "limit": limit, "seconds": seconds},
    )


WAYS = ("rest", "queue", "first", "late", "front", "last", "negative")


def timing(layers, limit, seconds, wrong_way=""):
    """(step, exposed) of a step; `wrong_way` makes one of the usual mistakes."""
    clock = sum(forward for forward, _, _ in layers)
    ready, filling = [], []  # of buckets; of the one that fills: (moment, bytes)
    for _, backward, size in layers if wrong_way == "front" else layers[::-1]:
        clock += backward
        if size:
            filling.append((clock, size))
        if size and sum(size for _, size in filling) >= limit:
            ready.append(filling)
            filling = []
    if filling and wrong_way != "rest":
        ready.append(filling)
    free = clock if wrong_way == "late" else 0.0
    for bucket in ready:
        moment = bucket[0 if wrong_way == "first" else -1][0]
        start = moment if wrong_way == "queue" else max(moment, free)
        took = seconds(sum(size for _, size in bucket))
        free = max(free, start + took)
    if wrong_way == "last" and ready:
        free = clock + took
    exposed = free - clock if wrong_way == "negative" else max(0.0, free - clock)
    return max(clock, free), exposed


def _pair(came):
    """(step, exposed) as floats, or None where it is something else."""
    try:
        step, exposed = map(float, came)
    except (TypeError, ValueError):
        return None
    return step, exposed


def _close(came, wanted, case=None):
    pair = _pair(came)
    return pair is not None and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
        for a, b in zip(pair, wanted, strict=True)
    )


def _timed(wrong_way):
    """The answer is what this mistake gives, and no other one."""

    def ask(attempt):
        if not wrong(attempt):
            return False
        facts, came = attempt.case.facts, attempt.came[0]
        given = facts["layers"], facts["limit"], facts["seconds"]
        return [w for w in WAYS if _close(came, timing(*given, w))] == [wrong_way]

    return ask


def _no_pair(attempt):
    return wrong(attempt) and _pair(attempt.came[0]) is None


def _swapped(attempt):
    pair = _pair(attempt.came[0]) if wrong(attempt) else None
    return pair is not None and _close(pair[::-1], attempt.case.expected[0])


exposed = Exercise(
    "08.2",
    "What is exposed",
    exposed_cases,
    [],
    [
        Mistake(
            "no pair",
            _no_pair,
            "It does not return two numbers.",
            "`return step, exposed`, both in seconds.",
        ),
        Mistake(
            "swapped",
            _swapped,
            "The two numbers are right, in the wrong order.",
            "First the step, then what of it is exposed.",
        ),
        Mistake(
            "rest",
            _timed("rest"),
            "The last bucket is left out where it is not full.",
            "Its gradients must travel, too.",
        ),
        Mistake(
            "queue",
            _timed("queue"),
            "An all-reduce begins while the one before it is still on its way.",
            "The network carries one bucket at a time.",
        ),
        Mistake(
            "first gradient",
            _timed("first"),
            "A bucket travels as soon as its first gradient is there.",
            "It has to wait for its last one.",
        ),
        Mistake(
            "no overlap",
            _timed("late"),
            "Nothing travels before the backward pass is over.",
            "A full bucket travels while earlier layers are computed.",
        ),
        Mistake(
            "front",
            _timed("front"),
            "The buckets are filled from the first layer on.",
            "Backward makes the gradients of the last layer first.",
        ),
        Mistake(
            "last bucket",
            _timed("last"),
            "It lets only the last bucket stick out; others may queue before it.",
            "Follow the network: when is it free for bucket k?",
        ),
        Mistake(
            "negative",
            _timed("negative"),
            "An exposed time is negative: the network was ready before the ranks.",
            "Then nothing is exposed.",
        ),
    ],
    agrees=_close,
    processes=(),
)


# 08.3 The forgotten buffers


class Drift(nn.Module):
    """Its gradients depend on its buffers, and each pass changes them."""

    def __init__(self, D, seed):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=made, dtype=torch.float64)
        self.weight = nn.Parameter(draw(D, D) / D)
        self.bias = nn.Parameter(draw(D))
        self.register_buffer("mean", draw(D))
        self.register_buffer("seen", torch.tensor(2**60 + 1 + seed % 1000))

    def forward(self, x):
        y = (x - self.mean) @ self.weight + self.bias
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
            self.seen += len(x)
        return y


LR = 0.1


def drift_cases(rng):
    """Each rank has another start and other data; some steps, or none."""
    worlds = (1, 2, 3), (2, 0, 3), (2, 1, 3), (2, 3, 4), (3, 2, 5), (4, 3, 3)
    for n, steps, D in worlds:
        seeds = [int(seed) for seed in rng.integers(1, 10**6, size=n)]
        rows = (steps, 5, D)
        batches = [torch.from_numpy(rng.normal(size=rows)) for _ in range(n)]
        yield Case(
            n,
            f"{ranks(n)}, {steps} step{'s' * (steps != 1)}, {D} features",
            inputs=[(Drift(D, seeds[r]), list(batches[r]), LR) for r in range(n)],
            expected=[_drifted(Drift(D, seeds[0]), batches, steps)] * n,
            facts={"D": D, "steps": steps, "seeds": seeds, "batches": batches},
        )


def _drifted(model, batches, steps):
    """Rank 0's state after the steps, in one process."""
    n, models = len(batches), [copy.deepcopy(model) for _ in batches]
    for k in range(steps):
        for each in models[1:]:
            each.mean.copy_(models[0].mean)
            each.seen.copy_(models[0].seen)
        for each, batch in zip(models, batches, strict=True):
            each.zero_grad()
            loss(each(batch[k])).backward()
        for name in ("weight", "bias"):
            grads = [getattr(each, name).grad for each in models]
            mean = sum(grads) / n
            for each in models:
                getattr(each, name).data.sub_(LR * mean)
    return {key: x.clone() for key, x in models[0].state_dict().items()}


def loss(y):
    """What a step makes smaller."""
    return y.square().mean()


def _state_bytes(D):
    return 8 * (D * D + D), 8 * D + 8  # of the parameters, of the buffers


def _drift_bytes(case):
    """Parameters once, buffers before each step and at the end; the gradients."""
    D, steps, n = case.facts["D"], case.facts["steps"], case.n
    parameters, buffers = _state_bytes(D)
    once = parameters + (steps + 1) * buffers
    return (n - 1) * (once + 2 * steps * parameters)


def _drift_total():
    return Requirement(
        "bytes of all ranks",
        lambda a: sum(a.run.bytes_sent),
        _drift_bytes,
        exactly=False,
    )


def _states(attempt):
    """The returned states, or None where they are none."""
    keys = {"weight", "bias", "mean", "seen"}
    fine = all(isinstance(c, dict) and c.keys() == keys for c in attempt.came or [None])
    return attempt.came if fine else None


def _differs(attempt, key, rank=None):
    """Is this entry wrong on some rank (on this one)?"""
    states, wanted = _states(attempt), attempt.case.expected
    which = range(attempt.case.n) if rank is None else [rank]
    return states is not None and any(
        not torch.allclose(
            states[r][key].double(), wanted[r][key].double(), rtol=1e-9, atol=1e-12
        )
        for r in which
    )


def _never_shared(attempt):
    """Parameters drift, or the buffers keep what they were before the first step."""
    case = attempt.case
    if not wrong(attempt) or case.facts["steps"] or case.n == 1:
        return False
    own = [Drift(case.facts["D"], seed).mean for seed in case.facts["seeds"]]
    states = _states(attempt)
    return states is not None and all(
        torch.equal(state["mean"], mean)
        for state, mean in zip(states, own, strict=True)
    )


def _only_end(attempt):
    """Rank 0 is right, the others have buffers of their own at the end."""
    right_parts = not _differs(attempt, "weight") and not _differs(attempt, "mean", 0)
    return wrong(attempt) and right_parts and _differs(attempt, "mean")


def _only_start(attempt):
    """Parameters are wrong after several steps, and right after one."""
    return (
        wrong(attempt)
        and attempt.case.facts["steps"] > 1
        and _differs(attempt, "weight")
        and _same_everywhere(attempt, "weight")
    )


def _same_everywhere(attempt, key):
    states = _states(attempt)
    return states is not None and all(
        torch.equal(state[key], states[0][key]) for state in states
    )


def _counter(attempt):
    """All is right but the count, which has lost its last digits."""
    if not wrong(attempt) or _states(attempt) is None:
        return False
    wanted = attempt.case.expected
    near = all(
        abs(int(s["seen"]) - int(w["seen"])) < 10**5
        for s, w in zip(attempt.came, wanted, strict=True)
    )
    exact = all(
        torch.equal(s["seen"], w["seen"])
        for s, w in zip(attempt.came, wanted, strict=True)
    )
    floats = not any(_differs(attempt, key) for key in ("weight", "mean"))
    return near and not exact and floats


def _averaged(attempt):
    """The running mean is that of all ranks' data."""
    if not wrong(attempt) or attempt.case.facts["steps"] != 1:
        return False
    D, batches = attempt.case.facts["D"], attempt.case.facts["batches"]
    start = Drift(D, attempt.case.facts["seeds"][0]).mean
    seen = sum(batch[0].mean(0) for batch in batches) / len(batches)
    states = _states(attempt)
    return states is not None and any(
        torch.allclose(state["mean"], 0.5 * start + 0.5 * seen) for state in states
    )


def _chatty(attempt):
    return attempt.right and sum(attempt.run.bytes_sent) > _drift_bytes(attempt.case)


def _no_state(attempt):
    return wrong(attempt) and _states(attempt) is None


drift = Exercise(
    "08.3",
    "The forgotten buffers",
    drift_cases,
    [_drift_total(), from_messages()],
    [
        Mistake(
            "no state",
            both(_no_state, lambda a: not not_a_tensor(a)),
            "It does not return the state of the model.",
            "`return model.state_dict()`.",
        ),
        Mistake(
            "never shared",
            _never_shared,
            "The buffers of the ranks differ from the start.",
            "`model.parameters()` has no buffers in it: `model.buffers()` has.",
        ),
        Mistake(
            "averaged",
            _averaged,
            "The buffers are means over the ranks; here those of rank 0 count.",
            "A mean of counters is no counter. Copy them from rank 0.",
        ),
        Mistake(
            "counter",
            _counter,
            "The integer buffer has lost its last digits on the way.",
            "float64 has 53 bits. Each dtype travels by itself.",
        ),
        Mistake(
            "only the start",
            _only_start,
            "The buffers are equal at the start and drift apart from step to step.",
            "Each forward pass changes them, on each rank in another way.",
        ),
        Mistake(
            "at the end",
            _only_end,
            "After the last step the ranks have buffers of their own.",
            "The last forward pass changes them once more.",
        ),
        Mistake(
            "chatty",
            both(right, _chatty),
            "It is right, and sends more than parameters once and buffers each step.",
            "Parameters stay equal by themselves: all ranks make the same step.",
        ),
    ],
    processes=(3,),
)

EXERCISES = [wire, exposed, drift]
