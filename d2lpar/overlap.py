"""Train replicas of a model, and send gradients during the backward pass.

Four modules share one interface.  All of them end with the gradients of one device.
They differ in what an all-reduce carries, and in when it starts:

    module          one all-reduce for       starts
    NaiveDDP        each parameter           after the backward pass
    FlatDDP         all of one dtype         after the backward pass
    BucketedDDP     about `bucket_bytes`     after the backward pass
    OverlappedDDP   about `bucket_bytes`     as soon as its gradients are ready

    ddp = OverlappedDDP(model)     every rank has the parameters of rank 0
    loss_of(ddp(x), y).backward()  computes this rank's gradients
    ddp.finish()                   replaces them by the mean over ranks
    optimizer.step()

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", section 3.2, takes the four steps in this order.
"""

import contextlib
import functools
import math
import weakref

import torch
import torch.distributed as dist
from torch import nn

from .sim.labels import label_layers

USUAL = 25 * 2**20  # bytes of a bucket, as in torch


# The backward pass starts at the last layer, so buckets fill from the end.
#
#     forward    w0 b0   w1 b1   w2 b2
#     backward                   b2 w2  ->  bucket 0
#                        b1 w1          ->  bucket 1
#                b0 w0                  ->  bucket 2, the last to be sent
def plan_buckets(tensors, bucket_bytes=math.inf):
    """Divide tensors into lists, in the order in which backward ends them.

    `tensors` are in the order of the forward pass.  All tensors of a list have
    one dtype and device.  A list is full once it has `bucket_bytes` or more.
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
            del filling[kind]  # full: the next such tensor starts a new list
    plan.sort(key=lambda bucket: bucket[-1][0])  # by the last to be complete
    return [[x for _, x in bucket] for bucket in plan]


def broadcast_state(tensors, group=None):
    """Overwrite `tensors` on every rank with those of the group's first rank.

    Makes one broadcast for each dtype and device, for any number of tensors.
    """
    for some in plan_buckets(tensors):
        flat = torch.cat([x.detach().reshape(-1) for x in some])
        dist.broadcast(flat, group=group, group_src=0)
        pieces = flat.split([x.numel() for x in some])
        for x, new in zip(some, pieces, strict=True):
            x.detach().copy_(new.view_as(x))


# A bucket is one tensor, and its gradients are views of it.  One flag for each
# gradient follows: 1 if the rank had it.  The all-reduce sums the flags, too.
#
#     flat    w2 w2 w2 w2 b2 b2 | 1 1
#     views   [2, 2]      [2]     flags
class Bucket:
    """Hold the gradients of some parameters in one tensor, to send at once.

    `missing` is the set of places whose gradient has not been put in yet.
    """

    def __init__(self, weights):
        sizes = [p.numel() for p in weights]
        self.weights, self.missing = weights, set(range(len(weights)))
        self.flat = weights[0].detach().new_zeros(sum(sizes) + len(weights))
        *pieces, self.flags = self.flat.split([*sizes, len(weights)])
        pairs = zip(pieces, weights, strict=True)
        self.views = [piece.view(p.shape) for piece, p in pairs]
        self.work = None  # the Work of its all-reduce, while in flight


def put_gradient(bucket, i, scale):
    """Move the gradient of parameter i, times `scale`, into its bucket."""
    p, view = bucket.weights[i], bucket.views[i]
    if p.grad.layout is not torch.strided:
        raise TypeError(
            f"A bucket holds dense gradients, and one is {p.grad.layout}: "
            "make the embedding with sparse=False."
        )
    torch.mul(p.grad, scale, out=view)
    p.grad = view  # frees the tensor that autograd made
    bucket.missing.discard(i)


def send_bucket(bucket, allreduce, group=None):
    """Start the bucket's all-reduce, with zeros for gradients missing here."""
    bucket.flags.fill_(1)
    for i in bucket.missing:
        bucket.views[i].zero_()
        bucket.flags[i] = 0
    bucket.work = allreduce(bucket.flat, group)


def receive_bucket(bucket):
    """Wait for the bucket's sum.  A gradient that no rank had becomes None."""
    if bucket.work is not None:
        bucket.work.wait()
    for i in bucket.missing:
        anywhere = bucket.flags[i] != 0
        bucket.weights[i].grad = bucket.views[i] if anywhere else None
    bucket.missing, bucket.work = set(range(len(bucket.weights))), None


def begin_allreduce(tensor, group=None):
    """Start to sum `tensor` over ranks, in place, and return the Work."""
    return dist.all_reduce(tensor, group=group, async_op=True)


class Replica(nn.Module):
    """Wrap a model, and give it the state of the group's first rank.

    With `alike` they all have it already, so it is not sent.  In training,
    each forward pass first fetches that rank's buffers again.
    Raises TypeError or ValueError for a model that cannot be trained.
    """

    def __init__(
        self, model, group=None, broadcast_buffers=True,
        allreduce=begin_allreduce, alike=False,
    ):  # fmt: skip
        super().__init__()
        self.names = _names_of_trained(model)
        self.module = label_layers(model)  # for timelines
        self.group, self.allreduce = group, allreduce
        self.synchronised, self.broadcast_buffers = True, broadcast_buffers
        if not alike:
            broadcast_state([*model.parameters(), *model.buffers()], group)

    def forward(self, *args, **kwargs):
        if self.training and self.synchronised and self.broadcast_buffers:
            broadcast_state(self.module.buffers(), self.group)
        return self.module(*args, **kwargs)


class NaiveDDP(Replica):
    """Average gradients in `finish`, with an all-reduce for each parameter.

    Ranks may use different parameters.  `allreduce` starts a sum and returns
    its Work, or completes it and returns None, as in `d2lpar.allreduce`.
    """

    def __init__(self, model, group=None, bucket_bytes=0, **options):
        super().__init__(model, group, **options)
        plan = plan_buckets(self.names, bucket_bytes)
        self.buckets = [Bucket(weights) for weights in plan]
        self.begun = 0  # how many buckets have been sent
        self.scale = 1 / dist.get_world_size(group)

    def finish(self, then=None):
        """Replace the gradients by their mean over ranks, after backward.

        Calls `then(k)` as soon as the mean of `buckets[k]` has arrived.
        """
        if self.synchronised:
            _average(self, then)

    def no_sync(self):
        """Return a context in which gradients add up and nothing is sent."""
        return _no_sync(self)


def _average(ddp, then):
    """Send the buckets that have not been sent yet, and wait for all."""
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
            then(k)  # later buckets are still in flight


@contextlib.contextmanager
def _no_sync(ddp):
    before, ddp.synchronised = ddp.synchronised, False
    try:
        yield
    finally:
        ddp.synchronised = before


class FlatDDP(NaiveDDP):
    """Average gradients in `finish`, with one all-reduce for each dtype."""

    def __init__(self, model, group=None, **options):
        super().__init__(model, group, math.inf, **options)


class BucketedDDP(NaiveDDP):
    """Average gradients in `finish`, with an all-reduce for each bucket."""

    def __init__(self, model, group=None, bucket_bytes=USUAL, **options):
        super().__init__(model, group, bucket_bytes, **options)


# All ranks send buckets in the order of the plan, whichever is full first.
#
#     backward   b2 w2 | b1 w1 | b0 w0 |
#     network          | bucket 0 | bucket 1 | bucket 2 |
#     finish                            waits for all three
class OverlappedDDP(BucketedDDP):
    """Send each bucket when it is full, while the backward pass goes on."""

    def __init__(self, model, group=None, bucket_bytes=USUAL, **options):
        super().__init__(model, group, bucket_bytes, **options)
        weak = weakref.ref(self)  # a hook must not keep the module alive
        for k, bucket in enumerate(self.buckets):
            for i, p in enumerate(bucket.weights):
                hook = functools.partial(_arrived, weak, k, i)
                p.register_post_accumulate_grad_hook(hook)


def _arrived(weak, k, i, p):
    """Take the complete gradient of `p`, and send every full bucket."""
    ddp = weak()
    if ddp is None or not ddp.synchronised:
        return
    check_first(ddp, k, i)
    put_gradient(ddp.buckets[k], i, ddp.scale)
    while ddp.begun < len(ddp.buckets) and not ddp.buckets[ddp.begun].missing:
        send_bucket(ddp.buckets[ddp.begun], ddp.allreduce, ddp.group)
        ddp.begun += 1


def check_first(ddp, k, i):
    """Raise RuntimeError if the bucket already has this gradient."""
    bucket = ddp.buckets[k]
    if i not in bucket.missing:
        raise RuntimeError(
            f"{ddp.names[bucket.weights[i]]} has got a second gradient before "
            "finish(): call finish() after each backward, or all but the last "
            "in no_sync()."
        )


def _names_of_trained(model):
    """Map each parameter that needs a gradient to its name."""
    if not isinstance(model, nn.Module) or isinstance(model, Replica):
        kind = type(model).__name__
        raise TypeError(f"A DDP wraps a torch.nn.Module, not a {kind}.")
    every = model.named_parameters()
    names = {p: name for name, p in every if p.requires_grad}
    if not names:
        raise ValueError("No parameter of this model requires a gradient.")
    return names
