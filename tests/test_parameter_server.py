"""`d2lpar.parameter_server`: what claims to equal one device does, to 1e-10."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import d2lpar
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


def batch(k, rows, seed=0):
    """Batch k: other rows in every step."""
    generator = torch.Generator().manual_seed(100 * seed + k)
    both = torch.randn(2, rows, 5, generator=generator, dtype=torch.float64)
    return both[0], both[1]


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def one_device(make_optimizer, rows, steps=STEPS):
    """(flat parameters, [flat gradients]) after some steps on whole batches."""
    model, grads = Tied(), []
    flat = ps.Flat(model)
    optimizer = make_optimizer(model.parameters())
    for k in range(steps):
        flat.grads.zero_()
        loss_of(model, *batch(k, rows)).backward()
        grads.append(flat.grads.clone())
        optimizer.step()
    return flat.values.clone(), grads


def plain_torch(make_optimizer, rows):
    """The same without anything of ours."""
    model = Tied()
    optimizer = make_optimizer(model.parameters())
    for k in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch(k, rows)).backward()
        optimizer.step()
    return whole(model)


def whole(model):
    """All that is trained, as one vector."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([p.detach().flatten() for p in trained])


def share_of(model, rows, i, workers, steps=STEPS):
    """The task of worker i: its rows of each batch; it may have none."""

    def task(k):
        x, y = (t.tensor_split(workers)[i] for t in batch(k, rows))
        if len(x):
            loss_of(model, x, y).backward()
        return len(x), k + 1 < steps

    return task


def train(rule, make_optimizer, rows, servers=1, steps=STEPS, members=None):
    """A server returns (shard, [gradients], [ages]), a worker its tasks."""
    group = None if members is None else dist.new_group(members)
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if r < 0:
        return None
    model = Tied()
    if r >= servers:
        task = share_of(model, rows, r - servers, n - servers, steps)
        return ps.work(model, task, servers, group)
    server = ps.serve(model, make_optimizer, servers, group)
    grads, ages = [], []
    for update in rule(server):
        grads.append(server.shard.grad.clone())
        ages.append(update)
    return server.shard.detach(), grads, ages


def trained(*args, n, backend="sim"):
    return d2lpar.run(train, *args, world_size=n, backend=backend)


def joined(run, servers):
    """(whole parameters, whole gradient of each step)."""
    shards, grads, _ = zip(*run.results[:servers], strict=True)
    return torch.cat(shards), [torch.cat(parts) for parts in zip(*grads, strict=True)]


def close(came, wanted):
    return torch.allclose(came, wanted, rtol=0, atol=1e-10)


def equals_one_device(run, servers, make_optimizer, rows):
    values, grads = one_device(make_optimizer, rows)
    came, sums = joined(run, servers)
    assert close(came, values)
    assert len(sums) == len(grads) and all(map(close, sums, grads))


# The serial truth itself


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_flat_parameters_train_as_plain_ones_do(kind):
    values, _ = one_device(OPTIMIZERS[kind], 7)
    assert torch.equal(values, plain_torch(OPTIMIZERS[kind], 7))


def test_flat_has_tied_weights_once_and_frozen_ones_not():
    flat = ps.Flat(Tied())
    assert flat.values.shape == flat.grads.shape == (5 * 5 + 5 + 5,)


def test_flat_refuses_mixed_dtypes_and_nothing_to_train():
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="torch.float32, torch.float64"):
        ps.Flat(mixed)
    with pytest.raises(ValueError, match="no trained parameter"):
        ps.Flat(nn.Linear(2, 2).requires_grad_(False))


# Synchronous: one device, exactly


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("rows", [7, 2])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_synchronous_server_equals_one_device(workers, servers, rows, kind):
    make = OPTIMIZERS[kind]
    run = trained(ps.synchronous, make, rows, servers, n=servers + workers)
    equals_one_device(run, servers, make, rows)
    assert run.results[servers:] == [STEPS] * workers and run.warnings == []


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1), (3, 2)])
def test_synchronous_server_equals_one_device_on_processes(workers, servers):
    how = {"n": servers + workers, "backend": "gloo"}
    run = trained(ps.synchronous, OPTIMIZERS["adam"], 7, servers, **how)
    equals_one_device(run, servers, OPTIMIZERS["adam"], 7)


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


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (3, 3)])
def test_bytes_and_messages_are_exact(workers, servers):
    n = servers + workers
    run = trained(ps.synchronous, OPTIMIZERS["sgd"], 8, servers, n=n)
    S = 8 * 35
    sizes = [8 * len(part) for part in torch.zeros(35).tensor_split(servers)]
    assert run.bytes_sent[:servers] == [STEPS * workers * size for size in sizes]
    assert run.bytes_sent[servers:] == [STEPS * (S + 16 * servers)] * workers
    assert sum(run.messages) == STEPS * 3 * workers * servers


# Asynchronous: who comes first is served first


def drill(rule, seconds, until, servers=1, numbers=(4,)):
    """Workers that take `seconds[i]` for a task of gradient 1.

    A server returns ([(ages, clock) of an update], shard, version, updates in time).
    """
    model, r = nn.Linear(*numbers, 1, bias=False), dist.get_rank()
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


def test_asynchronous_loses_no_gradient_and_repeats_exactly():
    args = ps.asynchronous, [1e-3, 1.3e-3, 4e-3], 0.05
    first, second = drilled(*args), drilled(*args)
    history, shard, version, _ = first.results[0]
    assert version == sum(first.results[1:]) and (shard == -version).all()
    assert history == second.results[0][0] and first.elapsed == second.elapsed
    assert str(first.timeline) == str(second.timeline)
    assert max(ages[0] for ages, _ in history) > 2


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_a_bound_holds_where_it_is_promised(bound):
    run = drilled(with_bound(bound), [1e-3, 1.3e-3, 40e-3], 0.5)
    history = run.results[0][0]
    ages = [age for update, _ in history for age in update]
    assert max(ages) <= (3 - 1) * (2 * bound + 1)
    until_first_leaves = history[: -3 * (bound + 2)]
    gaps = [max(c.values()) - min(c.values()) for _, c in until_first_leaves]
    assert max(gaps) == bound + 1  # promised, and reached


def test_without_a_bound_the_fast_run_away():
    run = drilled(ps.asynchronous, [1e-3, 1.3e-3, 40e-3], 0.5)
    clock = run.results[0][0][-1][1]
    assert clock[1] > 20 * clock[3]
    assert max(age for ages, _ in run.results[0][0] for age in ages) > 30


@pytest.mark.parametrize("servers", [1, 2])
def test_asynchronous_on_processes(servers):
    given = with_bound(1), [1e-3, 5e-3], 0.08, servers
    run = drilled(*given, n=2 + servers, backend="gloo")
    for history, shard, version, _ in run.results[:servers]:
        assert version == len(history) == sum(run.results[servers:])
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

    def task_of(model, i):
        def task(k):
            x, y = (t.tensor_split(3)[i] for t in batch(k, 7))
            d2lpar.sleep(1.0 if i == 2 else 0.1)
            loss_of(model, x, y).backward()
            return len(x), False

        return task

    def one_step():
        model, r = Tied(), dist.get_rank()
        if r:
            return ps.work(model, task_of(model, r - 1))
        server = ps.serve(model, OPTIMIZERS["sgd"])
        return [(n, server.shard.grad.clone()) for n in ps.with_backups(server)]

    run = d2lpar.run(one_step, world_size=4, backend="sim")
    model = Tied()
    flat = ps.Flat(model)
    x, y = batch(0, 7)
    loss_of(model, x[:5], y[:5]).backward()
    ((ages, gradient),) = run.results[0]
    assert ages == [0, 0] and close(gradient, flat.grads)


# Without a server


def alone(make_optimizer, rows):
    model, n, r = Tied(), dist.get_world_size(), dist.get_rank()
    flat, task = ps.Flat(model), share_of(model, rows, r, n)
    optimizer = make_optimizer(model.parameters())
    for k in range(STEPS):
        ps.gradient_of(flat, task, k)
        optimizer.step()
        ps.average_parameters(flat, a.ring_allreduce)
    return whole(model)


@pytest.mark.parametrize("world", ["sim", "gloo"])
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
    shard = nn.Parameter(torch.ones(1))
    shard.grad = torch.ones(1)
    server = ps.Server(shard, None, [1, 2], {}, {})
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


@pytest.mark.parametrize("world", ["sim", "gloo"])
@pytest.mark.parametrize("bound", [None, 1])
def test_asynchronous_equals_its_serial_replay(bound, world):
    seconds = {1: 2e-3, 2: 3e-3, 3: 11e-3}

    def task_of(model, worker, pause=d2lpar.sleep):
        share = share_of(model, 7, worker - 1, 3, steps=5)

        def task(k):
            pause(seconds[worker])
            return share(k)

        return task

    def asynchronously():
        model, r = Tied(), dist.get_rank()
        if r:
            return ps.work(model, task_of(model, r))
        server, log = ps.serve(model, OPTIMIZERS["sgd"]), []
        clock = dict(server.clock)
        for (age,) in ps.asynchronous(server, bound):
            worker = next(w for w in clock if server.clock[w] > clock[w])
            clock = dict(server.clock)
            log.append((worker, age))
        return log, server.shard.detach()

    run = d2lpar.run(asynchronously, world_size=4, backend=world)
    log, came = run.results[0]
    model = Tied()
    tasks = {w: task_of(model, w, pause=lambda seconds: None) for w in seconds}
    assert max(age for _, age in log) > 0 and len(log) == 15
    assert close(came, replayed(log, model, tasks))


# The exercises' closed forms hold in the simulator


def uneven(sizes, owner, servers, alpha, beta, pause, workers, tasks):
    """Gradients a second of asynchronous servers with parts as in exercise 09.2."""
    pairs = list(zip(sizes, owner, strict=True))
    parts = [sum(size for size, j in pairs if j == i) for i in range(servers)]

    def server(part):
        note, data = torch.zeros(2, dtype=torch.int64), torch.zeros(part // 4)
        left = workers * tasks
        for worker in range(servers, servers + workers):
            dist.send(data, worker)
        while left:
            worker = dist.recv(note, tag=1)
            dist.recv(data, worker)
            dist.send(data, worker)
            left -= 1

    def worker():
        note = torch.zeros(2, dtype=torch.int64)
        tensors = [torch.zeros(part // 4) for part in parts]
        for k in range(tasks + 1):
            for i, data in enumerate(tensors):
                dist.recv(data, i)
            if k < tasks:
                d2lpar.sleep(pause)
                for i, data in enumerate(tensors):
                    dist.send(note, i, tag=1)
                    dist.send(data, i)

    r = dist.get_rank()
    return server(parts[r]) if r < servers else worker()


def test_the_bottleneck_of_exercise_2_is_the_simulators():
    plan = [40_000, 400_000, 8_000], [0, 1, 1], 2, 2e-5, 1e-9
    pause = 5e-3
    server, rate, workers = ex_09_2.limits(*plan, pause)
    cluster = d2lpar.Cluster.ideal(2 + workers + 3, 2e-5, 1e-9)

    def made(count, tasks=12):
        run = d2lpar.run(
            uneven, *plan, pause, count, tasks,
            world_size=2 + count, backend="sim", cluster=cluster,
        )  # fmt: skip
        return count * tasks / run.elapsed

    assert server == 1
    assert made(1) == pytest.approx(rate / workers, rel=0.25)
    assert made(1) * (workers - 1) < rate
    assert rate * 0.85 < made(workers + 3) < rate * 1.01
