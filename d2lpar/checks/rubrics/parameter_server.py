"""What the exercises of chapter 09 ask for."""

import functools
import heapq
import math
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from ...costs import ring_cost
from ...parameter_server import serve, work
from ...world.cluster import Cluster
from ...world.launch import sleep
from ..judging import Case, Exercise, Mistake, on_ranks, ranks, same
from ..requirements import (
    bytes_sent,
    extra_memory,
    from_messages,
    messages,
    rounds,
    same_bits,
    seconds,
)
from ..signs import both, gives, hangs, left_alone, raises, wrong

D = 2_000  # parameters in 09.1; S = 8 D bytes
PULL = 0.3  # the gradient of a task is PULL * parameters + something of its own
PLANS = (  # (servers, tasks of each worker, c)
    (1, (3,), 1),
    (1, (2, 2), 3),
    (1, (4, 3), 2),
    (2, (2, 3), 2),
    (1, (3, 1, 4), 5),
    (1, (5, 4, 4, 3), 3),
    (2, (4, 4, 4, 4, 2), 4),
)


# 09.1 Softsync


def softsync_cases(rng, power=1):
    """Workers of different speed with different numbers of tasks; any c.

    A gradient of age a weighs 1 / (a + 1) ** power.
    """
    for servers, tasks, c in PLANS:
        pauses = [float(x) for x in rng.uniform(1e-3, 4e-3, size=len(tasks))]
        seeds = [int(x) for x in rng.integers(1_000_000, size=len(tasks))]
        n = servers + len(tasks)
        facts = {"servers": servers, "tasks": tasks, "c": c, "power": power}
        facts |= {"pauses": pauses, "seeds": seeds}
        case = Case(
            n,
            f"{ranks(servers).replace('rank', 'server')}, tasks {list(tasks)}, c = {c}",
            inputs=[(facts,)] * n,
            expected=None,
            facts=facts,
            options={"cluster": Cluster.ideal(n, 1e-9, 0.0)},
        )
        case.expected = outcomes(case)
        yield case


def _own_part(seed, k):
    """What task k adds to its gradient: [D]."""
    source = torch.Generator().manual_seed(seed + k)
    return torch.randn(D, generator=source, dtype=torch.float64)


def _optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def drive(rule, facts):
    """(parameters, ages of each update) of a server, None of a worker."""
    servers, r = facts["servers"], dist.get_rank()
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    if r < servers:
        server = serve(model, _optimizer, servers)
        ages = [list(update) for update in rule(server, facts["c"])]
        return server.shard.detach(), ages
    pause, tasks = (facts[key][r - servers] for key in ("pauses", "tasks"))

    def task(k):
        sleep(pause)
        own = _own_part(facts["seeds"][r - servers], k)
        model.weight.grad.copy_(PULL * model.weight.detach() + own)
        return 1, k + 1 < tasks

    work(model, task, servers)
    return None


def outcomes(case, **change):
    """What every rank returns, by a serial program with a list of arrivals."""
    values, ages = replay(case.facts, **change)
    servers = case.facts["servers"]
    shards = values.tensor_split(servers)
    return [(shard.clone(), ages) for shard in shards] + [None] * (case.n - servers)


def replay(facts, weigh=True, mean=True, last=True, clear=True, late=True):
    """(parameters, ages) afterwards; each keyword is one thing that can be wrong."""
    values = nn.Parameter(torch.ones(D, dtype=torch.float64))
    values.grad = torch.zeros_like(values)
    optimizer, version, ages, group = _optimizer([values]), 0, [], []
    given = {w: (0, values.detach().clone()) for w in range(len(facts["tasks"]))}
    done = dict.fromkeys(given, 0)
    arrivals = [(facts["pauses"][w], w) for w in given]
    heapq.heapify(arrivals)
    while arrivals:
        moment, w = heapq.heappop(arrivals)
        since, had = given[w]
        gradient = PULL * had + _own_part(facts["seeds"][w], done[w])
        done[w] += 1
        age = version - since
        values.grad += gradient / ((age + 1) ** facts["power"] if weigh else 1)
        group.append(age)
        again = done[w] < facts["tasks"][w]
        if again and not late:  # before the update
            given[w] = version, values.detach().clone()
        if len(group) == facts["c"] or (last and not arrivals and not again):
            values.grad /= len(group) if mean else 1
            optimizer.step()
            version, ages, group = version + 1, [*ages, group], []
            if clear:
                values.grad.zero_()
        if again:
            if late:
                given[w] = version, values.detach().clone()
            heapq.heappush(arrivals, (moment + facts["pauses"][w], w))
    return values.detach(), ages


def _driven(rule, case, **options):
    return on_ranks(functools.partial(drive, rule), case, **options)


def _softsync_bytes(case):
    """Servers send their part to whoever begins a task; workers S and notes."""
    servers, tasks = case.facts["servers"], case.facts["tasks"]
    parts = [8 * len(part) for part in torch.zeros(D).tensor_split(servers)]
    down = [sum(tasks) * part for part in parts]
    return down + [count * (8 * D + 16 * servers) for count in tasks]


def _softsync_messages(case):
    return 3 * case.facts["servers"] * sum(case.facts["tasks"])


def _softsync_memory(case):
    """Of one server: model, flat values, the shard, its gradient and momentum; 5 S.

    That leaves two tensors like the shard.  Workers and other servers need less.
    """
    return 8 * D * 7 + 4096


def _softsync_seconds(case):
    """Nobody waits: as long as the worker that works longest."""
    pairs = zip(case.facts["pauses"], case.facts["tasks"], strict=True)
    return max(pause * count for pause, count in pairs) + 1e-6


def _like(**change):
    return gives(lambda case: outcomes(case, **change))


def _waits(attempt):
    slow = attempt.run is not None and attempt.error is None
    return hangs(attempt) or (
        slow and attempt.run.elapsed > _softsync_seconds(attempt.case)
    )


def _hoards(attempt):
    allowed = _softsync_memory(attempt.case)
    return attempt.right and max(attempt.run.peak_memory) > allowed


softsync = Exercise(
    "09.1",
    "Softsync",
    softsync_cases,
    [
        bytes_sent(_softsync_bytes),
        messages(_softsync_messages),
        seconds(_softsync_seconds, exactly=False),
        extra_memory(_softsync_memory),
        from_messages(),
    ],
    [
        Mistake(
            "no generator",
            lambda a: raises(TypeError)(a) and "not iterable" in str(a.cause),
            "It is no generator: it returns at once, or it yields nothing.",
            "`yield` the list of ages after each update, as the rules of the chapter.",
        ),
        Mistake(
            "no weights",
            _like(weigh=False),
            "All gradients weigh the same, however old they are.",
            "`take` returns the age; a gradient of age a weighs 1 / (a + 1).",
        ),
        Mistake(
            "sum",
            _like(mean=False),
            "It takes the sum of the gradients in a group, not their mean.",
            "Divide by how many there are, in the last group too.",
        ),
        Mistake(
            "last group",
            _like(last=False),
            "The last group is lost where it has fewer than c gradients.",
            "When no worker has a task any more, update with what there is.",
        ),
        Mistake(
            "not cleared",
            _like(clear=False),
            "Gradients of the group before are still in the sum.",
            "Set it to 0 after each update.",
        ),
        Mistake(
            "old parameters",
            _like(late=False),
            "The worker that completes a group gets the parameters before the update.",
            "First the update, then `give`.",
        ),
        Mistake(
            "waits",
            _waits,
            "A worker waits for the update that its gradient is in.",
            "Give it parameters at once. With c above the number of workers it would "
            "wait for ever.",
        ),
        Mistake(
            "hoards",
            _hoards,
            "It keeps all gradients of a group; their sum is enough.",
            "One tensor for the sum, one for what comes in.",
        ),
    ],
    agrees=lambda came, wanted, case: _same_outcome(came, wanted),
    perform=_driven,
    processes=(),  # who comes first is not ours to say there
)


def _same_outcome(came, wanted):
    return came is None if wanted is None else same(came, wanted)


# 09.2 Which server is the bottleneck?


def bottleneck_cases(rng):
    """Layers of very different size, dealt to servers; some servers have none."""
    for servers, layers in ((1, 1), (1, 5), (2, 3), (3, 2), (3, 9), (4, 12), (8, 20)):
        facts = _clear_plan(rng, servers, layers)
        sizes, owner, alpha, beta, pause = facts.values()
        yield Case(
            1,
            f"{layers} layer{'s' * (layers > 1)}, {servers} "
            f"server{'s' * (servers > 1)}, compute {pause * 1e3:.1f} ms",
            inputs=[(sizes, owner, servers, alpha, beta, pause)],
            expected=[limits(servers, **facts)],
            facts=facts | {"servers": servers},
        )


def _clear_plan(rng, servers, layers):
    """A plan in which the answer does not hang on the last digit."""
    while True:
        sizes = [int(x) for x in 10 ** rng.uniform(4, 8, size=layers)]
        facts = {
            "sizes": sizes,
            "owner": [int(x) for x in rng.integers(servers, size=layers)],
            "alpha": float(10 ** rng.uniform(-5.3, -3)),
            "beta": float(10 ** rng.uniform(-10, -9)),
            "pause": float(rng.uniform(5e-3, 0.2)),
        }
        part = _parts(servers, facts["sizes"], facts["owner"])
        answers = [limits(servers, **facts)]
        answers += [limits(servers, **facts, **change) for change in SLIPS.values()]
        ratio = _round(part, **_only(facts)) / max(_busy(part, **_only(facts)))
        apart = all(other != answers[0] for other in answers[1:]) or servers == 1
        if 0.2 < ratio % 1 < 0.8 and apart:
            return facts


def _only(facts):
    return {key: facts[key] for key in ("alpha", "beta", "pause")}


def _parts(servers, sizes, owner):
    """Bytes that each server has."""
    pairs = list(zip(sizes, owner, strict=True))
    return [sum(size for size, j in pairs if j == i) for i in range(servers)]


def _busy(parts, alpha, beta, pause, ways=2, notes=1):
    """Seconds that each server needs for one gradient: note, gradient, parameters."""
    return [
        (ways + notes) * alpha + beta * (ways * part + 16 * notes) for part in parts
    ]


def _round(parts, alpha, beta, pause):
    """Seconds that a worker alone needs for a task, by its one port."""
    return pause + sum(_busy(parts, alpha, beta, pause))


def limits(servers, sizes, owner, alpha, beta, pause, ways=2, notes=1, up=math.ceil):
    """(server that limits, gradients a second at most, workers that reach it)."""
    parts, pace = _parts(servers, sizes, owner), (alpha, beta, pause)
    busy = _busy(parts, *pace, ways, notes)
    server = max(range(servers), key=busy.__getitem__)
    whole = pause + sum(busy)
    return server, 1 / busy[server], up(whole / busy[server])


SLIPS = {
    "one way": {"ways": 1},
    "no notes": {"notes": 0},
    "rounded down": {"up": math.floor},
}


def _slip(name):
    def ask(attempt):
        facts = attempt.case.facts
        return wrong(attempt) and same(
            _plain(attempt.came[0]), limits(**facts, **SLIPS[name])
        )

    return ask


def _plain(came):
    return tuple(came) if isinstance(came, list | tuple) else came


def _by_total(attempt):
    """Every server is taken to have an equal part."""
    facts, came = attempt.case.facts, _plain(attempt.came[0]) if attempt.came else ()
    even = [sum(facts["sizes"]) / facts["servers"]] * facts["servers"]
    rate = 1 / _busy(even, **_only(facts))[0]
    return (
        wrong(attempt) and len(came) == 3 and math.isclose(came[1], rate, rel_tol=1e-6)
    )


def _three(attempt):
    came = _plain(attempt.came[0]) if attempt.came else None
    return wrong(attempt) and not (isinstance(came, tuple) and len(came) == 3)


bottleneck = Exercise(
    "09.2",
    "Which server is the bottleneck?",
    bottleneck_cases,
    [],
    [
        Mistake(
            "not three",
            _three,
            "It does not return three numbers.",
            "`return server, rate, workers`.",
        ),
        Mistake(
            "one way",
            _slip("one way"),
            "It counts the gradient that comes, and not the parameters that go.",
            "The server is one loop: it does not receive while it sends.",
        ),
        Mistake(
            "no notes",
            _slip("no notes"),
            "It leaves out the notes: 16 bytes, and an alpha of their own.",
            "Three messages for each gradient.",
        ),
        Mistake(
            "rounded down",
            _slip("rounded down"),
            "One worker too few: with so many the server still has time.",
            "The smallest number of workers that reaches the rate.",
        ),
        Mistake(
            "equal parts",
            _by_total,
            "It takes all servers to have equal parts.",
            "Add up the layers of each server: the largest part decides.",
        ),
    ],
    agrees=lambda came, wanted, case: same(_plain(came), wanted),
    processes=(),
)


# 09.3 The fair mean


def fair_cases(rng):
    """Ranks with different numbers of rows; some have none, once all have none."""
    for n in (1, 2, 3, 4, 5, 8):
        for size, empty in ((1, False), (7, True), (16, False)):
            rows = [int(x) for x in rng.integers(1, 9, size=n)]
            if empty:  # every second one; from four ranks on, all
                rows = [0 if n > 3 or r % 2 else rows[r] for r in range(n)]
            values = [torch.from_numpy(rng.normal(size=size)) for _ in range(n)]
            yield Case(
                n,
                f"{ranks(n)}, {size} element{'s' * (size > 1)}, rows {rows}",
                inputs=[
                    (x.clone(), count) for x, count in zip(values, rows, strict=True)
                ],
                expected=_fair(values, rows),
                facts={"S": size, "rows": rows, "values": values},
            )


def _fair(values, rows):
    """On every rank the mean over all rows; what it was where there are none."""
    if sum(rows) == 0:
        return [x.clone() for x in values]
    terms = [count * x for count, x in zip(rows, values, strict=True)]
    return [sum(terms) / sum(rows)] * len(rows)


def _outcome(attempt, rank):
    return attempt.args[rank][0]


def _plain_mean(case):
    mean = sum(case.facts["values"]) / case.n
    return [mean] * case.n


def _over_n(case):
    pairs = zip(case.facts["values"], case.facts["rows"], strict=True)
    return [sum(x * count for x, count in pairs) / case.n] * case.n


def _fair_bytes(case):
    return ring_cost(case.facts["S"] + 1, case.n, 8).busiest


def _fair_rounds(case):
    return 2 * (case.n - 1)


def _other_bits(attempt):
    return 0 if _nobody(attempt) else same_bits().measured(attempt)


def _nobody(attempt):
    return sum(attempt.case.facts["rows"]) == 0


def _twice(attempt):
    return attempt.right and attempt.run.rounds > _fair_rounds(attempt.case)


def _whole(attempt):
    return attempt.right and max(attempt.run.bytes_sent) > _fair_bytes(attempt.case)


fair = Exercise(
    "09.3",
    "The fair mean",
    fair_cases,
    [
        bytes_sent(_fair_bytes, exactly=False),
        rounds(_fair_rounds, exactly=False),
        replace(same_bits(), measured=_other_bits),
        from_messages(),
    ],
    [
        Mistake(
            "rebinding",
            left_alone(0),
            "The tensor that went in is as before: the mean is in another one.",
            "`x = x * 2` makes a new tensor; `x *= 2` and `x.copy_(y)` write into it.",
        ),
        Mistake(
            "plain mean",
            gives(_plain_mean),
            "Every rank weighs the same, however many rows it has.",
            "Multiply by the rows before the sum, divide by all rows after it.",
        ),
        Mistake(
            "over n",
            gives(_over_n),
            "The sum is weighted by rows, but divided by the number of ranks.",
            "What must one divide by, if all ranks have 10 rows?",
        ),
        Mistake(
            "nobody",
            both(wrong, _nobody),
            "Where nobody has rows, it divides by 0 or loses the values.",
            "Then the values stay: look at the number of rows before you write.",
        ),
        Mistake(
            "two all-reduces",
            _twice,
            "It takes more rounds than one all-reduce.",
            "The number of rows can travel with the values, as one element more.",
        ),
        Mistake(
            "too many bytes",
            _whole,
            "A rank sends more than a ring of D + 1 elements does.",
            "`ring_allreduce`, once.",
        ),
    ],
    outcome=_outcome,
)

EXERCISES = [softsync, bottleneck, fair]
