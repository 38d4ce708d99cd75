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

BUCKET_BYTES = 25 * 2**20  # as torch has it


# Backward makes the last layer's gradients first, so the buckets fill from the end.
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


def begin_allreduce(tensor, group=None):
    """The sum over ranks is on its way into `tensor`: wait for the Work."""
    return dist.all_reduce(tensor, group=group, async_op=True)


# One piece of memory, and the gradients are views of it.  A flag behind them says
# whether a rank had that gradient; flags are added up with the rest.
#
#     flat    w2 w2 w2 w2 b2 b2 | 1 1
#     views   [2, 2]      [2]     flags
class Bucket:
    """The gradients of some parameters, which travel together."""

    def __init__(self, weights):
        sizes = [p.numel() for p in weights]
        self.weights, self.missing, self.work = weights, set(range(len(weights))), None
        self.flat = weights[0].detach().new_zeros(sum(sizes) + len(weights))
        *pieces, self.flags = self.flat.split([*sizes, len(weights)])
        self.views = [x.view(p.shape) for x, p in zip(pieces, weights, strict=True)]

    def put(self, i, scale):
        """The gradient of parameter i is in the bucket, times `scale`."""
        p, view = self.weights[i], self.views[i]
        if p.grad.layout is not torch.strided:
            raise TypeError(
                f"A bucket holds dense gradients, and one is {p.grad.layout}: "
                "make the embedding with sparse=False."
            )
        torch.mul(p.grad, scale, out=view)
        p.grad = view  # the tensor that autograd made is free
        self.missing.discard(i)

    def send(self, allreduce, group):
        """The sum over ranks is on its way; what is missing here counts as zero."""
        self.flags.fill_(1)
        for i in self.missing:
            self.views[i].zero_()
            self.flags[i] = 0
        self.work = allreduce(self.flat, group)

    def receive(self):
        """The sum is here.  A gradient that no rank has is None, as on one device."""
        if self.work is not None:
            self.work.wait()
        for i in self.missing:
            self.weights[i].grad = self.views[i] if self.flags[i] != 0 else None
        self.missing, self.work = set(range(len(self.weights))), None


class NaiveDDP(nn.Module):
    """A model whose gradients `finish` averages, one all-reduce a parameter.

    Every rank starts with the parameters and buffers of the group's first, and
    in training begins each forward pass with its buffers.  Ranks may use other
    parameters.  ValueError, TypeError: a model that cannot be trained like this.

    allreduce    begins a sum in place and returns a Work to wait for; or does
                 it at once and returns None, as those of `d2lpar.allreduce`
    """

    def __init__(
        self,
        model,
        group=None,
        bucket_bytes=0,
        broadcast_buffers=True,
        allreduce=begin_allreduce,
    ):
        super().__init__()
        self.names = _names_of_trained(model)
        self.module, self.group, self.allreduce = model, group, allreduce
        self.scale = 1 / dist.get_world_size(group)
        self.synchronised, self.broadcast_buffers = True, broadcast_buffers
        broadcast_state([*model.parameters(), *model.buffers()], group)
        plan = plan_buckets(self.names, bucket_bytes)
        self.buckets = [Bucket(weights) for weights in plan]
        self.begun = 0  # buckets that are on their way

    def forward(self, *args, **kwargs):
        """What the model returns."""
        if torch.is_grad_enabled() and any(self._has_some(b) for b in self.buckets):
            raise RuntimeError(
                "This is a forward pass, and the gradients of the last backward are "
                "still on their way: call finish() after backward."
            )
        if self.broadcast_buffers and self.synchronised and self.training:
            broadcast_state(self.module.buffers(), self.group)
        return self.module(*args, **kwargs)

    def finish(self, then=None):
        """The gradients are the mean over ranks; call it once, after backward.

        `then(k)` is called as soon as those of `buckets[k]` are there, while
        later buckets still travel.  Inside `no_sync` nothing happens.
        """
        if not self.synchronised:
            return
        for bucket in self.buckets:
            for i in sorted(bucket.missing):
                if bucket.weights[i].grad is not None:
                    bucket.put(i, self.scale)
        for bucket in self.buckets[self.begun :]:
            bucket.send(self.allreduce, self.group)
        self.begun = 0
        for k, bucket in enumerate(self.buckets):
            bucket.receive()
            if then is not None:
                then(k)

    @contextlib.contextmanager
    def no_sync(self):
        """Inside, gradients add up on this rank, and nothing is sent."""
        before, self.synchronised = self.synchronised, False
        try:
            yield
        finally:
            self.synchronised = before

    def _has_some(self, bucket):
        return len(bucket.missing) < len(bucket.weights)


class FlatDDP(NaiveDDP):
    """The same with one all-reduce for all gradients of a dtype."""

    def __init__(self, model, group=None, **options):
        super().__init__(model, group, math.inf, **options)


class BucketedDDP(NaiveDDP):
    """The same with an all-reduce for every `bucket_bytes` of gradients."""

    def __init__(self, model, group=None, bucket_bytes=BUCKET_BYTES, **options):
        super().__init__(model, group, bucket_bytes, **options)


# All ranks begin the buckets in the order of the plan, whatever fills up first.
#
#     backward   b2 w2 | b1 w1 | b0 w0 |
#     network          | bucket 0 | bucket 1 | bucket 2 |
#     finish                    waits for 0, 1 and 2
class OverlappedDDP(BucketedDDP):
    """The same, and a full bucket travels while backward goes on."""

    def __init__(self, model, group=None, bucket_bytes=BUCKET_BYTES, **options):
        super().__init__(model, group, bucket_bytes, **options)
        arrived = weakref.WeakMethod(self._arrived)  # else it would never be freed
        for k, bucket in enumerate(self.buckets):
            for i, p in enumerate(bucket.weights):
                hook = functools.partial(_call, arrived, k, i)
                p.register_post_accumulate_grad_hook(hook)

    def _arrived(self, k, i, p):
        """The gradient of `p` is complete: it goes to place i of bucket k."""
        if not self.synchronised:
            return
        bucket = self.buckets[k]
        if i not in bucket.missing:
            raise RuntimeError(
                f"{self.names[p]} has got a second gradient before finish(): call "
                "finish() after each backward, or all but the last inside no_sync()."
            )
        bucket.put(i, self.scale)
        while self.begun < len(self.buckets) and not self.buckets[self.begun].missing:
            self.buckets[self.begun].send(self.allreduce, self.group)
            self.begun += 1


def _call(method, *args):
    """Call it, unless its object is gone."""
    alive = method()
    if alive is not None:
        alive(*args)


def _names_of_trained(model):
    """{parameter: name} of those that have gradients; a tied one stands there once."""
    if not isinstance(model, nn.Module) or isinstance(model, NaiveDDP):
        kind = type(model).__name__
        raise TypeError(f"A DDP wraps a model, a torch.nn.Module, not a {kind}.")
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    if not names:
        raise ValueError("No parameter of this model requires a gradient.")
    return names
