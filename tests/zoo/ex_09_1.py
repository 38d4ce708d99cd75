"""09.1 Softsync: softsync(server, c), a generator."""

import torch

from d2lpar.parameter_server import give, take, update
from zoo import right, wrong


def collect(
    server, c, weight=lambda age: 1 / (age + 1), over=len, clear=True, early=False,
    lose=False, renew=lambda ages: [],
):  # fmt: skip
    """The rule, with one thing that may be otherwise."""
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        worker, _, age = take(server, incoming)
        if early and worker in server.workers:
            give(server, worker)
        total.add_(incoming, alpha=weight(age))
        ages.append(age)
        complete = len(ages) == c or not (server.workers or lose)
        if complete:
            total /= over(ages)
            update(server)
            if clear:
                total.zero_()
        if not early and worker in server.workers:
            give(server, worker)
        if complete:
            yield ages
            ages = renew(ages)


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
    return collect(server, c, over=lambda ages: 1)


@wrong("not cleared")
def never_zero(server, c):
    return collect(server, c, clear=False)


@wrong("last group")
def whole_groups_only(server, c):
    return collect(server, c, lose=True)


@wrong("over c")
def by_c_whatever_there_is(server, c):
    return collect(server, c, over=lambda ages: c)


@wrong("old parameters")
def gives_before_the_update(server, c):
    return collect(server, c, early=True)


@wrong("one list")
def empties_what_it_yielded(server, c):
    return collect(server, c, renew=lambda ages: ages.clear() or ages)


@wrong("waits")
def one_worker_after_the_other(server, c):
    """It takes from the workers in their order, not from whoever comes first."""
    total, incoming, ages = server.shard.grad, torch.empty_like(server.shard), []
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        for worker in list(server.workers):
            age = take(server, incoming, worker)[2]
            total.add_(incoming, alpha=1 / (age + 1))
            ages.append(age)
            if complete := len(ages) == c or not server.workers:
                total /= len(ages)
                update(server)
                total.zero_()
            if worker in server.workers:
                give(server, worker)
            if complete:
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


@wrong("rows")
def weighs_by_rows(server, c):
    """As the synchronous rule of the chapter does."""
    total, incoming = server.shard.grad, torch.empty_like(server.shard)
    ages, all_rows = [], 0
    for worker in server.workers:
        give(server, worker)
    while server.workers:
        worker, rows, age = take(server, incoming)
        total.add_(incoming, alpha=rows / (age + 1))
        ages.append(age)
        all_rows += rows
        complete = len(ages) == c or not server.workers
        if complete:
            total /= all_rows
            update(server)
            total.zero_()
        if worker in server.workers:
            give(server, worker)
        if complete:
            yield ages
            ages, all_rows = [], 0


@wrong("hangs")
def never_begins(server, c):
    """It takes before it has given anything to anybody."""
    incoming = torch.empty_like(server.shard)
    while server.workers:
        worker, _, age = take(server, incoming)
        update(server)
        if worker in server.workers:
            give(server, worker)
        yield [age]
