"""Data parallel training whose communication hides behind the backward pass.

Four modules with one interface.  All leave the gradients of one device; they differ in
what an all-reduce carries, and in when it begins:

    module          one all-reduce for       begins
    NaiveDDP        each parameter           after the backward pass
    FlatDDP         all of one dtype         after the backward pass
    BucketedDDP     about `bucket_bytes`     after the backward pass
    OverlappedDDP   about `bucket_bytes`     as soon as its gradients are there

    ddp = OverlappedDDP(model)     every rank has the parameters of rank 0
    loss_of(ddp(x), y).backward()  the gradients of this rank
    ddp.finish()                   their mean over the ranks
    optimizer.step()

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", section 3.2, has the four steps in this order.
"""

import contextlib
import functools
import math
import weakref

import torch
import torch.distributed as dist
from torch import nn

USUAL = 25 * 2**20  # bytes of a bucket, as in torch


# Backward makes the last layer's gradients first: buckets fill from the end.
#
#     forward    w0 b0   w1 b1   w2 b2
#     backward                   b2 w2  ->  bucket 0
#                        b1 w1          ->  bucket 1
#                b0 w0                  ->  bucket 2, the last one on its way
def plan_buckets(tensors, bucket_bytes=math.inf):
    """Lists of tensors, in the order in which backward completes them.

    `tensors` stand in the order of the forward pass.  A list has one dtype and
    device, and is full as soon as it has `bucket_bytes` or more.
    """
    if not bucket_bytes >= 0:
        raise ValueError(f"bucket_bytes is 0 or more, not {bucket_bytes!r}.")
    filling, plan = {}, []
    for i, x in enumerate(list(tensors)[::-1]):
        kind = x.dtype, x.device
        if kind not in filling:
            filling[kind] = []
            plan.append(filling[kind])
        filling[kind].append((i, x))
        if sum(y.nbytes for _, y in filling[kind]) >= bucket_bytes:
            del filling[kind]  # full: the next one of this kind begins another
    plan.sort(key=lambda bucket: bucket[-1][0])  # by the last one to come
    return [[x for _, x in bucket] for bucket in plan]


def broadcast_state(tensors, group=None):
    """`tensors` of every rank equal those of the group's first rank, in place.

    One message for each dtype and device, however many tensors there are.
    """
    for some in plan_buckets(tensors):
        flat = torch.cat([x.detach().reshape(-1) for x in some])
        dist.broadcast(flat, group=group, group_src=0)
        pieces = flat.split([x.numel() for x in some])
        for x, new in zip(some, pieces, strict=True):
            x.detach().copy_(new.view_as(x))


# One piece of memory, and the gradients are views of it.  A flag behind them
# says whether a rank had that gradient; flags are added up with the rest.
#
#     flat    w2 w2 w2 w2 b2 b2 | 1 1
#     views   [2, 2]      [2]     flags
class Bucket:
    """The gradients of some parameters, which travel together.

    `missing` are the parameters, by number, whose gradient is not in yet.
    """

    def __init__(self, weights):
        sizes = [p.numel() for p in weights]
        self.weights, self.missing = weights, set(range(len(weights)))
        self.flat = weights[0].detach().new_zeros(sum(sizes) + len(weights))
        *pieces, self.flags = self.flat.split([*sizes, len(weights)])
        pairs = zip(pieces, weights, strict=True)
        self.views = [piece.view(p.shape) for piece, p in pairs]
        self.work = None  # of the all-reduce, while it is on its way


def put_gradient(bucket, i, scale):
    """The gradient of parameter i, times `scale`, is in its bucket."""
    p, view = bucket.weights[i], bucket.views[i]
    if p.grad.layout is not torch.strided:
        raise TypeError(
            f"A bucket holds dense gradients, and one is {p.grad.layout}: "
            "make the embedding with sparse=False."
        )
    torch.mul(p.grad, scale, out=view)
    p.grad = view  # the tensor that autograd made is free
    bucket.missing.discard(i)


def send_bucket(bucket, allreduce, group=None):
    """Its sum over ranks is on its way; a gradient missing here is zero."""
    bucket.flags.fill_(1)
    for i in bucket.missing:
        bucket.views[i].zero_()
        bucket.flags[i] = 0
    bucket.work = allreduce(bucket.flat, group)


def receive_bucket(bucket):
    """Its sum is here; a gradient that no rank had is None."""
    if bucket.work is not None:
        bucket.work.wait()
    for i in bucket.missing:
        anywhere = bucket.flags[i] != 0
        bucket.weights[i].grad = bucket.views[i] if anywhere else None
    bucket.missing, bucket.work = set(range(len(bucket.weights))), None


def begin_allreduce(tensor, group=None):
    """The sum over ranks is on its way into `tensor`: wait for the Work."""
    return dist.all_reduce(tensor, group=group, async_op=True)


class Replica(nn.Module):
    """A model that begins with the state of the group's first rank.

    In training, so does every forward pass as far as buffers are concerned.
    ValueError, TypeError: a model that cannot be trained.
    """

    def __init__(
        self,
        model,
        group=None,
        broadcast_buffers=True,
        allreduce=begin_allreduce,
    ):
        super().__init__()
        self.names = _names_of_trained(model)
        self.module, self.group, self.allreduce = model, group, allreduce
        self.synchronised, self.broadcast_buffers = True, broadcast_buffers
        broadcast_state([*model.parameters(), *model.buffers()], group)

    def forward(self, *args, **kwargs):
        if self.training and self.synchronised and self.broadcast_buffers:
            broadcast_state(self.module.buffers(), self.group)
        return self.module(*args, **kwargs)


class NaiveDDP(Replica):
    """Its `finish` averages the gradients, an all-reduce for each parameter.

    Ranks may use other parameters.  `allreduce` begins a sum and returns its
    Work, or has done it and returns None, as those of `d2lpar.allreduce`.
    """

    def __init__(self, model, group=None, bucket_bytes=0, **options):
        super().__init__(model, group, **options)
        plan = plan_buckets(self.names, bucket_bytes)
        self.buckets = [Bucket(weights) for weights in plan]
        self.begun = 0  # how many are on their way
        self.scale = 1 / dist.get_world_size(group)

    def finish(self, then=None):
        """The gradients are the mean over ranks: call it after backward.

        `then(k)` is called as soon as those of `buckets[k]` are there.
        """
        if self.synchronised:
            _average(self, then)

    def no_sync(self):
        """Inside, gradients add up on this rank, and nothing is sent."""
        return _no_sync(self)


def _average(ddp, then):
    """Send what is not on its way yet, and receive it all."""
    for bucket in ddp.buckets:
        for i in sorted(bucket.missing):
            if bucket.weights[i].grad is not None:
                put_gradient(bucket, i, ddp.scale)
    for bucket in ddp.buckets[ddp.begun :]:
        send_bucket(bucket, ddp.allreduce, ddp.group)
    ddp.begun = 0
    for k, bucket in enumerate(ddp.buckets):
        receive_bucket(bucket)
        if then is not None:
            then(k)  # while later buckets still travel


@contextlib.contextmanager
def _no_sync(ddp):
    before, ddp.synchronised = ddp.synchronised, False
    try:
        yield
    finally:
        ddp.synchronised = before


class FlatDDP(NaiveDDP):
    """The same with one all-reduce for all gradients of a dtype."""

    def __init__(self, model, group=None, **options):
        super().__init__(model, group, math.inf, **options)


class BucketedDDP(NaiveDDP):
    """The same with an all-reduce for every `bucket_bytes` of gradients."""

    def __init__(self, model, group=None, bucket_bytes=USUAL, **options):
        super().__init__(model, group, bucket_bytes, **options)


# All ranks begin buckets in the order of the plan, whatever fills up first.
#
#     backward   b2 w2 | b1 w1 | b0 w0 |
#     network          | bucket 0 | bucket 1 | bucket 2 |
#     finish                            waits for all three
class OverlappedDDP(BucketedDDP):
    """The same, and a full bucket travels while backward goes on."""

    def __init__(self, model, group=None, bucket_bytes=USUAL, **options):
        super().__init__(model, group, bucket_bytes, **options)
        weak = weakref.ref(self)  # a hook must not keep the module alive
        for k, bucket in enumerate(self.buckets):
            for i, p in enumerate(bucket.weights):
                hook = functools.partial(_arrived, weak, k, i)
                p.register_post_accumulate_grad_hook(hook)


def _arrived(weak, k, i, p):
    """Autograd has completed the gradient of `p`: place i of bucket k."""
    ddp = weak()
    if ddp is None or not ddp.synchronised:
        return
    if i not in ddp.buckets[k].missing:
        raise RuntimeError(
            f"{ddp.names[p]} has got a second gradient before finish(): call "
            "finish() after each backward, or all but the last in no_sync()."
        )
    put_gradient(ddp.buckets[k], i, ddp.scale)
    while ddp.begun < len(ddp.buckets) and not ddp.buckets[ddp.begun].missing:
        send_bucket(ddp.buckets[ddp.begun], ddp.allreduce, ddp.group)
        ddp.begun += 1


def _names_of_trained(model):
    """{parameter: name} of those with gradients; a tied one is there once."""
    if not isinstance(model, nn.Module) or isinstance(model, Replica):
        kind = type(model).__name__
        raise TypeError(f"A DDP wraps a torch.nn.Module, not a {kind}.")
    every = model.named_parameters()
    names = {p: name for name, p in every if p.requires_grad}
    if not names:
        raise ValueError("No parameter of this model requires a gradient.")
    return names
