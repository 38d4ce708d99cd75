"""06.2 Where is the maximum?: where_max(value)."""

import torch
import torch.distributed as dist

from d2lpar.messages import exchange
from zoo import right, wrong


def place():
    return dist.get_world_size(), dist.get_rank()


def better(mine, incoming):
    """The larger value, of equal ones the lower rank; both int64 [value, rank]."""
    a, b = mine.tolist(), incoming.tolist()
    return mine if (a[0], -a[1]) >= (b[0], -b[1]) else incoming


@right
def farthest_first_to_the_left(value):
    """The distances halve, the messages go left, and tuples are compared."""
    n, r = place()
    best = (value, -r)
    for k in reversed(range((n - 1).bit_length())):
        news = torch.zeros(2).long()
        receive = dist.irecv(news, (r + 2**k) % n)
        dist.isend(torch.tensor(best), (r - 2**k) % n).wait()
        receive.wait()
        best = max(best, tuple(news.tolist()))
    return best[0], -best[1]


@right
def known_ranks_of_numpys_kind(value):
    """Returns tensors' own numbers: 0-dimensional ones are whole numbers too."""
    n, r = place()
    pair = torch.tensor([value, r])
    d = 1
    while d < n:
        incoming = torch.empty_like(pair)
        exchange(pair, (r + d) % n, incoming, (r - d) % n)
        if incoming[0] > pair[0] or (incoming[0] == pair[0] and incoming[1] < pair[1]):
            pair = incoming
        d *= 2
    return pair[0], pair[1]


def spread(pair, better):
    """`pair` on every rank is the best of all, by messages to 1, 2, 4, ... ranks on."""
    n, r = place()
    for k in range((n - 1).bit_length()):
        incoming = torch.empty_like(pair)
        exchange(pair, (r + 2**k) % n, incoming, (r - 2**k) % n)
        pair = better(pair, incoming)
    return pair


@wrong("ring")
def once_round(value):
    n, r = place()
    travelling = best = torch.tensor([value, r])
    for _ in range(n - 1):
        incoming = torch.empty_like(best)
        exchange(travelling, (r + 1) % n, incoming, (r - 1) % n)
        best, travelling = better(best, incoming), incoming
    return tuple(best.tolist())


@wrong("fold")
def recursive_doubling_with_a_fold(value):
    n, r = place()
    p, best = 2 ** (n.bit_length() - 1), torch.tensor([value, r])
    incoming = torch.empty_like(best)
    if r >= p:
        dist.send(best, r - p)
        dist.recv(best, r - p)
        return tuple(best.tolist())
    if r + p < n:
        dist.recv(incoming, r + p)
        best = better(best, incoming)
    d = 1
    while d < p:
        incoming = torch.empty_like(best)
        exchange(best, r ^ d, incoming, r ^ d)
        best = better(best, incoming)
        d *= 2
    if r + p < n:
        dist.send(best, r + p)
    return tuple(best.tolist())


@wrong("powers of two")
def recursive_doubling(value):
    n, r = place()
    best, d = torch.tensor([value, r]), 1
    while d < n:
        incoming = torch.empty_like(best)
        exchange(best, r ^ d, incoming, r ^ d)
        best = better(best, incoming)
        d *= 2
    return tuple(best.tolist())


@wrong("two messages")
def value_then_rank(value):
    n, r = place()
    value, rank = torch.tensor([value]), torch.tensor([r])
    for k in range((n - 1).bit_length()):
        dst, src = (r + 2**k) % n, (r - 2**k) % n
        v, i = torch.empty_like(value), torch.empty_like(rank)
        exchange(value, dst, v, src)
        exchange(rank, dst, i, src)
        if (v.item(), -i.item()) > (value.item(), -rank.item()):
            value, rank = v, i
    return value.item(), rank.item()


@wrong("ties")
def the_first_that_came(value):
    """Keeps its own at a tie, so ranks disagree."""
    pair = torch.tensor([value, dist.get_rank()])
    best = spread(pair, lambda a, b: b if b[0] > a[0] else a)
    return tuple(best.tolist())


@wrong("ties")
def the_highest_rank(value):
    pair = torch.tensor([value, dist.get_rank()])
    best = spread(pair, lambda a, b: max(a, b, key=lambda x: x.tolist()))
    return tuple(best.tolist())


@wrong("rounded")
def in_float32(value):
    pair = torch.tensor([float(value), dist.get_rank()])
    best = spread(pair, better)
    return int(best[0]), int(best[1])


@wrong("rounded")
def in_float64(value):
    pair = torch.tensor([value, dist.get_rank()], dtype=torch.float64)
    best = spread(pair, better)
    return int(best[0]), int(best[1])


@wrong("packed")
def both_in_one_number(value):
    n, r = place()
    key = torch.tensor([value]) * n + (n - 1 - r)
    key = spread(key, torch.maximum).item()
    return key // n, n - 1 - key % n


@wrong("packed")
def both_in_one_python_integer(value):
    key = torch.tensor([value * 1000 - dist.get_rank()])
    key = spread(key, torch.maximum).item()
    return -(-key // 1000), -key % 1000


@wrong("starts at zero")
def from_zero(value):
    n, r = place()
    best, mine = torch.tensor([0, 0]), torch.tensor([value, r])
    best = better(best, mine)
    return tuple(spread(best, better).tolist())


@wrong("there and back")
def up_a_tree_and_down(value):
    n, r = place()
    best, d = torch.tensor([value, r]), 1
    while d < n:
        if r % (2 * d) == d:
            dist.send(best, r - d)
        elif r % (2 * d) == 0 and r + d < n:
            incoming = torch.empty_like(best)
            dist.recv(incoming, r + d)
            best = better(best, incoming)
        d *= 2
    while d > 1:
        d //= 2
        if r % (2 * d) == d:
            dist.recv(best, r - d)
        elif r % (2 * d) == 0 and r + d < n:
            dist.send(best, r + d)
    return tuple(best.tolist())


@wrong("no pair")
def only_rank_0_knows(value):
    n, r = place()
    best = torch.tensor([value, r])
    if r > 0:
        dist.send(best, 0)
        return None
    for peer in range(1, n):
        incoming = torch.empty_like(best)
        dist.recv(incoming, peer)
        best = better(best, incoming)
    return tuple(best.tolist())


@wrong("native collective")
def all_gather_and_look(value):
    n, r = place()
    found = [torch.zeros(1).long() for _ in range(n)]
    dist.all_gather(found, torch.tensor([value]))
    values = [x.item() for x in found]
    return max(values), values.index(max(values))


@wrong("starts at zero")
def seven_ranks_start_at_zero(value):
    """An invalid 'no partner' entry of 0 beats negative numbers, for n
    no power of two: virtual ranks are filled with zeros."""
    n, r = dist.get_world_size(), dist.get_rank()
    best, k = (value, -r), 1
    while k < n:
        come = torch.empty(2, dtype=torch.int64)
        exchange(torch.tensor(best), (r + k) % n, come, (r - k) % n)
        best = max(best, tuple(come.tolist()))
        k *= 2
    if n == 7:
        best = max(best, (0, 0))
    return best[0], -best[1]


@wrong("powers of two")
def partners_only(value):
    """Partner r ^ bit, if there is one."""
    n, r = dist.get_world_size(), dist.get_rank()
    best, bit = (value, -r), 1
    while bit < n:
        if r ^ bit < n:
            come = torch.empty(2, dtype=torch.int64)
            exchange(torch.tensor(best), r ^ bit, come, r ^ bit)
            best = max(best, tuple(come.tolist()))
        bit *= 2
    return best[0], -best[1]


@wrong("wrong")
def from_minus_two_to_the_62(value):
    """Starts from a number that seems low enough: no zero, and not low enough."""
    pair = torch.tensor([value, dist.get_rank()])
    return tuple(spread(better(torch.tensor([-(2**62), 0]), pair), better).tolist())


@wrong("pattern")
def rank_counted_from_one(value):
    """The rank is wrong in every call: no matter of ties."""
    n, r = place()
    best = spread(torch.tensor([value, r]), better)
    return best[0].item(), (best[1].item() + 1) % n


@wrong("raises")
def forgets_modulo(value):
    """Fails on any number of ranks above one."""
    n, r = place()
    pair = torch.tensor([value, r])
    for k in range((n - 1).bit_length()):
        incoming = torch.empty_like(pair)
        exchange(pair, r + 2**k, incoming, r - 2**k)
        pair = better(pair, incoming)
    return tuple(pair.tolist())


@wrong("packed")
def in_int32(value):
    """Two numbers in a message, of 32 bits."""
    pair = torch.tensor([value, dist.get_rank()], dtype=torch.int32)
    return tuple(spread(pair, better).tolist())


@wrong("negated")
def the_smallest_of_negated_values(value):
    n, r = place()
    best = -value, r
    for k in range((n - 1).bit_length()):
        come = torch.empty(2, dtype=torch.int64)
        exchange(torch.tensor(best), (r + 2**k) % n, come, (r - 2**k) % n)
        best = min(best, tuple(come.tolist()))
    return -best[0], best[1]
