"""09.1 Softsync: softsync(server, c), a generator."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from d2lpar.checks import requirements as rows
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_ranks, ranks
from d2lpar.checks.signs import says, violates
from d2lpar.launch.run import sleep
from d2lpar.parameter_server import serve, work
from d2lpar.sim.cluster import Cluster

D = 2_001  # parameters; S = 8 D bytes
PULL = 0.3  # the gradient of a task is PULL * parameters + something of its own
sgd = partial(torch.optim.SGD, lr=0.5, momentum=0.5)
# Servers, tasks of each worker, c
PLANS = [(1, (3,), 1), (1, (2, 2), 3), (1, (2, 1), 9), (1, (4, 3), 2), (2, (2, 3), 2)]
PLANS += [(1, (3, 1, 4), 5), (1, (5, 4, 4, 3), 3), (2, (4, 4, 4, 4, 2), 3)]


def with_server(rule, case, **options):
    """Tried by `run`: servers follow the rule, the other ranks work."""
    return on_ranks(partial(drive, rule), case, **options)


def drive(rule, facts):
    """(parameters, ages of each update) of a server, None of a worker."""
    servers, r = facts["servers"], dist.get_rank()
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    if r < servers:
        server = serve(model, sgd, servers)
        server.power = facts["power"]  # for the forms of slips
        ages = list(rule(server, facts["c"]))  # the lists themselves, no copies
        return server.shard.detach(), ages
    pause, tasks, seed = (facts[x][r - servers] for x in ("pauses", "tasks", "seeds"))

    def task(k):
        sleep(pause)
        model.weight.grad.copy_(gradient(model.weight.detach(), seed, k))
        return 1 + k % 3, k + 1 < tasks  # rows, for which the rule has no use

    work(model, task, servers)
    return None


def gradient(parameters, seed, k):
    """That of task k: [D]."""
    source = torch.Generator().manual_seed(seed + k)
    return PULL * parameters + torch.randn(D, generator=source, dtype=torch.float64)


# Who comes first on real processes is not ours to say.
ex = Exercise("09.1", perform=with_server, processes=())


def draw(power, rng):
    """Workers of different speed; a gradient of age a weighs 1 / (a + 1) ** power."""
    for servers, tasks, c in PLANS:
        facts = {"servers": servers, "tasks": tasks, "c": c, "power": power}
        pauses = rng.uniform(1e-3, 4e-3, size=len(tasks)).tolist()
        slow_last = tasks == (5, 4, 4, 3)  # fewer tasks, so others that wait lose time
        facts["pauses"] = sorted(pauses) if slow_last else pauses
        facts["seeds"] = rng.integers(1_000_000, size=len(tasks)).tolist()
        n = servers + len(tasks)
        told = f"{ranks(servers).replace('rank', 'server')}, tasks {[*tasks]}, c = {c}"
        options = {"cluster": Cluster.ideal(n, 1e-9, 0.0)}
        yield Case(n, told, [(facts,)] * n, outcomes(facts), facts, options)


def arrivals(facts):
    """[(seconds, worker, task)] as they come to the servers."""
    pairs = zip(facts["pauses"], facts["tasks"], strict=True)
    each = [[(p * (k + 1), w, k) for k in range(m)] for w, (p, m) in enumerate(pairs)]
    return sorted(sum(each, []))


def outcomes(facts):
    """What every rank returns, by a serial program that knows who comes when."""
    values, ages = nn.Parameter(torch.ones(D, dtype=torch.float64)), []
    values.grad, optimizer = torch.zeros_like(values), sgd([values])
    given = [(0, values.detach().clone())] * len(facts["tasks"])
    tasks, c = arrivals(facts), facts["c"]
    for version, start in enumerate(range(0, len(tasks), c)):
        group, ages = tasks[start : start + c], [*ages, []]
        values.grad.zero_()
        for _, w, k in group:
            since, had = given[w]
            ages[-1].append(version - since)
            weight = 1 / (version - since + 1) ** facts["power"]
            values.grad += weight / len(group) * gradient(had, facts["seeds"][w], k)
            given[w] = version, values.detach().clone()
        optimizer.step()
        given[w] = version + 1, values.detach().clone()  # it completed the group
    shards = values.detach().tensor_split(facts["servers"])
    return [(shard, ages) for shard in shards] + [None] * len(given)


ex.cases(partial(draw, 1))
edge = lambda holds: lambda case: holds(*[*case.facts.values()][:3])
ex.boundaries(
    one_worker=edge(lambda servers, tasks, c: len(tasks) == 1),
    shards_differ=edge(lambda servers, tasks, c: D % servers),
    groups_of_one=edge(lambda servers, tasks, c: c == 1),
    more_than_workers=edge(lambda servers, tasks, c: len(tasks) < c < sum(tasks)),
    more_than_gradients=edge(lambda servers, tasks, c: c > sum(tasks)),
    last_group_shorter=edge(lambda servers, tasks, c: sum(tasks) % c),
    last_group_whole=edge(lambda servers, tasks, c: sum(tasks) % c == 0 < c - 1),
    ages_above_one=lambda case: max(max(x) for x in case.expected[0][1]) > 1,
)


def exact_bytes(case):
    """Servers send their part to whoever begins a task; workers S and notes."""
    servers, tasks = case.facts["servers"], case.facts["tasks"]
    down = [sum(tasks) * part.nbytes for part, _ in case.expected[:servers]]
    return down + [count * (8 * D + 16 * servers) for count in tasks]


SECONDS = rows.seconds(lambda case: arrivals(case.facts)[-1][0] + 1e-6, exactly=False)
count = edge(lambda servers, tasks, c: 3 * servers * sum(tasks))
ex.exactly(bytes=exact_bytes, messages=count)
ex.require(SECONDS)
# Of one server: model, flat values, the shard, its gradient and momentum; 5 S.
ex.at_most(memory=lambda case: 7 * 8 * D + 4096)
ex.require(rows.from_messages())

# Texts of the answer, for edits

BEGIN = "incoming, ages = torch.empty_like(total), []"
TAKE, ADD = "take(server, incoming)", "total.add_(incoming, alpha=1 / (age + 1))"
DIVIDE, YIELD, RENEW = "total /= len(ages)", "yield ages", "ages = []"
APPEND, WEIGHT = "ages.append(age)", "1 / (age + 1)"
GIVE = "if worker in server.workers:\n            give(server, worker)"
POWER = {WEIGHT: f"{WEIGHT} ** server.power"}  # that of the variation

# Mistakes of its own

none = says("'NoneType' object is not iterable")
ex.mistake("no generator", none, {YIELD: "pass"}).says("""
    It is not a generator that yields lists, because it returns at once.
    Hint: What do the rules of the chapter do after each update? They `yield` the ages.
""")
ex.slip("weights", {WEIGHT: "1.0"}).says("""
    The gradients of a group do not weigh what they should.
    Hint: The age decides, which `take` returns, and not the rows of the batch.
""")
by_rows = {"worker, _,": "worker, rows,", APPEND: f"{APPEND}; seen += rows"}
by_rows |= {BEGIN: f"seen = 0; {BEGIN}", DIVIDE: "total /= seen; seen = 0"}
ex.slip("weights", by_rows | {WEIGHT: "rows / (age + 1) ** server.power"})
weights = "sum(1 / (age + 1) ** server.power for age in ages)"
for divide in (f"total /= {weights}", "total /= c", "pass"):
    ex.slip("divisor", {**POWER, DIVIDE: divide}).says("""
        The sum of a group is not divided by the number of its gradients.
        Hint: How many has the last group? And should old ones lead as far as new ones?
    """)
ex.slip("last group", {**POWER, " or not server.workers": ""}).says("""
    The last group is lost if it has fewer than c gradients.
    Hint: When no worker has tasks any more, update with the gradients that are there.
""")
ex.slip("not cleared", {**POWER, "total.zero_()": "pass"}).says("""
    Gradients of the previous group are still in the sum.
    Hint: Set the sum to 0 after each update.
""")
early = {GIVE: "pass", APPEND: f"{APPEND}\n        {GIVE}"}
ex.slip("old parameters", POWER | early).says("""
    The worker that completes a group gets the parameters from before the update.
    Hint: Make the update first, and call `give` for this worker afterwards.
""")
ex.slip("one list", {**POWER, RENEW: "ages.clear()"}).says("""
    It yields the same list every time and empties it, so earlier ages are gone.
    Hint: Who has the list that you have yielded? Make a new one for each group.
""")
in_turn = "take(server, incoming, min(server.workers, key=server.clock.get))"
ex.mistake("waits", violates(SECONDS), {TAKE: in_turn}).says("""
    Workers wait for each other, which takes longer than the slowest one needs.
    Hint: Take gradients from whoever comes first, and give parameters at once, also
    while a group is incomplete.
""")
held = """idle += [worker] * (worker in server.workers)
        while idle and (complete or len(idle) == len(server.workers)):
            give(server, idle.pop(0))"""
ex.wrong("waits", {BEGIN: f"{BEGIN}\n    idle = []", GIVE: held})

# Answers to which the general sentences apply

hoards = {BEGIN: f"{BEGIN}\n    group = []", ADD: "group.append(incoming / (age + 1))"}
ex.wrong("costly", hoards | {DIVIDE: "total += sum(group) / len(group); group = []"})
so_far = "total.mul_(len(ages)).add_(incoming, alpha=1 / (age + 1)).div_(len(ages) + 1)"
cleared = {YIELD: "yield list(ages)", RENEW: "ages.clear()"}
ex.right(cleared | {ADD: so_far, DIVIDE: "pass"})

ex.variation(
    "b",
    varied="operation: an age of a weighs 1 / (a+1)^2",
    differs="A gradient weighs 1 / (a + 1), but this exercise asks for 1 / (a + 1)^2.",
    cases=partial(draw, 2),
)
