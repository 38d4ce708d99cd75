"""09.1 Softsync: softsync(server, c), a generator."""

import torch

from d2lpar.parameter_server import give, take, update
from zoo import right, wrong


def collect(server, c, weight=lambda age: 1 / (age + 1), mean=True, clear=True):
    """The rule, with one thing that may be otherwise."""
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        worker, _, age = take(server, incoming)
        total.add_(incoming, alpha=weight(age))
        ages.append(age)
        complete = len(ages) == c or not server.workers
        if complete:
            total /= len(ages) if mean else 1
            update(server)
            if clear:
                total.zero_()
        if worker in server.workers:
            give(server, worker)
        if complete:
            yield ages
            ages = []


@right
def by_a_running_mean(server, c):
    """The mean is kept up to date with every gradient; workers by a book."""
    mean, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    idle = list(server.workers)
    while server.workers or ages:
        while idle:
            give(server, idle.pop(0))
        worker, _, age = take(server, incoming)
        ages.append(age)
        mean.mul_((len(ages) - 1) / len(ages))
        mean.add_(incoming, alpha=1 / len(ages) / (age + 1))
        if worker in server.workers:
            idle.append(worker)
        if len(ages) == c or not server.workers:
            update(server)
            mean.zero_()
            yield list(ages)
            ages.clear()


@right
def group_by_group(server, c):
    total = server.shard.grad
    incoming = torch.empty_like(total)
    begin = list(server.workers)
    while server.workers:
        ages = []
        total.zero_()
        while len(ages) < c and server.workers:
            for worker in begin:
                give(server, worker)
            worker, _, age = take(server, incoming)
            begin = [worker] if worker in server.workers else []
            total += incoming / (1 + age) if age else incoming
            ages.append(age)
        total /= len(ages)
        update(server)
        yield ages


@wrong("no weights")
def all_weigh_the_same(server, c):
    return collect(server, c, weight=lambda age: 1.0)


@wrong("sum")
def no_division(server, c):
    return collect(server, c, mean=False)


@wrong("not cleared")
def never_zero(server, c):
    return collect(server, c, clear=False)


@wrong("last group")
def whole_groups_only(server, c):
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        worker, _, age = take(server, incoming)
        total.add_(incoming, alpha=1 / (age + 1))
        ages.append(age)
        if len(ages) == c:
            total /= c
            update(server)
            total.zero_()
        if worker in server.workers:
            give(server, worker)
        if len(ages) == c:
            yield ages
            ages = []


@wrong("old parameters")
def gives_before_the_update(server, c):
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        worker, _, age = take(server, incoming)
        if worker in server.workers:
            give(server, worker)
        total.add_(incoming, alpha=1 / (age + 1))
        ages.append(age)
        if len(ages) == c or not server.workers:
            total /= len(ages)
            update(server)
            total.zero_()
            yield ages
            ages = []


@wrong("waits")
def workers_wait_for_their_group(server, c):
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    idle = list(server.workers)
    while server.workers:
        for worker in idle:
            give(server, worker)
        idle = []
        while server.workers and len(ages) < c:
            worker, _, age = take(server, incoming)
            total.add_(incoming, alpha=1 / (age + 1))
            ages.append(age)
            if worker in server.workers:
                idle.append(worker)
        total /= len(ages)
        update(server)
        total.zero_()
        yield ages
        ages = []


@wrong("hoards")
def keeps_all_gradients(server, c):
    group = []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        incoming = torch.empty_like(server.shard)
        worker, _, age = take(server, incoming)
        group.append((incoming, age))
        complete = len(group) == c or not server.workers
        if complete:
            mean = sum(g / (age + 1) for g, age in group) / len(group)
            server.shard.grad.copy_(mean)
            update(server)
        if worker in server.workers:
            give(server, worker)
        if complete:
            yield [age for _, age in group]
            group = []


@wrong("no generator")
def does_not_yield(server, c):
    for _ in collect(server, c):
        pass
