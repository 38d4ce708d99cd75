"""09.1 Softsync."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ...launch.run import sleep
from ...parameter_server import serve, work
from ...sim.cluster import Cluster
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, on_ranks, ranks
from ..signs import breaks

D = 2_000  # parameters; S = 8 D bytes
PULL = 0.3  # the gradient of a task is PULL * parameters + something of its own
sgd = partial(torch.optim.SGD, lr=0.5, momentum=0.5)
PLANS = (  # (servers, tasks of each worker, c)
    (1, (3,), 1),
    (1, (2, 2), 3),
    (1, (4, 3), 2),
    (2, (2, 3), 2),
    (1, (3, 1, 4), 5),
    (1, (5, 4, 4, 3), 3),
    (2, (4, 4, 4, 4, 2), 4),
)


def softsync_cases(rng, power=1):
    """Workers of different speed with different numbers of tasks; any c.

    A gradient of age a weighs 1 / (a + 1) ** power.
    """
    for servers, tasks, c in PLANS:
        facts = {"servers": servers, "tasks": tasks, "c": c, "power": power}
        facts["pauses"] = rng.uniform(1e-3, 4e-3, size=len(tasks)).tolist()
        facts["seeds"] = rng.integers(1_000_000, size=len(tasks)).tolist()
        n = servers + len(tasks)
        yield Case(
            n,
            f"{ranks(servers).replace('rank', 'server')}, tasks {list(tasks)}, c = {c}",
            [(facts,)] * n,
            facts=facts,
            options={"cluster": Cluster.ideal(n, 1e-9, 0.0)},
            truth=partial(outcomes, facts),
        )


def gradient(parameters, seed, k):
    """That of task k: [D]."""
    source = torch.Generator().manual_seed(seed + k)
    return PULL * parameters + torch.randn(D, generator=source, dtype=torch.float64)


def drive(rule, facts):
    """(parameters, ages of each update) of a server, None of a worker."""
    servers, r = facts["servers"], dist.get_rank()
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    if r < servers:
        server = serve(model, sgd, servers)
        ages = list(rule(server, facts["c"]))  # the lists themselves, no copies
        return server.shard.detach(), ages
    pause, tasks, seed = (facts[x][r - servers] for x in ("pauses", "tasks", "seeds"))

    def task(k):
        sleep(pause)
        model.weight.grad.copy_(gradient(model.weight.detach(), seed, k))
        return 1 + k % 3, k + 1 < tasks  # rows, for which the rule has no use

    work(model, task, servers)
    return None


def arrivals(facts):
    """[(seconds, worker, task)] as they come to the servers."""
    pairs = zip(facts["pauses"], facts["tasks"], strict=True)
    each = [[(p * (k + 1), w, k) for k in range(m)] for w, (p, m) in enumerate(pairs)]
    return sorted(sum(each, []))


def outcomes(facts, slip=""):
    """What every rank returns, by a serial program that knows who comes when."""
    values, ages = nn.Parameter(torch.ones(D, dtype=torch.float64)), []
    values.grad, optimizer = torch.zeros_like(values), sgd([values])
    given = [(0, values.detach().clone())] * len(facts["tasks"])
    tasks, c = arrivals(facts), facts["c"]
    power = 0 if slip == "no weights" else facts["power"]
    if slip == "last group":
        tasks = tasks[: len(tasks) // c * c]
    for version, start in enumerate(range(0, len(tasks), c)):
        ages, seen = [*ages, []], 0
        for _, w, k in tasks[start : start + c]:
            (since, had), rows = given[w], 1 + k % 3 if slip == "rows" else 1
            ages[-1].append(version - since)
            weight = rows / (ages[-1][-1] + 1) ** power
            values.grad += weight * gradient(had, facts["seeds"][w], k)
            seen += rows
            given[w] = version, values.detach().clone()
        values.grad /= {"sum": 1, "over c": c}.get(slip, seen)
        optimizer.step()
        if slip != "not cleared":
            values.grad.zero_()
        if slip != "old parameters":  # of the worker that completed the group
            given[w] = version + 1, values.detach().clone()
    if slip == "one list":
        ages = [[]] * len(ages)
    shards = values.detach().tensor_split(facts["servers"])
    return [(shard, ages) for shard in shards] + [None] * len(given)


def exact_bytes(case):
    """Servers send their part to whoever begins a task; workers S and notes."""
    servers, tasks = case.facts["servers"], case.facts["tasks"]
    down = [sum(tasks) * part.nbytes for part, _ in case.expected[:servers]]
    return down + [count * (8 * D + 16 * servers) for count in tasks]


BYTES = rows.bytes_sent(exact_bytes)
MESSAGES = rows.messages(
    lambda case: 3 * case.facts["servers"] * sum(case.facts["tasks"])
)
SECONDS = rows.seconds(lambda case: arrivals(case.facts)[-1][0] + 1e-6, exactly=False)
# Of one server: model, flat values, the shard, its gradient and momentum; 5 S.
MEMORY = rows.extra_memory(lambda case: 7 * 8 * D + 4096)

exercise = Exercise(
    "09.1",
    softsync_cases,
    [BYTES, MESSAGES, SECONDS, MEMORY, rows.from_messages()],
    {
        "no generator": signs.says("'NoneType' object is not iterable"),
        **signs.slips("no weights", "rows", "sum", "last group", "over c"),
        **signs.slips("not cleared", "old parameters", "one list"),
        "waits": signs.violates(SECONDS),
        "hoards": breaks(MEMORY),
    },
    perform=lambda rule, *case, **more: on_ranks(partial(drive, rule), *case, **more),
    processes=(),  # who comes first is not ours to say there
)
