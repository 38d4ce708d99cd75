"""15.1 The norm on a mesh: whole_norm(parameters, sizes)."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import (
    naive_allreduce,
    recursive_doubling_allreduce,
    ring_allreduce,
)
from zoo import right, wrong


def counts(name, split, sizes, r):
    """Is this rank the one that counts the parameter?"""
    d, p, t = sizes
    stage = r // t % p
    if r // (p * t) > 0 or (not split and r % t > 0):
        return False
    return not (name == "token" and 0 < stage == p - 1)


def total_of(parameters, sizes, chosen=counts):
    square = torch.zeros(1, dtype=torch.float64)
    for name, x, split in parameters:
        if chosen(name, split, sizes, dist.get_rank()):
            square += x.square().sum()
    return square


@right
def each_number_once(parameters, sizes):
    square = total_of(parameters, sizes)
    ring_allreduce(square)
    return square.sqrt().item()


@right
def shares_instead_of_choices(parameters, sizes):
    """Each copy counts its share of the square, so that all of them make one."""
    (d, p, t), square = sizes, torch.zeros(1, dtype=torch.float64)
    for name, x, split in parameters:
        times = d * (1 if split else t) * (2 if name == "token" and p > 1 else 1)
        square += x.square().sum() / times
    recursive_doubling_allreduce(square)
    return square.sqrt()


@right
def the_last_copies_count(parameters, sizes):
    """The last data rank, tensor rank and stage count what several have."""
    d, p, t = sizes

    def last(name, split, sizes, r):
        stage = r // t % p
        other = name == "token" and p > 1 and stage == 0
        return r // (p * t) == d - 1 and (split or r % t == t - 1) and not other

    square = total_of(parameters, sizes, last)
    naive_allreduce(square)
    return square.sqrt()[0]


def with_rule(chosen):
    def norm(parameters, sizes):
        square = total_of(parameters, sizes, chosen)
        ring_allreduce(square)
        return square.sqrt().item()

    return norm


@wrong("replicated")
def counts_replicated_everywhere(parameters, sizes):
    return with_rule(lambda k, cut, s, r: counts(k, True, s, r))(parameters, sizes)


@wrong("tied")
def counts_both_tables(parameters, sizes):
    return with_rule(lambda k, cut, s, r: counts("", cut, s, r))(parameters, sizes)


@wrong("copies")
def counts_every_data_rank(parameters, sizes):
    d, p, t = sizes
    rule = lambda k, cut, s, r: counts(k, cut, s, r % (p * t))
    return with_rule(rule)(parameters, sizes)


@wrong("own")
def asks_nobody(parameters, sizes):
    return sum(x.square().sum() for _, x, _ in parameters).sqrt().item()


@wrong("sum of norms")
def adds_norms(parameters, sizes):
    norm = total_of(parameters, sizes).sqrt()
    ring_allreduce(norm)
    return norm.item()


@wrong("square")
def forgets_the_root(parameters, sizes):
    square = total_of(parameters, sizes)
    ring_allreduce(square)
    return square.item()


@wrong("sum of norms")
def adds_the_norm_of_each_parameter(parameters, sizes):
    r, total = dist.get_rank(), torch.zeros(1, dtype=torch.float64)
    for name, x, split in parameters:
        total += x.norm() if counts(name, split, sizes, r) else 0.0
    ring_allreduce(total)
    return total


@wrong("other order")
def takes_the_pipeline_for_the_fastest_axis(parameters, sizes):
    d, p, t = sizes

    def chosen(name, split, sizes, r):
        stage = r % p
        first = r // (p * t) == 0 and (split or r // p % t == 0)
        return first and not (name == "token" and 0 < stage == p - 1)

    return with_rule(chosen)(parameters, sizes)


@wrong("one stage")
def never_counts_the_last_table(parameters, sizes):
    d, p, t = sizes
    last = lambda name, r: name == "token" and r // t % p == p - 1
    chosen = lambda k, cut, s, r: counts(k, cut, s, r) and not last(k, r)
    return with_rule(chosen)(parameters, sizes)


@wrong("one stage")
def halves_the_table_always(parameters, sizes):
    (d, _, t), square = sizes, torch.zeros(1, dtype=torch.float64)
    for name, x, split in parameters:
        times = d * (1 if split else t) * (2 if name == "token" else 1)
        square += x.square().sum() / times
    ring_allreduce(square)
    return square.sqrt()


@wrong("too many bytes")
def sends_all_gradients(parameters, sizes):
    """A slot for each rank, in which it puts what it counts."""
    n, r = dist.get_world_size(), dist.get_rank()
    slots = torch.zeros(n, 40, dtype=torch.float64)
    mine = [x.flatten() for k, x, cut in parameters if counts(k, cut, sizes, r)]
    flat = torch.cat([*mine, slots[0, :0]])
    slots[r, : len(flat)] = flat
    ring_allreduce(slots)
    return slots.norm().item()


@wrong("native collective")
def with_torchs_own(parameters, sizes):
    square = total_of(parameters, sizes)
    dist.all_reduce(square)
    return square.sqrt().item()


@wrong("wrong")
def adds_up_in_float32(parameters, sizes):
    square = total_of(parameters, sizes).float()
    ring_allreduce(square)
    return square.sqrt()


@wrong("wrong")
def twice_the_norm(parameters, sizes):
    return 2 * each_number_once(parameters, sizes)
