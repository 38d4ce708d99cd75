"""Sharding: n ranks keep one model together, and train as if each had all of it.

What a rank holds between backward and step, and what moves:

    stage            parameters   gradients   optimizer   moves in a step
    data parallel    whole        whole       whole       all-reduce
    1  ZeRO1         whole        whole       a shard     reduce-scatter, all-gather
    2  ZeRO2         whole        a shard     a shard     reduce-scatter, all-gather
    3  FSDP          a shard      a shard     a shard     reduce-scatter, 2 all-gathers

n ranks, r this rank, k elements in a shard.  All stages are used alike:

    model = FSDP(net)
    optimizer = torch.optim.Adam(model.shards)
    loss(model(x), y).backward()
    model.finish()             the gradients are complete, a shard on each rank
    model.step(optimizer)      each rank steps its shard

Source: Rajbhandari, Rasley, Ruwase and He 2020 (ZeRO), section 5.
"""

from collections import Counter
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn


# Two ranks, a weight of 4 and a bias of 3: one vector, padded, cut in two shards.
#
#     full    w0 w1 w2 w3   b0 b1 b2 --
#     own     of rank 0     of rank 1         k = 4
class Flat:
    """Parameters as one vector, of which rank r owns shard r.

    full     [n k], the parameters are views of it; zeros at the end
    own      [k], shard r: a part of full, or a copy where it is `apart`
    shard    [k], what the optimizer steps: own, or the same in the old dtype
    """

    work = gradient = grad = reducing = None  # what is on its way, what has come

    def __init__(self, params, group=None, dtype=None, apart=False):
        n, r = dist.get_world_size(group), dist.get_rank(group)
        self.params, self.group, self.n = params, group, n
        self.shapes, self.sizes = [p.shape for p in params], [p.numel() for p in params]
        self.k = -(-sum(self.sizes) // n)
        self.mine = slice(r * self.k, (r + 1) * self.k)
        wide = params[0].detach().new_zeros(n * self.k)  # [n k]
        for p, part in zip(params, parts(self, wide), strict=True):
            part.copy_(p.detach())
        self.full = wide.to(dtype or wide.dtype)  # [n k]
        self.own = self.full[self.mine].clone() if apart else self.full[self.mine]
        shard = self.own if dtype in (None, wide.dtype) else wide[self.mine].clone()
        self.shard = nn.Parameter(shard, params[0].requires_grad)
        self.waiting_for = set(range(len(params)))  # parameters without gradient


def parts(flat, vector):
    """The piece of a vector [n k] that belongs to each parameter, in its shape."""
    pieces = vector[: sum(flat.sizes)].split(flat.sizes)
    return [x.view(shape) for x, shape in zip(pieces, flat.shapes, strict=True)]


def gather(flat):
    """The shards of all ranks are on their way into `full`."""
    storage = flat.full.untyped_storage()
    if storage.nbytes() == 0:
        storage.resize_(flat.full.nbytes)
    flat.work = dist.all_gather_into_tensor(
        flat.full, flat.own, group=flat.group, async_op=True
    )


def arrive(flat):
    """What `gather` has sent is there; the parameters are views of `full`."""
    if flat.work is not None:
        flat.work.wait()
        flat.work = None
    for p, part in zip(flat.params, parts(flat, flat.full), strict=True):
        p.data = part


def release(flat):
    """`full` has no memory, and the parameters are empty, until it is gathered."""
    if flat.work is not None:
        flat.work.wait()
        flat.work = None
    flat.full.untyped_storage().resize_(0)
    for p in flat.params:
        p.data = flat.full.new_empty(0)


def is_released(flat):
    """Whether `full` has no memory, and nothing is on its way there."""
    return flat.full.untyped_storage().nbytes() == 0


def collect(flat, i):
    """The gradient of parameter i, over n, is in the flat gradient, and only there.

    Over n, because the sum over ranks shall be the mean.
    """
    if flat.gradient is None:
        flat.gradient = torch.zeros_like(flat.full)  # [n k]
    p = flat.params[i]
    parts(flat, flat.gradient)[i].add_(p.grad, alpha=1 / flat.n)
    p.grad = None
    flat.waiting_for.discard(i)


def reduce(flat, in_place=False):
    """Shard r of the gradient's sum is on its way to rank r; `settle` waits.

    `in_place`: it stays a part of the whole gradient, which is kept with it.
    """
    whole = flat.gradient  # [n k]
    if whole is None:  # this rank has used none of the parameters
        whole = torch.zeros_like(flat.full)
    mine = whole[flat.mine] if in_place else torch.empty_like(flat.own)  # [k]
    work = dist.reduce_scatter_tensor(mine, whole, group=flat.group, async_op=True)
    flat.reducing = work, mine, whole
    flat.gradient, flat.waiting_for = None, set(range(len(flat.params)))


def settle(flat):
    """What `reduce` has sent is there, added to `grad` [k]."""
    if flat.reducing is not None:
        work, mine, _ = flat.reducing
        work.wait()
        flat.grad = mine if flat.grad is None else flat.grad + mine
        flat.reducing = None


def watch(flat, complete):
    """`complete(flat)` is called in backward, when it has all its gradients."""

    def hook(i, _):
        collect(flat, i)
        if not flat.waiting_for:
            complete(flat)

    for i, p in enumerate(flat.params):
        p.register_post_accumulate_grad_hook(partial(hook, i))


def split_parameters(model, units=None):
    """Pairs (module, lists of its parameters): each unit, and last the model.

    A unit is gathered and released at once; by default each child is one.  What
    no unit has, or several have (tied weights), is the model's.  The parameters
    of a list have one dtype, and all of them train or none.
    """
    units = list(model.children() if units is None else units)
    if not set(units) <= set(model.modules()) - {model}:
        raise ValueError("A unit is a module inside the model; here is another.")
    users = Counter(p for unit in units for p in unit.parameters())
    pairs = []
    for module in (*units, model):
        lists = {}
        for p in module.parameters():
            if (users[p] == 1) == (module is not model):
                lists.setdefault((p.dtype, p.requires_grad), []).append(p)
        pairs.append((module, list(lists.values())))
    return pairs


class Sharded:
    """A model whose parameters are cut into flats: what all stages share.

    Call it as the model; after `backward` comes `finish()`, then `step(optimizer)`
    with an optimizer of `shards`.  Gradients are the mean over ranks.  All ranks
    bring the same parameters, and use the same ones in a step.  With a `dtype`
    they compute in it, and the optimizer steps shards in the old one.
    """

    apart = False  # whether shards outlive the whole

    def __init__(self, model, units=None, group=None, dtype=None):
        self.model, self.units = model, []
        for module, lists in split_parameters(model, units):
            flats = []
            for params in lists:
                flats.append(Flat(params, group, dtype, self.apart))
                (release if self.apart else arrive)(flats[-1])
            self.units.append((module, flats))
        self.flats = [flat for _, flats in self.units for flat in flats]
        self.trained = [flat for flat in self.flats if flat.shard.requires_grad]
        self.shards = [flat.shard for flat in self.trained]

    def __call__(self, *inputs, **options):
        return self.model(*inputs, **options)


class ZeRO1(Sharded):
    """Optimizer state in n shards; parameters and gradients whole (stage 1)."""

    in_place = True  # shard r of the gradient stays a part of the whole one

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for flat in self.trained:
            watch(flat, self.complete)

    def complete(self, flat):
        """Stage 1 reduces at the end: the whole gradient is kept anyway."""

    def finish(self):
        """`grad` of each flat is shard r of the mean of the ranks' gradients."""
        for flat in self.trained:
            if flat.gradient is not None or flat.grad is flat.reducing is None:
                reduce(flat, self.in_place)
        for flat in self.trained:
            settle(flat)

    def step(self, optimizer):
        """All parameters are stepped, each on its owner, and whole again."""
        step_shards(self.trained, optimizer)
        for flat in self.trained:
            gather(flat)
        for flat in self.trained:
            arrive(flat)


@torch.no_grad()
def step_shards(flats, optimizer):
    """`own` of each flat is what the optimizer makes of its shard and its `grad`."""
    for flat in flats:
        if flat.grad is None:
            raise RuntimeError("No gradients: call finish() after backward().")
        flat.shard.grad = flat.grad.to(flat.shard.dtype)  # [k]
        flat.grad = None
    optimizer.step()
    for flat in flats:
        flat.shard.grad = None
        if flat.shard.dtype != flat.own.dtype:
            flat.own.copy_(flat.shard)


class ZeRO2(ZeRO1):
    """Optimizer state and gradients in n shards; parameters whole (stage 2).

    A flat is reduced as soon as its gradient is complete, while backward goes
    on; the one before it must have arrived by then.  So at most two are whole.
    """

    in_place, last = False, None

    def complete(self, flat):
        """The whole gradient leaves, and its memory is free when it has left."""
        if self.last is not None:
            settle(self.last)
        reduce(flat)
        self.last = flat


class FSDP(ZeRO2):
    """Parameters, gradients and optimizer state in n shards (stage 3).

    A unit is gathered before it is used and released after, in forward and in
    backward; the model's own parameters stay from forward to `finish`.  With
    `prefetch` the next unit is on its way meanwhile.  Units stand in the order
    in which they run, and return a tensor or a tuple of tensors.
    """

    apart = True

    def __init__(self, model, units=None, group=None, dtype=None, prefetch=True):
        super().__init__(model, units, group, dtype)
        self.prefetch, self.in_backward = prefetch, False
        for i in range(len(self.units)):
            add_hooks(self, i)

    def complete(self, flat):
        """The gradient leaves, and a unit's parameters are no more needed."""
        super().complete(flat)
        if flat not in self.units[-1][1]:
            release(flat)

    def finish(self):
        """As before; and all parameters are released."""
        super().finish()
        self.in_backward = False
        for flat in self.flats:
            release(flat)

    def step(self, optimizer):
        """All parameters are stepped, each on its owner; nothing moves."""
        step_shards(self.trained, optimizer)
        for flat in self.flats:
            release(flat)


def use(model, i, following):
    """The parameters of unit i are there, those of the following on their way."""
    for flat in model.units[i][1]:
        if is_released(flat):
            gather(flat)
        arrive(flat)
    for flat in model.units[following][1] if model.prefetch else ():
        if is_released(flat):
            gather(flat)


# Three units: who computes, and what comes meanwhile.
#
#     forward     0      1      2           backward    2      1      0
#     gather      1      2      -           gather      1      0      -
#     release     0      1      2           release     2      1      0
#                                           reduce      2      1      0
def add_hooks(model, i):
    """Unit i is gathered before it runs and released after, in both directions."""
    module, flats = model.units[i]
    is_last = i == len(model.units) - 1  # the model itself

    def before_forward(_, inputs):  # also in backward, to recompute activations
        if is_last and model.in_backward:
            raise RuntimeError("The last step is open: call finish() after backward().")
        use(model, i, i - 1 if model.in_backward else (i + 1) % len(model.units))
        frozen = [flat for flat in flats if not flat.shard.requires_grad]
        if not is_last:
            on_gradient(inputs, lambda: list(map(release, frozen)))

    def before_backward():
        model.in_backward = True
        use(model, i, i - 1)

    def after_forward(_, inputs, outputs):
        on_gradient(outputs, before_backward)
        if not (model.in_backward or (is_last and torch.is_grad_enabled())):
            for flat in flats:
                release(flat)

    module.register_forward_pre_hook(before_forward)
    module.register_forward_hook(after_forward)


def on_gradient(values, do):
    """`do()` is called when the gradient of one of these tensors is complete."""

    def hook(_):
        do()

    for x in values if isinstance(values, tuple | list) else (values,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(hook)


class Memory(NamedTuple):
    """Bytes that a rank holds between backward and step."""

    parameters: int
    gradients: int
    optimizer: int


def memory(sizes, n, stage, parameter=4, gradient=4, state=8):
    """The Memory of a rank, for flats of so many elements each.

    Stage 0 is data parallel.  `parameter`, `gradient` and `state` are bytes per
    element: Adam has two numbers of 4 bytes; in mixed precision it is 2, 2, 12.
    ZeRO 2020, figure 1; a shard has ceil(size / n) elements.
    """
    shard = sum(-(-size // n) for size in sizes)
    whole = n * shard if stage else sum(sizes)
    held = [shard if stage >= least else whole for least in (3, 2, 1)]
    return Memory(held[0] * parameter, held[1] * gradient, held[2] * state)


def traffic(sizes, n, stage, itemsize=4, kept=()):
    """Bytes that a rank sends in a step of stage 1, 2 or 3.

    A move of a flat sends n-1 shards.  There are two moves, and three in stage
    3, except for flats that are `kept` from forward to backward: the model's
    own.  All of them train.  ZeRO 2020, section 7.
    """
    moves = 3 if stage == 3 else 2
    shards = [-(-size // n) for size in sizes], [-(-size // n) for size in kept]
    return (n - 1) * itemsize * (moves * sum(shards[0]) + 2 * sum(shards[1]))


def held(model, optimizer):
    """The Memory that this rank really holds, each storage counted once."""
    flats, seen = model.flats, []

    def count(tensors):
        total = 0
        for x in tensors:
            storage = None if x is None else x.untyped_storage()
            if storage is not None and not any(storage is other for other in seen):
                seen.append(storage)
                total += storage.nbytes()
        return total

    states = [x for state in optimizer.state.values() for x in state.values()]
    return Memory(
        count(x for flat in flats for x in (flat.full, flat.own)),
        count(x for flat in flats for x in (flat.gradient, flat.grad)),
        count([*model.shards, *filter(torch.is_tensor, states)]),
    )
