"""18.1 Once is enough: once(x, experts, count)."""

import torch
import torch.distributed as dist

from d2lpar.experts import Exchange, dispatch, start
from d2lpar.scatter import all_gather, all_to_all
from d2lpar.tensor_parallel.trips import wait
from zoo import right, wrong


def wanted(experts, count, spread=None):
    """[N, n]: does this token need this rank?"""
    n = dist.get_world_size()
    home = experts // (count // n) if spread is None else spread(experts)
    home = home.masked_fill(experts < 0, n)
    return (home[:, None] == torch.arange(n)[:, None]).any(-1)


def rows_of(x, need, move=Exchange.apply):
    sizes = need.sum(0)
    there = torch.empty_like(sizes)
    n = len(sizes)
    all_to_all(list(there.view(n, 1)), list(sizes.view(n, 1)))
    token = torch.cat([torch.where(need[:, r])[0] for r in range(n)])
    return move(x[token], sizes.tolist(), there.tolist(), None)


@right
def ranks_for_experts(x, experts, count):
    """The chapter's dispatch, with ranks in the place of experts."""
    n = dist.get_world_size()
    visits = torch.arange(n).where(wanted(experts, count), -1)
    return dispatch(x, visits, n)[0]


@right
def by_hand(x, experts, count):
    return rows_of(x, wanted(experts, count))


@right
def with_torchs_exchange(x, experts, count):
    class Moved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, sent, came):
            ctx.way = came, sent
            return single(x, sent, came)

        @staticmethod
        def backward(ctx, dy):
            return single(dy, *ctx.way), None, None

    return rows_of(x, wanted(experts, count), lambda *a: Moved.apply(*a[:3]))


def single(x, sent, came):
    out = x.new_empty(sum(came), x.shape[1])
    dist.all_to_all_single(out, x.contiguous(), came, sent)
    return out


@wrong("no way back")
def moves_numbers_only(x, experts, count):
    def move(rows, *sizes):
        came, works = start(rows.detach(), *sizes)
        wait(works)
        return came.requires_grad_()

    return rows_of(x, wanted(experts, count), move)


@wrong("a copy per choice")
def the_chapters_dispatch(x, experts, count):
    return dispatch(x, experts, count)[0]


@wrong("dealt out")
def in_turn(x, experts, count):
    n = dist.get_world_size()
    return rows_of(x, wanted(experts, count, lambda e: e % n))


@wrong("dropped travel")
def minus_one_is_the_last(x, experts, count):
    n = dist.get_world_size()
    home = experts.div(count // n, rounding_mode="floor") % n
    return rows_of(x, (home[:, None] == torch.arange(n)[:, None]).any(-1))


@wrong("drawn to rank 0")
def rounds_towards_zero(x, experts, count):
    home = experts.div(count // dist.get_world_size(), rounding_mode="trunc")
    ranks = torch.arange(dist.get_world_size())
    return rows_of(x, (home[:, None] == ranks[:, None]).any(-1))


@wrong("other width")
def divides_by_the_ranks(x, experts, count):
    n = dist.get_world_size()
    return rows_of(x, wanted(experts, count, lambda e: e // n))


@wrong("several to a rank")
def a_rank_for_each_choice(x, experts, count):
    n = dist.get_world_size()
    home = experts.div(count // n, rounding_mode="floor")
    return dispatch(x, home, n)[0]


@wrong("several to a rank")
def compares_neighbours_only(x, experts, count):
    n = dist.get_world_size()
    home = experts.div(count // n, rounding_mode="floor")
    again = home[:, 1:] == home[:, :-1]
    home[:, 1:] = home[:, 1:].masked_fill(again, -1)
    return dispatch(x, home, n)[0]


@wrong("with trip")
def all_of_dispatch(x, experts, count):
    n = dist.get_world_size()
    return dispatch(x, torch.arange(n).where(wanted(experts, count), -1), n)


@wrong("first choice")
def looks_at_one_choice(x, experts, count):
    return rows_of(x, wanted(experts[:, :1], count))


@wrong("not its own")
def forgets_its_own(x, experts, count):
    need = wanted(experts, count)
    need[:, dist.get_rank()] = False
    return rows_of(x, need)


@wrong("everything")
def counts_of_everyone(x, experts, count):
    """Gathers the sizes of all pairs on all ranks, which are n times as many."""
    n, r = dist.get_world_size(), dist.get_rank()
    need = wanted(experts, count)
    every = need.sum(0).new_empty(n, n)
    all_gather(list(every), need.sum(0))
    token = torch.cat([torch.where(need[:, r])[0] for r in range(n)])
    return Exchange.apply(x[token], every[r].tolist(), every[:, r].tolist(), None)


@wrong("everything")
def all_tokens_to_all(x, experts, count):
    n, r = dist.get_world_size(), dist.get_rank()
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(n)]
    all_gather(sizes, torch.tensor([len(x)]))
    came = [int(size) for size in sizes]
    rows = Exchange.apply(x.repeat(n, 1), [len(x)] * n, came, None)
    need = wanted(experts, count)[:, r].long()
    every = [need.new_empty(size) for size in came]
    all_gather(every, need)
    mask = wanted(experts, count).T.long().contiguous()  # [n, N]
    mine = Exchange.apply(mask.flatten(), [len(x)] * n, came, None)
    return rows[mine == 1]
