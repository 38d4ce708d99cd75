"""07.2 The last batches: train(model, batches, lr)."""

import torch
import torch.distributed as dist
from torch.nn import functional as F

from d2lpar.allreduce import ring_allreduce
from zoo import right, wrong


def step(model, batch, lr, rows):
    """One step; `rows` of all ranks, or None: this rank's mean, over n."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    if batch is not None:
        x, y = batch
        if rows is None:
            (F.cross_entropy(model(x), y) / dist.get_world_size()).backward()
        else:
            (F.cross_entropy(model(x), y, reduction="sum") / rows).backward()
    with torch.no_grad():
        for p in model.parameters():
            ring_allreduce(p.grad)
            p -= lr * p.grad


def added(*numbers):
    total = torch.tensor(numbers, dtype=torch.float64)
    ring_allreduce(total)
    return total.tolist()


def counts_of_all(batches):
    n, r = dist.get_world_size(), dist.get_rank()
    return [int(c) for c in added(*(len(batches) * (i == r) for i in range(n)))]


def at(batches, k):
    return batches[k] if k < len(batches) else None


def rows_at(batches, k):
    return len(batches[k][1]) if k < len(batches) else 0


@right
def asks_how_many(model, batches, lr):
    """The numbers of batches first, each in its own place of a vector."""
    for k in range(max(counts_of_all(batches))):
        (rows,) = added(rows_at(batches, k))
        step(model, at(batches, k), lr, rows)


@right
def rows_travel_with_the_gradients(model, batches, lr):
    """One vector: the sums of gradients and the rows; no rows is the end."""
    k = 0
    while True:
        model.zero_grad(set_to_none=False)
        if k < len(batches):
            x, y = batches[k]
            F.cross_entropy(model(x), y, reduction="sum").backward()
        grads = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in model.parameters()
        ]
        (rows,) = added(rows_at(batches, k))
        if rows == 0:
            return
        for p, g in zip(model.parameters(), grads, strict=True):
            ring_allreduce(g)
            p.data -= lr * g / rows
        k += 1


@wrong("runs out")
def as_it_was(model, batches, lr):
    for batch in batches:
        step(model, batch, lr, None)


@wrong("runs out")
def counts_rows_and_stops(model, batches, lr):
    for k, batch in enumerate(batches):
        (rows,) = added(rows_at(batches, k))
        step(model, batch, lr, rows)


@wrong("too few steps")
def until_the_first_is_out(model, batches, lr):
    for k in range(min(counts_of_all(batches))):
        (rows,) = added(rows_at(batches, k))
        step(model, at(batches, k), lr, rows)


@wrong("again")
def takes_the_last_again(model, batches, lr):
    for k in range(max(counts_of_all(batches))):
        j = min(k, len(batches) - 1)
        (rows,) = added(rows_at(batches, j) if batches else 0)
        step(model, batches[j] if batches else None, lr, rows)


@wrong("all ranks")
def divides_by_n(model, batches, lr):
    for k in range(max(counts_of_all(batches))):
        step(model, at(batches, k), lr, None)


@wrong("mean of means")
def divides_by_the_active(model, batches, lr):
    n = dist.get_world_size()
    for k in range(max(counts_of_all(batches))):
        (active,) = added(float(k < len(batches)))
        step(model, at(batches, k), lr * n / active, None)


@wrong("no batch at all")
def believes_in_gradients(model, batches, lr):
    for k in range(max(counts_of_all(batches))):
        (rows,) = added(rows_at(batches, k))
        if k < len(batches):
            x, y = batches[k]
            model.zero_grad()
            (F.cross_entropy(model(x), y, reduction="sum") / rows).backward()
        else:
            for p in model.parameters():
                p.grad.zero_()
        with torch.no_grad():
            for p in model.parameters():
                ring_allreduce(p.grad)
                p -= lr * p.grad


@wrong("replicas differ")
def only_the_active_step(model, batches, lr):
    for k in range(max(counts_of_all(batches))):
        (rows,) = added(rows_at(batches, k))
        before = [p.detach().clone() for p in model.parameters()]
        step(model, at(batches, k), lr, rows)
        if k >= len(batches):
            for p, old in zip(model.parameters(), before, strict=True):
                p.data.copy_(old)


@wrong("talk")
def asks_before_every_step(model, batches, lr):
    k = 0
    while max(c - k for c in counts_of_all(batches)) > 0:
        (rows,) = added(rows_at(batches, k))
        step(model, at(batches, k), lr, rows)
        k += 1


def leftovers(model, batches, lr, clears=False, over=1.0, after=1.0):
    """Clears gradients only where there is a batch, or always."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for k in range(max(counts_of_all(batches))):
        (rows,) = added(rows_at(batches, k))
        if clears or k < len(batches):
            model.zero_grad(set_to_none=False)
        if k < len(batches):
            x, y = batches[k]
            loss = F.cross_entropy(model(x), y, reduction="sum")
            (loss / (rows if over == "before" else 1)).backward()
        for p in model.parameters():
            ring_allreduce(p.grad)
            if over == "in place":
                p.grad /= rows
            p.data -= lr * p.grad / (rows if over == "each time" else 1)


@wrong("stale")
def leaves_the_mean(model, batches, lr):
    leftovers(model, batches, lr, over="before")


@wrong("stale")
def leaves_the_mean_and_divides_it(model, batches, lr):
    leftovers(model, batches, lr, over="in place")


@wrong("stale")
def leaves_the_sum(model, batches, lr):
    leftovers(model, batches, lr, over="each time")


@wrong("first rows")
def believes_in_equal_batches(model, batches, lr):
    usual = rows_at(batches, 0)
    for k in range(max(counts_of_all(batches))):
        there = k < len(batches)
        (rows,) = added(usual * there)
        share = rows_at(batches, k) / usual if there else 1.0
        step(model, at(batches, k), lr, rows * share)


@wrong("wrong")
def by_itself(model, batches, lr):
    """No word with the others; by luck nobody waits."""
    for p in model.parameters():
        p.data.zero_()


@right
def tells_the_rows_of_each_rank(model, batches, lr):
    """As many numbers as ranks in each step, and once more at the end."""
    n, r = dist.get_world_size(), dist.get_rank()
    k = 0
    while any(rows := added(*(rows_at(batches, k) * (i == r) for i in range(n)))):
        step(model, at(batches, k), lr, sum(rows))
        k += 1
