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

import torch
import torch.distributed as dist
from torch import nn


# Two ranks, a weight of 4 and a bias of 3: one vector, padded, two shards.
#
#     full    w0 w1 w2 w3   b0 b1 b2 --
#     own     of rank 0     of rank 1         k = 4
class Flat:
    """Parameters as one vector, of which rank r owns shard r.

    full     [n k], the parameters are views of it; zeros at the end
    own      [k], shard r: a part of full, or a copy where it is `apart`
    shard    [k], what the optimizer steps: own, or the same in the old dtype
    """

    gathering = gradient = reducing = grad = None

    def __init__(self, params, group=None, dtype=None, apart=False):
        n, r = dist.get_world_size(group), dist.get_rank(group)
        self.params, self.group, self.n = params, group, n
        self.shapes = [p.shape for p in params]
        self.k = k = -(-sum(p.numel() for p in params) // n)
        self.mine, old = slice(r * k, (r + 1) * k), params[0].dtype
        wide = params[0].detach().new_zeros(n * k)  # [n k]
        for p, part in zip(params, parts(self, wide), strict=True):
            part.copy_(p.detach())
        self.full = wide.to(dtype or old)  # [n k]
        own = self.full[self.mine]  # [k]
        self.own = own.clone() if apart else own
        shard = self.own if self.full.dtype == old else wide[self.mine].clone()
        self.shard = nn.Parameter(shard, params[0].requires_grad)
        self.missing = set(range(len(params)))  # they have no gradient yet


def parts(flat, vector):
    """The piece of a vector [n k] for each parameter, in its shape."""
    sizes = [shape.numel() for shape in flat.shapes]
    pieces = vector[: sum(sizes)].split(sizes)
    pairs = zip(pieces, flat.shapes, strict=True)
    return [piece.view(shape) for piece, shape in pairs]


def gather(flat):
    """The shards of all ranks are on their way into `full`."""
    storage = flat.full.untyped_storage()
    if storage.nbytes() == 0:
        storage.resize_(flat.full.nbytes)
    flat.gathering = dist.all_gather_into_tensor(
        flat.full, flat.own, group=flat.group, async_op=True
    )


def arrive(flat):
    """What `gather` has sent is there; the parameters are views of `full`."""
    if flat.gathering is not None:
        flat.gathering.wait()
        flat.gathering = None
    for p, part in zip(flat.params, parts(flat, flat.full), strict=True):
        p.data = part


def release(flat):
    """`full` has no memory and the parameters are empty, until `gather`."""
    if flat.gathering is not None:
        flat.gathering.wait()
        flat.gathering = None
    flat.full.untyped_storage().resize_(0)
    for p in flat.params:
        p.data = flat.full.new_empty(0)


def is_released(flat):
    """Whether `full` has no memory, and nothing is on its way there."""
    return flat.full.untyped_storage().nbytes() == 0


def collect(flat, i):
    """The gradient of parameter i is in the flat gradient, and only there.

    It is divided by n, so that the sum over ranks is the mean.
    """
    if flat.gradient is None:
        flat.gradient = torch.zeros_like(flat.full)  # [n k]
    p = flat.params[i]
    parts(flat, flat.gradient)[i].add_(p.grad, alpha=1 / flat.n)
    p.grad = None
    flat.missing.discard(i)


def reduce(flat, in_place=False):
    """Shard r of the gradient's sum is on its way to rank r; `settle` waits.

    `in_place`: it stays a part of the whole gradient, which is kept with it.
    """
    whole = flat.gradient  # [n k]
    if whole is None:  # this rank has used none of the parameters
        whole = torch.zeros_like(flat.full)
    mine = whole[flat.mine] if in_place else torch.empty_like(flat.own)  # [k]
    options = {"group": flat.group, "async_op": True}
    work = dist.reduce_scatter_tensor(mine, whole, **options)
    flat.reducing = work, mine, whole  # whole must live until it has left
    flat.gradient, flat.missing = None, set(range(len(flat.params)))


def settle(flat):
    """What `reduce` has sent is there, added to `grad` [k]."""
    if flat.reducing is not None:
        work, mine, _ = flat.reducing
        work.wait()
        flat.grad = mine if flat.grad is None else flat.grad + mine
        flat.reducing = None


def watch(flat, complete):
    """`complete(flat)` is called in backward, once it has all gradients."""

    def hook(i, _):
        collect(flat, i)
        if not flat.missing:
            complete(flat)

    for i, p in enumerate(flat.params):
        p.register_post_accumulate_grad_hook(partial(hook, i))


def split_parameters(model, units=None):
    """Pairs (module, lists of its parameters): each unit, and last the model.

    A unit is gathered and released at once; by default each child is one.
    What no unit has, or several have (tied weights), is the model's.  In a
    list all have one dtype, and all train or none.
    """
    units = list(model.children() if units is None else units)
    if not set(units) <= set(model.modules()) - {model}:
        raise ValueError("A unit is a module inside the model: one is not.")
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

    Call it as the model.  After `backward` comes `finish()`, then
    `step(optimizer)`, with an optimizer of `shards`.  Gradients are the mean
    over ranks.  All ranks bring the same parameters and use the same ones.
    With a `dtype` they compute in it; the optimizer steps shards in the old.
    """

    apart = False  # whether a shard outlives the whole

    def __init__(self, model, units=None, group=None, dtype=None):
        self.model, self.units = model, []
        for module, lists in split_parameters(model, units):
            flats = []
            for params in lists:
                flats.append(Flat(params, group, dtype, self.apart))
                (release if self.apart else arrive)(flats[-1])
            self.units.append((module, flats))
        self.flats = [flat for _, flats in self.units for flat in flats]
        self.trained = [x for x in self.flats if x.shard.requires_grad]
        self.shards = [flat.shard for flat in self.trained]

    def __call__(self, *inputs, **options):
        return self.model(*inputs, **options)


# The whole gradient is kept anyway: it is reduced in place, at the end.
class ZeRO1(Sharded):
    """Stage 1: optimizer state in n shards, the rest whole."""

    in_place = True

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for flat in self.trained:
            watch(flat, self.complete)

    def complete(self, flat):
        """Its gradient is complete on this rank: nothing to do in stage 1."""

    def finish(self):
        """`grad` of each flat is shard r of the gradients' mean."""
        reduce_rest(self.trained, self.in_place)

    def step(self, optimizer):
        """Each rank has stepped its shards, and all see the new parameters."""
        step_shards(self.trained, optimizer)
        self.renew()

    def renew(self):
        gather_all(self.trained)


def reduce_rest(flats, in_place):
    """All gradients are reduced, also those that nobody has begun with."""
    for flat in flats:
        if flat.gradient is not None or flat.reducing is flat.grad is None:
            reduce(flat, in_place)
    for flat in flats:
        settle(flat)


@torch.no_grad()
def step_shards(flats, optimizer):
    """Each `own` is what the optimizer makes of its shard and its `grad`."""
    for flat in flats:
        if flat.grad is None:
            text = "No gradients: call finish() after backward()."
            raise RuntimeError(text)
        flat.shard.grad = flat.grad.to(flat.shard.dtype)  # [k]
        flat.grad = None
    optimizer.step()
    for flat in flats:
        flat.shard.grad = None
        if flat.shard.dtype != flat.own.dtype:
            flat.own.copy_(flat.shard)


def gather_all(flats):
    """All parameters are whole, and the same on all ranks."""
    for flat in flats:
        gather(flat)
    for flat in flats:
        arrive(flat)


# A flat is reduced while backward goes on.  The one before it must have left
# by then, so that at most two gradients are whole at any time.
class ZeRO2(ZeRO1):
    """Stage 2: gradients and optimizer state in n shards."""

    in_place, last = False, None

    def complete(self, flat):
        """The whole gradient leaves; its memory is free when it has left."""
        if self.last is not None:
            settle(self.last)
        reduce(flat)
        self.last = flat


# A unit is gathered before it is used and released after, in forward and in
# backward.  The model's own parameters stay from forward to `finish`.  With
# `prefetch` the next unit is on its way meanwhile.  Units are given in the
# order in which they run, and return a tensor or a tuple of tensors.
class FSDP(ZeRO2):
    """Stage 3: parameters, gradients and optimizer state in n shards."""

    apart, in_backward = True, False

    def __init__(self, *args, prefetch=True, **options):
        super().__init__(*args, **options)
        self.prefetch = prefetch
        for i in range(len(self.units)):
            add_hooks(self, i)

    def complete(self, flat):
        super().complete(flat)
        if flat not in self.units[-1][1]:
            release(flat)  # nobody needs the values any more

    def finish(self):
        super().finish()
        self.in_backward = False
        self.renew()

    def renew(self):  # to be gathered when it is used
        for flat in self.flats:
            release(flat)


def use(model, i, following):
    """The parameters of unit i are there, the following on their way."""
    for flat in model.units[i][1]:
        if is_released(flat):
            gather(flat)
        arrive(flat)
    ahead = model.units[following % len(model.units)][1]
    for flat in ahead if model.prefetch else ():
        if is_released(flat):
            gather(flat)


# Three units: who computes, and what comes meanwhile.
#
#     forward     0      1      2           backward    2      1      0
#     gather      1      2      -           gather      1      0      -
#     release     0      1      2           release     2      1      0
#                                           reduce      2      1      0
def add_hooks(model, i):
    """Unit i is gathered before it runs and released after, both ways."""
    (module, flats), is_last = model.units[i], i == len(model.units) - 1
    frozen = [flat for flat in flats if not flat.shard.requires_grad]

    def before_forward(_, inputs):
        if is_last and model.in_backward:
            text = "The last step is open: call finish() after backward()."
            raise RuntimeError(text)
        use(model, i, i - 1 if model.in_backward else i + 1)
        for flat in () if is_last else frozen:
            on_gradient(inputs, partial(release, flat))

    def before_backward():
        model.in_backward = True
        use(model, i, i - 1)

    def after_forward(_, inputs, outputs):
        on_gradient(outputs, before_backward)
        stays = is_last and torch.is_grad_enabled()  # until `finish`
        for flat in () if model.in_backward or stays else flats:
            release(flat)

    module.register_forward_pre_hook(before_forward)
    module.register_forward_hook(after_forward)


def on_gradient(values, do):
    """`do()` is called when one of these tensors has its gradient."""

    def hook(_):
        do()

    for x in values if isinstance(values, tuple | list) else (values,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(hook)
