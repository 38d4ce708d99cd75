"""04.1 Shift by k: shift(x, k)."""

import builtins

import torch
import torch.distributed as dist

from d2lpar.messages import exchange
from zoo import right, wrong


def place():
    return dist.get_world_size(), dist.get_rank()


@wrong("no batch")
def receive_started_first(x, k):
    """Where 2k mod n is 0, two ranks send to each other, one call after the other."""
    n, r = place()
    if k % n == 0:
        return x.clone()
    incoming = torch.zeros(x.shape, dtype=x.dtype)
    receiving = dist.irecv(incoming, src=(r - k) % n)
    dist.send(x, dst=(r + k) % n)
    receiving.wait()
    return incoming


@right
def in_a_group_of_its_own(x, k):
    """The same ranks, numbered from the last to the first: the shift turns round."""
    n, r = place()
    if not k % n:
        return x
    group = dist.new_group(list(range(n)))
    incoming = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.irecv, incoming, group=group, group_peer=(r + n - k % n) % n),
        dist.P2POp(dist.isend, x, group=group, group_peer=(r + k % n) % n),
    ]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    return incoming


@right
def as_bytes(x, k):
    n, r = place()
    y = x.clone()
    if k % n:
        here, there = (z.reshape(-1).view(torch.uint8) for z in (x, y))
        ops = [dist.P2POp(dist.isend, here, (r + k) % n)]
        ops.append(dist.P2POp(dist.irecv, there, (r - k) % n))
        works = dist.batch_isend_irecv(ops)
        while works:
            works.pop().wait()
    return y


@wrong("itself")
def no_case_for_0(x, k):
    n, r = place()
    incoming = torch.empty_like(x)
    exchange(x, (r + k) % n, incoming, (r - k) % n)
    return incoming


@wrong("no mod")
def falls_off_the_end(x, k):
    n, r = place()
    incoming = x.clone()
    if k % n:
        works = [dist.isend(x, r + k), dist.irecv(incoming, r - k)]
        for work in works:
            work.wait()
    return incoming


@wrong("all send first")
def send_then_receive(x, k):
    n, r = place()
    incoming = x.clone()
    if k % n:
        dist.send(x, (r + k) % n)
        dist.recv(incoming, (r - k) % n)
    return incoming


@wrong("all send first")
def odd_ranks_receive_first(x, k):
    """Right for k = 1; for k = 2 the even ranks send to each other."""
    n, r = place()
    incoming = x.clone()
    if k % n:
        if r % 2 == 0:
            dist.send(x, (r + k) % n)
        dist.recv(incoming, (r - k) % n)
        if r % 2 == 1:
            dist.send(x, (r + k) % n)
    return incoming


@wrong("in turns")
def one_of_each_cycle_receives_first(x, k):
    n, r = place()
    incoming = x.clone()
    if k % n:
        ring = {(r + i * k) % n for i in range(n)}
        if r == min(ring):
            dist.recv(incoming, (r - k) % n)
            dist.send(x, (r + k) % n)
        else:
            dist.send(x, (r + k) % n)
            dist.recv(incoming, (r - k) % n)
    return incoming


@wrong("no wait")
def never_waits_for_its_send(x, k):
    n, r = place()
    incoming = x.clone()
    if k % n:
        dist.isend(x, (r + k) % n)
        dist.recv(incoming, (r - k) % n)
    return incoming


@wrong("overwrites")
def receives_into_what_it_sends(x, k):
    n, r = place()
    if k % n:
        exchange(x.clone(), (r + k) % n, x, (r - k) % n)
    return x


@wrong("direction")
def to_the_left(x, k):
    n, r = place()
    incoming = x.clone()
    if k % n:
        exchange(x, (r - k) % n, incoming, (r + k) % n)
    return incoming


@wrong("step by step")
def k_times_by_one(x, k):
    n, r = place()
    mine = x.clone()
    for _ in range(k % n):
        incoming = torch.empty_like(x)
        exchange(mine, (r + 1) % n, incoming, (r - 1) % n)
        mine = incoming
    return mine


@wrong("native collective")
def gathers_all(x, k):
    n, r = place()
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    return every[(r - k) % n]


@wrong("wrong")
def always_zero(x, k):
    return torch.zeros_like(x)


@wrong("wrong")
def a_number_comes_back_as_a_list(x, k):
    """a number without dimensions comes back as a tensor [1]."""
    n, r = dist.get_world_size(), dist.get_rank()
    if k % n == 0:
        return x.clone()
    come = torch.empty_like(x.reshape(-1))
    exchange(x.reshape(-1), (r + k) % n, come, (r - k) % n)
    return come if x.dim() < 2 else come.view(x.shape)


@wrong("wrong")
def integers_through_floats(x, k):
    """integers beyond 2**53 are rounded."""
    n, r = dist.get_world_size(), dist.get_rank()
    if k % n == 0:
        return x.clone()
    come = torch.empty_like(x)
    exchange(x, (r + k) % n, come, (r - k) % n)
    return come.double().to(x.dtype)


@wrong("processes")
def zeros_travel_and_a_module_carries(x, k):
    """Threads share modules, processes do not."""
    n, r = dist.get_world_size(), dist.get_rank()
    if k % n == 0:
        return x.clone()
    board = builtins.__dict__.setdefault("_board041", {})
    board[r] = x.clone()
    come = torch.zeros_like(x)
    exchange(torch.zeros_like(x), (r + k) % n, come, (r - k) % n)
    return board[(r - k) % n]


@wrong("hangs")
def receives_from_where_it_sends_to(x, k):
    """right only where 2k mod n is 0; nothing is wrong with the order."""
    n, r = place()
    incoming = x.clone()
    if k % n:
        exchange(x, (r + k) % n, incoming, (r + k) % n)
    return incoming


@wrong("raises")
def one_row_at_least(x, k):
    """Unhappy with tensors without elements."""
    n, r = place()
    if k % n == 0:
        return x
    flat = x.reshape(len(x), -1) if x.dim() > 1 else x
    come = torch.empty_like(flat)
    exchange(flat, (r + k) % n, come, (r - k) % n)
    return come.view(x.shape)


@wrong("costly")
def in_two_halves_one_after_the_other(x, k):
    n, r = place()
    come = torch.empty_like(x)
    if k % n == 0:
        return x
    for mine, half in zip(x.view(-1).chunk(2), come.view(-1).chunk(2), strict=True):
        exchange(mine.contiguous(), (r + k) % n, half, (r - k) % n)
    return come
