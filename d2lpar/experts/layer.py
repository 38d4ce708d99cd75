"""Mixture of experts with the experts on different ranks: the tokens travel.

Each token has k of E experts, which are MLPs.  Rank r has the experts r E/n and up:

    step        what happens                                       sent to each rank
    route       the router chooses k experts for every token       nothing
    counts      ranks tell how many tokens come to each expert     E/n numbers
    dispatch    tokens go to the ranks of their experts            its tokens [., D]
    experts     each expert works on its tokens, of all ranks      nothing
    combine     results go back, are weighted and added            as many back

Backward, the same exchanges run in reverse.  n ranks, r this rank, N tokens of this
rank, M that came, D features, H the width inside an expert.  Serial truth: `MoE` with
the tokens of all ranks, in the order of the ranks.  Lepikhin et al. 2020 (GShard).
"""

import copy
import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ..scatter import all_gather, all_to_all, members
from ..tensor_parallel import parts_of
from ..tensor_parallel.trips import post, wait


def route(logits, k, bias=None):
    """Choose k experts for each token; return (weights, experts), each [N, k].

    logits    [N, E], the router's score of each expert for each token
    bias      [E] or [N, E], added to the probabilities for the choice only

    A weight is the probability of the expert among all E, so the weights of a
    token add up to 1 at most, and the router learns from them.  Of equal
    experts the one with the lower number is chosen, on any number of ranks.
    """
    check_logits(logits, k)
    p = logits.softmax(-1)  # [N, E]
    ranked = p.detach() if bias is None else p.detach() + bias
    experts = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return p.gather(-1, experts), experts


def count_tokens(experts, count):
    """Return how many choices each of `count` experts has, [count]."""
    return experts[experts >= 0].bincount(minlength=count)


# Five tokens with one choice each, and two slots per expert:
#
#     token       0    1    2    3    4
#     expert      0    1    0    0    1
#     place       0    0    1    2    1
#     kept        0    1    0   -1    1      token 3 finds no slot
def drop(experts, count, slots, before=None):
    """Return `experts` with -1 for the choices that find no slot.

    slots     choices that an expert accepts, in the order of the tokens
    before    [count], choices of earlier ranks; None if there are none
    """
    flat = experts.flatten()
    place = F.one_hot(flat, count).cumsum(0).gather(1, flat[:, None])[:, 0] - 1
    if before is not None:
        place += before[flat]
    return experts.masked_fill((place >= slots).view_as(experts), -1)


def balance_loss(logits, experts, load=None):
    """Return E sum f P: 1 if all experts get as many tokens, at most E / k.

    f is the share of choices that an expert gets, P its mean probability.
    Only P has a gradient.  Fedus et al. 2021 (Switch), equation 4.

    load    [E], choices of all ranks together: the losses of the ranks then
            add up to that of all tokens.  None: these tokens are all
    """
    E, k = logits.shape[-1], experts.shape[-1]
    load = count_tokens(experts, E) if load is None else load
    choices = load.sum().clamp(min=1)
    mean = logits.softmax(-1).sum(0) / (choices / k)  # this rank's part of P
    return E * (load / choices * mean).sum()


@torch.no_grad()
def nudge(bias, load, rate=0.001):
    """Raise the bias of experts below the mean load, lower the others.

    Works in place.  DeepSeek-V3 2024, section 2.1.2: no loss, no gradient.
    """
    bias += rate * torch.sign(load.double().mean() - load)


class MoE(nn.Module):
    """Send each token through k of E experts, and add their weighted results.

    capacity    None: no token is dropped.  A number: an expert accepts at most
                capacity N k / E choices, rounded up, in the order of tokens

    The result of a dropped choice is 0, so in a network with residuals the
    token keeps only its residual.
    """

    def __init__(self, D, H, E, k, capacity=None):
        super().__init__()
        check_sizes(E, k, capacity)
        self.E, self.k, self.capacity = E, k, capacity
        self.router = nn.Linear(D, E, bias=False)
        up, down = lambda: nn.Linear(D, H), lambda: nn.Linear(H, D)
        mlps = [nn.Sequential(up(), nn.GELU(), down()) for _ in range(E)]
        self.experts = nn.ModuleList(mlps)
        self.register_buffer("bias", torch.zeros(E))

    def forward(self, x):
        """Tokens [N, D] -> [N, D]."""
        weights, experts = self.choose(x)
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, choice = torch.where(experts == e)
            made = weights[token, choice, None] * expert(x[token])  # [., D]
            y = y.index_add(0, token, made)
        return y

    def choose(self, x):
        """Return (weights, experts) of tokens, -1 for a dropped choice."""
        self.logits = self.router(x)  # [N, E]
        weights, self.chosen = route(self.logits, self.k, self.bias)
        if self.capacity is None:
            return weights, self.chosen
        table, r = self.table()
        slots = math.ceil(self.capacity * int(table.sum()) / self.E)
        return weights, drop(self.chosen, self.E, slots, table[:r].sum(0))

    def table(self):
        """Return (choices of each rank for each expert [n, E], this rank)."""
        return count_tokens(self.chosen, self.E)[None], 0

    def load(self):
        """Return the choices of the last pass for each expert, all ranks."""
        return self.table()[0].sum(0)

    def balance(self):
        """Return this rank's part of the balance loss of the last pass."""
        return balance_loss(self.logits, self.chosen, self.load())


class Trip(NamedTuple):
    """How tokens travelled, which is all that the way back needs."""

    order: torch.Tensor  # choices by expert, without dropped ones
    sent: list  # rows to each rank
    came: list  # rows from each rank
    sort: torch.Tensor  # the order by expert of the rows that came
    sizes: list  # rows for each expert of this rank
    shape: torch.Size  # [N, k] of the choices
    group: object


def plan(experts, count, group=None):
    """Return the Trip of these choices, after exchanging the counts.

    experts    [N, k] numbers below `count`; -1 goes nowhere
    """
    n, _ = parts_of(count, "experts", group)
    flat = experts.flatten()
    order = flat.sort(stable=True).indices[int((flat < 0).sum()) :]
    mine = count_tokens(experts, count).view(n, -1)  # [n, E/n]
    theirs = torch.empty_like(mine)
    all_to_all(list(theirs), list(mine), group)
    own = torch.arange(count // n, device=flat.device).repeat(n)
    sort = own.repeat_interleave(theirs.flatten()).sort(stable=True).indices
    sent, came = mine.sum(1).tolist(), theirs.sum(1).tolist()
    sizes = theirs.sum(0).tolist()
    return Trip(order, sent, came, sort, sizes, experts.shape, group)


# Rank 0 has the experts 0 1, rank 1 the experts 2 3; letters are tokens:
#
#     rank 0    a -> 2 0    b -> 2 1    in order a b a b: two to each rank
#     rank 1    c -> 0 2                in order c c: one to each rank
#     arrived   rank 0: a b c           rank 1: a b c
#     sorted    rank 0: a c | b         rank 1: a b c |
def dispatch(x, experts, count, group=None):
    """Send tokens to the ranks of their experts; return (rows, trip).

    x          [N, D], this rank's tokens; ranks may have different N
    experts    [N, k], the experts of each token, -1 for none
    count      experts of all ranks together, a multiple of n

    rows [M, D] are the tokens for this rank's experts, one expert after the
    other, `trip.sizes` for each; a token comes once for each choice.
    """
    check_tokens(x, experts, count)
    trip = plan(experts, count, group)
    leaving = x[trip.order // trip.shape[1]]
    rows = Exchange.apply(leaving, trip.sent, trip.came, group)
    return rows[trip.sort], trip


def combine(y, trip, weights=None):
    """Send results back to their tokens, and add them up; return [N, D].

    y          [M, D], in the order of the rows that `dispatch` returned
    weights    [N, k], what a result is multiplied by; None: 1
    """
    by_rank = y[trip.sort.argsort()]
    back = Exchange.apply(by_rank, trip.came, trip.sent, trip.group)
    return gathered(back, trip, weights)


def gathered(back, trip, weights):
    """Weight results in the order of their departure; add them, [N, D]."""
    if weights is not None:
        back = back * weights.flatten()[trip.order, None]
    empty = back.new_zeros(trip.shape[0], *back.shape[1:])
    return empty.index_add(0, trip.order // trip.shape[1], back)


class Exchange(torch.autograd.Function):
    """Send `sent[i]` rows to rank i, get `came[i]`; backward, the reverse."""

    @staticmethod
    def forward(ctx, x, sent, came, group=None):
        ctx.way_back = came, sent, group
        rows, works = start(x, sent, came, group)
        wait(works)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        rows, works = start(dy, *ctx.way_back)
        wait(works)
        return rows, None, None, None


@torch.no_grad()
def start(x, sent, came, group=None):
    """Start an exchange of rows; return (rows that will come, works).

    All messages start at once, one to each rank that gets a row.  `x` must
    stay as it is until the works have been waited for.
    """
    n, r = members(group)
    x = x.contiguous()
    rows = x.new_empty(sum(came), *x.shape[1:])
    mine, theirs = x.split(sent), rows.split(came)
    theirs[r].copy_(mine[r])
    right, left = [[(r + s * k) % n for k in range(1, n)] for s in (1, -1)]
    send, recv = [(mine[i], i) for i in right], [(theirs[i], i) for i in left]
    return rows, post(send, recv, group)


class ExpertParallel(MoE):
    """The same layer with E/n experts on each rank, and tokens that travel.

    moe      the whole layer, equal on all ranks

    A token's gradient is complete after backward, and so is that of an expert,
    because all its tokens came here.  The router's is a part, to be summed
    over the ranks.  With a capacity it drops what one device drops.
    """

    def __init__(self, moe, group=None):
        nn.Module.__init__(self)
        n, r = parts_of(moe.E, "experts", group)
        self.E, self.k, self.capacity = moe.E, moe.k, moe.capacity
        self.group, own = group, moe.E // n
        self.router = copy.deepcopy(moe.router)
        self.experts = copy.deepcopy(moe.experts[r * own : (r + 1) * own])
        self.register_buffer("bias", moe.bias.clone())

    def forward(self, x):
        """This rank's tokens [N, D] -> [N, D]."""
        weights, experts = self.choose(x)
        rows, trip = dispatch(x, experts, self.E, self.group)
        return combine(self.run(rows, trip), trip, weights)

    def run(self, rows, trip):
        """Return what this rank's experts make of their rows, [M, D]."""
        parts = zip(self.experts, rows.split(trip.sizes), strict=True)
        return torch.cat([expert(part) for expert, part in parts])

    def table(self):
        """All-gather the counts: a rank has to know what earlier ones sent."""
        mine = count_tokens(self.chosen, self.E)
        n, r = members(self.group)
        every = mine.new_empty(n, self.E)
        all_gather(list(every), mine, self.group)
        return every, r


def check_sizes(E, k, capacity):
    """Raise ValueError unless a layer can have these sizes."""
    if E < 1 or not 1 <= k <= E:
        text = f"A token can have 1 to {E} of {E} experts, not {k}."
        raise ValueError(f"{text} Choose a smaller k or more experts.")
    if capacity is not None and not 0 < capacity < math.inf:
        text = f"A capacity is a number above 0, not {capacity!r}."
        raise ValueError(f"{text} Use None to drop no token.")


def check_logits(logits, k):
    """Raise ValueError unless `route` can choose from these scores."""
    if logits.dim() != 2 or not logits.is_floating_point():
        text = f"logits must be floats [N, E], not {logits.dtype}"
        raise ValueError(f"{text} {list(logits.shape)}.")
    check_sizes(logits.shape[1], k, None)


def check_tokens(x, experts, count):
    """Raise ValueError unless each token has a row of numbers below count."""
    if x.dim() != 2 or experts.dim() != 2 or len(x) != len(experts):
        shapes = f"{list(x.shape)} and {list(experts.shape)}"
        raise ValueError(f"x must be [N, D] and experts [N, k], not {shapes}.")
    bad = experts[(experts < -1) | (experts >= count)]
    if experts.is_floating_point() or len(bad) > 0:
        found = bad[0].item() if len(bad) > 0 else experts.dtype
        text = f"An expert is a whole number from 0 to {count - 1}, or -1"
        more = f"for none, not {found}, on rank {dist.get_rank()}."
        raise ValueError(f"{text} {more}")
