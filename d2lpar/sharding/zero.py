"""Train a model of which each rank holds only a part, its shard.

What a rank holds between backward and step, and what a step moves:

    stage            parameters   gradients   optimizer   moves in a step
    data parallel    whole        whole       whole       all-reduce
    1  ZeRO1         whole        whole       a shard     reduce-scatter, all-gather
    2  ZeRO2         whole        a shard     a shard     reduce-scatter, all-gather
    3  FSDP          a shard      a shard     a shard     reduce-scatter, 2 all-gathers

n is the number of ranks, r this rank, k the elements of a shard.  All stages are used
in the same way:

    model = FSDP(net)
    optimizer = torch.optim.Adam(model.shards)
    loss(model(x), y).backward()
    model.finish()             each rank has its shard of the mean gradient
    model.step(optimizer)      each rank steps its shard of the parameters

Source: Rajbhandari, Rasley, Ruwase and He 2020 (ZeRO), section 5.
"""

from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ..sim.labels import label, label_layers


class Flat:
    """Join parameters to one vector, of which rank r owns shard r.

    full     [n k], of which the parameters are views; zeros at the end
    own      [k], shard r: a part of full, or a copy of it if `apart`
    shard    [k], what the optimizer steps: own, or a copy in the old dtype
    """

    gathering = gradient = reducing = grad = None

    def __init__(self, params, group=None, dtype=None, apart=False, number=""):
        n, r = dist.get_world_size(group), dist.get_rank(group)
        self.params, self.group, self.n, self.number = params, group, n, number
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
        self.missing = set(range(len(params)))  # no gradient collected yet


def parts(flat, vector):
    """Cut a vector [n k] into a view for each parameter, in its shape."""
    sizes = [shape.numel() for shape in flat.shapes]
    pieces = vector[: sum(sizes)].split(sizes)
    pairs = zip(pieces, flat.shapes, strict=True)
    return [piece.view(shape) for piece, shape in pairs]


def gather(flat):
    """Start to gather the shards of all ranks into `full`; `arrive` waits."""
    storage = flat.full.untyped_storage()
    if storage.nbytes() == 0:
        storage.resize_(flat.full.nbytes)
    options = {"group": flat.group, "async_op": True}
    with label(flat.number):
        work = dist.all_gather_into_tensor(flat.full, flat.own, **options)
    flat.gathering = work


def arrive(flat):
    """Wait for `gather`, and make the parameters views of `full`."""
    if flat.gathering is not None:
        flat.gathering.wait()
        flat.gathering = None
    for p, part in zip(flat.params, parts(flat, flat.full), strict=True):
        p.data = part


def release(flat):
    """Free the memory of `full`, and leave the parameters empty."""
    if flat.gathering is not None:
        flat.gathering.wait()
        flat.gathering = None
    flat.full.untyped_storage().resize_(0)
    for p in flat.params:
        p.data = flat.full.new_empty(0)


def is_released(flat):
    """Return whether `full` has no memory, so that it must be gathered."""
    return flat.full.untyped_storage().nbytes() == 0


def collect(flat, i):
    """Move the gradient of parameter i into the flat gradient.

    Divides it by n, so that the sum over ranks becomes the mean.
    """
    if flat.gradient is None:
        flat.gradient = torch.zeros_like(flat.full)  # [n k]
    p = flat.params[i]
    parts(flat, flat.gradient)[i].add_(p.grad, alpha=1 / flat.n)
    p.grad = None
    flat.missing.discard(i)


def reduce(flat, in_place=False):
    """Start a reduce-scatter of the gradient; `settle` waits for shard r.

    With `in_place` the shard is a part of the whole gradient, which stays.
    """
    whole = flat.gradient  # [n k]
    if whole is None:  # this rank used none of the parameters
        whole = torch.zeros_like(flat.full)
    mine = whole[flat.mine] if in_place else torch.empty_like(flat.own)  # [k]
    options = {"group": flat.group, "async_op": True}
    with label(flat.number):
        work = dist.reduce_scatter_tensor(mine, whole, **options)
    flat.reducing = work, mine, whole  # keep whole until it has been sent
    flat.gradient, flat.missing = None, set(range(len(flat.params)))


def settle(flat):
    """Wait for `reduce`, and add its shard to `grad` [k]."""
    if flat.reducing is not None:
        work, mine, _ = flat.reducing
        work.wait()
        flat.grad = mine if flat.grad is None else flat.grad + mine
        flat.reducing = None


def watch(flat, complete):
    """Call `complete(flat)` in backward, once all its gradients are there."""

    def hook(i, p):
        if p.grad is None:  # put off, as in a zero-bubble pipeline
            return
        collect(flat, i)
        if not flat.missing:
            complete(flat)

    for i, p in enumerate(flat.params):
        p.register_post_accumulate_grad_hook(partial(hook, i))


def split_parameters(model, units=None):
    """Return pairs (module, lists of its parameters): units, then the model.

    A unit is gathered and released at once; by default each child is one.
    Parameters of no unit, or of several (tied weights), belong to the model.
    Those of a list have one dtype, and either all of them train or none.
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
    """Wrap a model whose parameters are cut into flats, for all stages.

    Call it like the model.  After `backward` call `finish()`, and then
    `step(optimizer)` with an optimizer of `shards`.  Gradients are the mean
    over ranks.  All ranks bring the same parameters and use the same ones.
    With a `dtype` the model computes in it, but the shards keep their own.
    """

    apart = False  # whether a rank keeps its shard when the whole is freed

    def __init__(self, model, units=None, group=None, dtype=None):
        self.model, self.units = model, []
        for i, (module, lists) in enumerate(split_parameters(model, units)):
            flats = [Flat(ps, group, dtype, self.apart, i) for ps in lists]
            for flat in flats:
                (release if self.apart else arrive)(flat)
            self.units.append((module, flats))
        label_layers(model, [module for module, _ in self.units[:-1]])
        self.flats = [flat for _, flats in self.units for flat in flats]
        self.trained = [x for x in self.flats if x.shard.requires_grad]
        self.shards = [flat.shard for flat in self.trained]

    def __call__(self, *inputs, **options):
        return self.model(*inputs, **options)


# A rank keeps the whole gradient, so it is reduced in place, at the end.
class ZeRO1(Sharded):
    """Shard the optimizer state (stage 1), and nothing else."""

    in_place = True

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for flat in self.trained:
            watch(flat, self.complete)

    def complete(self, flat):
        """Do nothing in stage 1 when the gradient of a flat is complete."""

    def finish(self):
        """Set `grad` of each flat to shard r of the mean gradient."""
        reduce_rest(self.trained, self.in_place)

    def step(self, optimizer):
        """Step this rank's shards, and share the new parameters with all."""
        step_shards(self.trained, optimizer)
        self.renew()

    def renew(self):
        gather_all(self.trained)


def reduce_rest(flats, in_place):
    """Reduce the gradients that are left, and wait for all of them."""
    for flat in flats:
        if flat.gradient is not None or flat.reducing is flat.grad is None:
            reduce(flat, in_place)
    for flat in flats:
        settle(flat)


@torch.no_grad()
def step_shards(flats, optimizer):
    """Step the shards with their `grad`, and copy the result to `own`."""
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
    """Gather the parameters of all flats, so that every rank has them."""
    for flat in flats:
        gather(flat)
    for flat in flats:
        arrive(flat)


# A flat is reduced while backward goes on.  It first waits for the flat before
# it, so that at most two whole gradients exist at any time.
class ZeRO2(ZeRO1):
    """Shard gradients and optimizer state (stage 2)."""

    in_place, last = False, None

    def complete(self, flat):
        """Start to reduce the whole gradient, which is freed after that."""
        if self.last is not None:
            settle(self.last)
        reduce(flat)
        self.last = flat


# Units are given in the order in which they run.  Each returns a tensor or a
# tuple of tensors.  The model's own parameters stay gathered until `finish`.
class FSDP(ZeRO2):
    """Shard parameters, gradients and optimizer state (stage 3)."""

    apart, in_backward = True, False

    def __init__(self, *args, prefetch=True, **options):
        super().__init__(*args, **options)
        self.prefetch = prefetch
        for i in range(len(self.units)):
            add_hooks(self, i)

    def complete(self, flat):
        super().complete(flat)
        if flat not in self.units[-1][1]:
            release(flat)  # this step needs the values no more

    def finish(self):
        super().finish()
        self.in_backward = False
        self.renew()

    def renew(self):  # each unit is gathered when it is used
        for flat in self.flats:
            release(flat)


def use(model, i, following):
    """Gather unit i and wait for it; with `prefetch` start the following."""
    for flat in model.units[i][1]:
        if is_released(flat):
            gather(flat)
        arrive(flat)
    ahead = model.units[following % len(model.units)][1]
    for flat in ahead if model.prefetch else ():
        if is_released(flat):
            gather(flat)


# Three units: which one computes, and what is in flight meanwhile.
#
#     forward     0      1      2           backward    2      1      0
#     gather      1      2      -           gather      1      0      -
#     release     0      1      2           release     2      1      0
#                                           reduce      2      1      0
def add_hooks(model, i):
    """Gather unit i before it runs, and release it after, both ways."""
    module = model.units[i][0]
    module.register_forward_pre_hook(partial(_before_forward, model, i))
    module.register_forward_hook(partial(_after_forward, model, i))


def _before_forward(model, i, _, inputs):
    is_model = i == len(model.units) - 1
    if is_model and model.in_backward:
        text = "The last step is open: call finish() after backward()."
        raise RuntimeError(text)
    use(model, i, i - 1 if model.in_backward else i + 1)
    for flat in () if is_model else model.units[i][1]:
        if not flat.shard.requires_grad:  # frozen: no gradient will release it
            on_gradient(inputs, partial(release, flat))


def _after_forward(model, i, _, inputs, outputs):
    on_gradient(outputs, partial(_before_backward, model, i))
    is_model = i == len(model.units) - 1
    stays = is_model and torch.is_grad_enabled()  # until `finish`
    for flat in () if model.in_backward or stays else model.units[i][1]:
        release(flat)


def _before_backward(model, i):
    model.in_backward = True
    use(model, i, i - 1)


def on_gradient(values, do):
    """Call `do()` when one of these tensors gets its gradient."""

    def hook(_):
        do()

    for x in values if isinstance(values, tuple | list) else (values,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(hook)
