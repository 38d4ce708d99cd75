"""`d2lpar.parameter_server`: what claims to equal one device does, to 1e-10."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar
from conftest import WORLDS
from d2lpar import allreduce as a
from d2lpar import parameter_server as ps
from d2lpar.allreduce.costs import ring_cost
from d2lpar.checks.solutions import ex_09_2

STEPS = 3
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
}


class Tied(nn.Module):
    """Two layers share a weight, and one is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(5, 5, dtype=torch.float64)
        self.frozen = nn.Linear(5, 5, dtype=torch.float64)
        self.second = nn.Linear(5, 5, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.second(torch.tanh(self.frozen(torch.tanh(self.first(x)))))


def batch(k, rows):
    """Batch k: other rows in every step."""
    generator = torch.Generator().manual_seed(k)
    return torch.randn(2, rows, 5, generator=generator, dtype=torch.float64)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def whole(tensors):
    """Of all that is trained, one vector."""
    return torch.cat([x.detach().flatten() for x in tensors])


def one_device(make_optimizer, rows, used=None, steps=STEPS):
    """(flat parameters, [flat gradients]) of plain torch, on the first `used` rows."""
    model, grads = Tied(), []
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained)
    for k in range(steps):
        x, y = batch(k, rows)[:, :used]
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        grads.append(whole(p.grad for p in trained))
        optimizer.step()
    return whole(trained), grads


def share_of(model, rows, i, workers, steps=STEPS, pause=0.0):
    """The task of worker i: its rows of each batch; it may have none."""

    def task(k):
        if pause:
            d2lpar.sleep(pause)
        x, y = (t.tensor_split(workers)[i] for t in batch(k, rows))
        if len(x):
            loss_of(model, x, y).backward()
        return len(x), k + 1 < steps

    return task


def train(rule, make, rows, servers=1, steps=STEPS, members=None, pauses=None):
    """A server returns (shard, [gradients], [ages]), a worker its tasks."""
    group = None if members is None else dist.new_group(members)
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r < 0:
        return None
    model, worker = Tied(), r - servers
    if worker >= 0:
        pause = pauses[worker] if pauses else 0.0
        task = share_of(model, rows, worker, n - servers, steps, pause)
        return ps.work(model, task, servers, group)
    server = ps.serve(model, make, servers, group)
    both = [(server.shard.grad.clone(), update) for update in rule(server)]
    return server.shard.detach(), *map(list, zip(*both, strict=True))


def trained(*args, n, backend="sim", **options):
    return d2lpar.run(train, *args, world_size=n, backend=backend, **options)


def close(came, wanted):
    return torch.allclose(came, wanted, rtol=0, atol=1e-10)


def equals_one_device(run, servers, make_optimizer, rows):
    values, grads = one_device(make_optimizer, rows)
    shards, parts, _ = zip(*run.results[:servers], strict=True)
    assert close(torch.cat(shards), values)
    sums = [torch.cat(part) for part in zip(*parts, strict=True)]
    assert len(sums) == len(grads) and all(map(close, sums, grads))


def test_flat_refuses_mixed_dtypes_and_nothing_to_train():
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="torch.float32, torch.float64"):
        ps.Flat(mixed)
    with pytest.raises(ValueError, match="no trained parameter"):
        ps.Flat(nn.Linear(2, 2).requires_grad_(False))


# Synchronous: one device, exactly


SIMULATED = [("sim", *each) for each in product((1, 2, 3, 4), (1, 2, 3), (7, 2))]
REAL = [("gloo", *each, 7) for each in ((1, 1), (3, 1), (3, 2))]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("world", "workers", "servers", "rows"), SIMULATED + REAL)
def test_synchronous_server_equals_one_device(world, workers, servers, rows, kind):
    make, n = OPTIMIZERS[kind], servers + workers
    run = trained(ps.synchronous, make, rows, servers, n=n, backend=world)
    equals_one_device(run, servers, make, rows)
    assert run.results[servers:] == [STEPS] * workers and run.warnings == []
    assert run.results[0][2] == [[0] * workers] * STEPS  # no gradient is old
    S = 8 * 35  # tied weights once, frozen ones not
    sizes = [8 * len(part) for part in torch.zeros(35).tensor_split(servers)]
    assert run.bytes_sent[:servers] == [STEPS * workers * size for size in sizes]
    assert run.bytes_sent[servers:] == [STEPS * (S + 16 * servers)] * workers
    assert sum(run.messages) == STEPS * 3 * workers * servers


def test_servers_in_a_group():
    make = OPTIMIZERS["sgd"]
    run = trained(ps.synchronous, make, 7, 1, STEPS, [1, 3, 4], n=5)
    values, _ = one_device(make, 7)
    assert close(run.results[1][0], values) and run.results[3] == STEPS


def test_workers_may_have_different_numbers_of_tasks():
    def uneven():
        model, r = Tied(), dist.get_rank()
        if r == 0:
            server = ps.serve(model, OPTIMIZERS["sgd"])
            return [len(ages) for ages in ps.synchronous(server)]
        return ps.work(model, share_of(model, 6, r - 1, 3, steps=r))

    run = d2lpar.run(uneven, world_size=4, backend="sim")
    assert run.results == [[3, 2, 1], 1, 2, 3]


# Asynchronous: who comes first is served first


def drill(rule, seconds, until, servers=1):
    """Workers that take `seconds[i]` for a task of gradient 1.

    A server returns ([(ages, clock) of an update], shard, version, updates in time).
    """
    model, r = nn.Linear(4, 1, bias=False), dist.get_rank()
    if r >= servers:

        def task(k):
            d2lpar.sleep(seconds[r - servers])
            model.weight.grad.fill_(1.0)
            return 1, d2lpar.now() < until

        return ps.work(model, task, servers)
    nn.init.zeros_(model.weight)
    server = ps.serve(model, lambda p: torch.optim.SGD(p, lr=1.0), servers)
    history, early = [], 0
    for ages in rule(server):
        history.append((ages, dict(server.clock)))
        early += len(ages) * (d2lpar.now() <= until)
    return history, server.shard.detach(), server.version, early


def drilled(*args, n=4, backend="sim", **options):
    return d2lpar.run(drill, *args, world_size=n, backend=backend, **options)


def with_bound(bound):
    return lambda server: ps.asynchronous(server, bound)


def crossing(server):
    """Server 1 takes the workers in the other order than server 0."""
    order = sorted(server.workers, reverse=dist.get_rank() == 1)
    for worker in order:
        ps.give(server, worker)
    while server.workers:
        for worker in [each for each in order if each in server.workers]:
            _, _, age = ps.take(server, server.shard.grad, worker)
            ps.update(server)
            if worker in server.workers:
                ps.give(server, worker)
            yield [age]


@pytest.mark.parametrize("workers", [2, 3])
def test_servers_may_take_the_workers_in_different_orders(workers):
    run = drilled(crossing, [1e-3] * workers, 4.5e-3, 2, n=2 + workers)
    versions = [version for _, _, version, _ in run.results[:2]]
    assert versions == [sum(run.results[2:])] * 2 and versions[0] > workers


def test_asynchronous_serves_in_order_of_arrival():
    # worker 1: 10 20 30 40 ms, worker 2: 35 ms; nobody is at the same moment
    run = drilled(ps.asynchronous, [10e-3, 35e-3], 0.034, n=3)
    history, shard, version, _ = run.results[0]
    assert [ages for ages, _ in history] == [[0], [0], [0], [3], [1]]
    assert history[-1][1] == {1: 4, 2: 1}
    assert version == 5 and (shard == -5).all()


@pytest.mark.parametrize("bound", [None, 0, 1, 2, 5])
def test_no_gradient_is_lost_and_a_bound_holds_where_it_is_promised(bound):
    run = drilled(with_bound(bound), [1e-3, 1.3e-3, 40e-3], 0.5)
    history, shard, version, _ = run.results[0]
    assert version == sum(run.results[1:]) and (shard == -version).all()
    oldest, clock = max(age for (age,), _ in history), history[-1][1]
    if bound is None:  # the fast run away
        assert clock[1] > 20 * clock[3] and oldest > 30
        return
    assert oldest <= (3 - 1) * (2 * bound + 1)
    until_first_leaves = history[: -3 * (bound + 2)]
    gaps = [max(c.values()) - min(c.values()) for _, c in until_first_leaves]
    assert max(gaps) == bound + 1  # promised, and reached


def test_asynchronous_on_processes_with_two_servers():
    run = drilled(with_bound(1), [1e-3, 5e-3], 0.08, 2, n=4, backend="gloo")
    for history, shard, version, _ in run.results[:2]:
        assert version == len(history) == sum(run.results[2:])
        assert (shard == -version).all()
        assert max(age for ages, _ in history for age in ages) <= 3


def test_a_straggler_costs_the_synchronous_run_four_times():
    cluster = d2lpar.Cluster.ideal(9, 1e-6, 0.0)

    def gradients(rule, of):
        return drilled(rule, [1e-2] * 8, 0.805, n=9, cluster=of).results[0][-1]

    for rule, low, high in (
        (ps.synchronous, 3.9, 4.1),
        (ps.asynchronous, 1.0, 1.2),
        (ps.with_backups, 0.9, 1.2),
    ):
        slow = gradients(rule, cluster.slow(8, 4))
        assert low < gradients(rule, cluster) / slow < high


# Backups


def test_backups_drop_what_is_late():
    # 1 and 2 take 10 ms, 3 takes 25: its gradients come when a step is over
    run = drilled(ps.with_backups, [10e-3, 10e-3, 25e-3], 0.095)
    history, shard, version, _ = run.results[0]
    assert {len(ages) for ages, _ in history[:9]} == {2}
    used = sum(len(ages) for ages, _ in history)
    assert used < sum(run.results[1:]) and (shard == -version).all()


def test_without_spares_backups_equal_one_device():
    run = trained(lambda s: ps.with_backups(s, 0), OPTIMIZERS["adam"], 7, 2, n=5)
    equals_one_device(run, 2, OPTIMIZERS["adam"], 7)


def test_backups_weigh_what_came_by_rows():
    """With one of three left out, it is the batch without its rows."""
    args = ps.with_backups, OPTIMIZERS["sgd"], 7, 1, 1, None, [0.1, 0.1, 1.0]
    _, (gradient,), ages = trained(*args, n=4).results[0]
    _, (wanted,) = one_device(OPTIMIZERS["sgd"], 7, used=5, steps=1)
    assert ages == [[0, 0]] and close(gradient, wanted)


# Without a server


def alone(make_optimizer, rows):
    model, n, r = Tied(), dist.get_world_size(), dist.get_rank()
    flat, task = ps.Flat(model), share_of(model, rows, r, n)
    optimizer = make_optimizer(model.parameters())
    for k in range(STEPS):
        ps.gradient_of(flat, task, k)
        optimizer.step()
        ps.average_parameters(flat, a.ring_allreduce)
    return flat.values


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_averaging_after_each_step_is_the_synchronous_step(n, world):
    make, rows = OPTIMIZERS["sgd"], 12  # equal shards: linear, so momentum too
    run = d2lpar.run(alone, make, rows, world_size=n, backend=world)
    values, _ = one_device(make, rows)
    for came in run.results:
        assert close(came, values) and torch.equal(came, run.results[0])
    assert max(run.bytes_sent) == STEPS * ring_cost(35, n, itemsize=8).busiest


# Bad input: one sentence


def test_roles_are_checked():
    def as_worker(servers):
        ps.work(nn.Linear(1, 1), lambda k: (1, False), servers)

    def as_server(servers):
        ps.serve(nn.Linear(1, 1), OPTIMIZERS["sgd"], servers)

    for body, servers, match in (
        (as_worker, 3, "3 of 3 ranks would serve"),
        (as_worker, 0, "0 of 3 ranks would serve"),
        (as_worker, 1, "Rank 0 works, but ranks 0 to 0 are the servers"),
        (as_server, 1, "Rank . serves, but ranks 0 to 0 are the servers"),
    ):
        with pytest.raises(d2lpar.RankError, match=match):
            d2lpar.run(body, servers, world_size=3, backend="sim")


def test_a_task_that_replaces_its_gradient_is_refused():
    def spoilt():
        model = nn.Linear(2, 2)

        def task(k):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            return 1, False

        ps.gradient_of(ps.Flat(model), task, 0)

    with pytest.raises(d2lpar.RankError, match="Leave zero_grad out"):
        d2lpar.run(spoilt, world_size=1, backend="sim")


def test_numbers_are_checked():
    server = ps.Server(nn.Parameter(torch.ones(1)), None, [1, 2], {}, {})
    server.shard.grad = torch.ones(1)
    with pytest.raises(ValueError, match="not -1"):
        next(ps.asynchronous(server, -1))
    with pytest.raises(ValueError, match="2 workers cannot spare 2"):
        next(ps.with_backups(server, 2))


def replayed(log, model, tasks):
    """The serial truth of an asynchronous run: its gradients in their order."""
    flat, versions, counts = ps.Flat(model), [], dict.fromkeys(tasks, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for worker, age in log:
        versions.append(flat.values.clone())
        flat.values.copy_(versions[len(versions) - 1 - age])
        ps.gradient_of(flat, tasks[worker], counts[worker])
        counts[worker] += 1
        flat.values.copy_(versions[-1])
        optimizer.step()
    return flat.values


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("bound", [None, 1])
def test_asynchronous_equals_its_serial_replay(bound, world):
    def logged(server):
        clock = dict(server.clock)
        for (age,) in ps.asynchronous(server, bound):
            yield next(w for w in clock if server.clock[w] > clock[w]), age
            clock = dict(server.clock)

    args = logged, OPTIMIZERS["sgd"], 7, 1, 5, None, [2e-3, 3e-3, 11e-3]
    came, _, log = trained(*args, n=4, backend=world).results[0]
    model = Tied()
    tasks = {w: share_of(model, 7, w - 1, 3, steps=5) for w in (1, 2, 3)}
    assert max(age for _, age in log) > 0 and len(log) == 15
    assert close(came, replayed(log, model, tasks))


# The exercises' closed forms hold in the simulator


def uneven(parts, pause, workers, tasks):
    """Asynchronous servers that have `parts` bytes, as in exercise 09.2."""
    note, servers, r = torch.zeros(2, dtype=torch.int64), len(parts), dist.get_rank()
    tensors = [torch.zeros(part // 4) for part in parts]

    def server(data):
        for worker in range(servers, servers + workers):
            dist.send(data, worker)
        for _ in range(workers * tasks):
            worker = dist.recv(note, tag=1)
            dist.recv(data, worker)
            dist.send(data, worker)

    def worker():
        for k in range(tasks + 1):
            for i, data in enumerate(tensors):
                dist.recv(data, i)
            if k < tasks:
                d2lpar.sleep(pause)
                for i, data in enumerate(tensors):
                    dist.send(note, i, tag=1)
                    dist.send(data, i)

    return server(tensors[r]) if r < servers else worker()


def test_the_bottleneck_of_exercise_2_is_the_simulators():
    sizes, alpha, beta, pause, tasks = [40_000, 400_000, 8_000], 2e-5, 1e-9, 5e-3, 12
    server, rate, workers = ex_09_2.limits(sizes, [0, 1, 1], 2, alpha, beta, pause)
    cluster = d2lpar.Cluster.ideal(2 + workers + 3, alpha, beta)

    def made(count):
        args, at = ([40_000, 408_000], pause, count, tasks), {"cluster": cluster}
        run = d2lpar.run(uneven, *args, world_size=2 + count, backend="sim", **at)
        return count * tasks / run.elapsed

    assert server == 1
    assert made(1) == pytest.approx(rate / workers, rel=0.25)
    assert made(1) * (workers - 1) < rate
    assert rate * 0.85 < made(workers + 3) < rate * 1.01
