"""16.2 The largest micro-batch: largest(model, plan, batch, memory)."""

import bisect
from dataclasses import replace

from d2lpar.planning.memory import stages
from zoo import right, wrong


def held(model, plan, batch, b):
    return [sum(one) for one in stages(model, replace(plan, micro_batch=b), batch)]


def sizes(plan, batch):
    rows = batch // plan.data
    return [b for b in range(1, rows + 1) if rows % b == 0]


def largest(model, plan, batch, memory, tried=None, of=max):
    tried = sizes(plan, batch) if tried is None else tried
    return max((b for b in tried if of(held(model, plan, batch, b)) <= memory),
               default=None)  # fmt: skip


@right
def tries_all(*given):
    return largest(*given)


@right
def bisects(model, plan, batch, memory):
    tried = sizes(plan, batch)
    needs = [max(held(model, plan, batch, b)) for b in tried]
    k = bisect.bisect_right(needs, memory)
    return tried[k - 1] if k else None


@wrong("first stage")
def looks_at_the_first(*given):
    return largest(*given, of=lambda held: held[0])


@wrong("last stage")
def looks_at_the_last(*given):
    return largest(*given, of=lambda held: held[-1])


@wrong("mean of stages")
def looks_at_the_mean(*given):
    return largest(*given, of=lambda held: sum(held) / len(held))


@wrong("powers of two")
def doubles(model, plan, batch, memory):
    tried = [b for b in sizes(plan, batch) if b & (b - 1) == 0]
    return largest(model, plan, batch, memory, tried)


@wrong("any size")
def does_not_divide(model, plan, batch, memory):
    return largest(model, plan, batch, memory, range(1, batch // plan.data + 1))


@wrong("global rows")
def divides_the_whole(model, plan, batch, memory):
    tried = [b for b in range(1, batch + 1) if batch % b == 0]
    return largest(model, plan, batch, memory, tried)


@wrong("less than all")
def leaves_a_byte(model, plan, batch, memory):
    return largest(model, plan, batch, memory - 1)
