"""Train with data parallelism: a rank has its rows, and all ranks share one gradient.

The table shows five rows on two ranks.  The loss is a mean over all rows, so each row
counts 1/5, whichever rank has it:

                  rank 0                   rank 1
    shard         rows 0 1 2               rows 3 4
    backward      (g0 + g1 + g2) / 5       (g3 + g4) / 5           partial sums
    all-reduce    (g0 + ... + g4) / 5      (g0 + ... + g4) / 5     the same bits
    step          w - lr g                 w - lr g                the same weights

n is the number of ranks, r this rank, N the rows of the whole batch, m the number of
micro-batches, C the number of channels.  The serial truth is the same model on one
device with the whole batch.  All ranks start with equal weights, for instance from
equal seeds.  The all-reduce is an argument: any function that can be called like
`ring_allreduce(tensor, group=group)` will do, `dist.all_reduce` included.
"""

import itertools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .allreduce import ring_allreduce
from .scatter import members, tree_broadcast


# Eight rows on three ranks: the first N mod n ranks have one row more.
#
#     rank    0          1          2
#     rows    0 1 2      3 4 5      6 7
def shard(batch, group=None):
    """Return this rank's rows of the batch, as views.

    batch    a tensor [N, ...], or a tuple of tensors with N rows each

    Each row goes to exactly one rank.  With fewer rows than ranks, some ranks
    get 0 rows.  No message is sent, because every rank has the batch.
    """
    n, r = members(group)
    if isinstance(batch, torch.Tensor):
        if batch.dim() == 0:
            raise ValueError("A batch has rows; this tensor has no dimension.")
        return batch.tensor_split(n)[r]  # [N/n, ...]
    if not isinstance(batch, tuple | list):
        kind = type(batch).__name__
        raise TypeError(f"A batch is a tensor or a tuple of them, not {kind}.")
    parts = [shard(part, group) for part in batch]
    rows = [len(part) for part in batch]
    if len(set(rows)) > 1:
        raise ValueError(f"The parts of a batch have {rows} rows, unequal.")
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)


#     rank          0       1       2
#     parameter 0   sum     sum     sum      one all-reduce for each parameter,
#     parameter 1   sum     sum     sum      in the model's order on all ranks
@torch.no_grad()
def sum_gradients(model, allreduce=ring_allreduce, group=None):
    """Sum the gradient of every parameter over all ranks, in place.

    This is right if each rank's loss is its part of the whole loss.  Frozen
    parameters are left out, and tied ones are summed once.  Raises ValueError
    if a parameter has no gradient.
    """
    for gradient in trained_gradients(model):
        whole = gradient.contiguous()  # itself, or a copy where it has gaps
        allreduce(whole, group=group)
        if whole is not gradient:
            gradient.copy_(whole)


@torch.no_grad()
def average_gradients(
    model,
    allreduce=ring_allreduce,
    weight=None,
    group=None,
):
    """Average the gradient of every parameter over all ranks, in place.

    weight    rows behind this rank's gradient; None if all ranks have as many

    This is right if each rank's loss is the mean over its own rows.  A rank of
    weight 0 does not count.  If a rank's loss depends on rows of other ranks,
    as with SyncBatchNorm, scale the loss instead and use `sum_gradients`.
    """
    share = 1 / members(group)[0]
    if weight is not None:
        share = share_of_rows(weight, allreduce, group)
    for gradient in trained_gradients(model):
        if share == 0:
            gradient.zero_()  # the mean of no rows is NaN, and so is 0 * NaN
        else:
            gradient *= share
    sum_gradients(model, allreduce, group)


def share_of_rows(weight, allreduce, group):
    """Return this rank's weight divided by that of all ranks.

    It takes an all-reduce of 8 bytes.  Raises ValueError if all weights are 0.
    """
    if not 0 <= weight < math.inf:
        raise ValueError(f"A weight is a number of rows, not {weight}.")
    total = torch.tensor([float(weight)], dtype=torch.float64)
    allreduce(total, group=group)
    if total == 0:
        raise ValueError("The weights of all ranks are 0: no rank has a row.")
    return weight / total.item()


def trained_gradients(model):
    """Return the gradients of all parameters that are trained, in model order.

    Raises ValueError if one is missing or sparse.
    """
    found = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                kind = "no" if gradient is None else "a sparse"
                raise ValueError(
                    f"{name} has {kind} gradient on rank {dist.get_rank()}: "
                    "use it in the loss, or freeze it on all ranks."
                )
            found.append(gradient)
    return found


# Two ranks with two micro-batches each: one all-reduce for all of them.
#
#     rank 0    F B rows 0 1    F B row 2    all-reduce    step
#     rank 1    F B row 3       F B row 4    all-reduce    step
def train_step(
    model, loss, batch, optimizer, allreduce=ring_allreduce, group=None, m=1
):
    """Make one training step on the whole batch, the same on every rank.

    batch    (inputs, targets), the whole batch, equal on all ranks
    loss     (outputs, targets) -> the sum of the losses of these rows
    m        micro-batches: a rank takes its rows in m parts, to save memory

    Returns this rank's part of the mean loss, which is the sum of all parts.
    """
    N = len(batch[0])
    if N == 0 or m < 1:
        raise ValueError(f"A step has a row and a part, not N = {N}, m = {m}.")
    parts = [x.tensor_split(m) for x in shard(batch, group)]
    optimizer.zero_grad()
    total = 0.0
    for x, y in zip(*parts, strict=True):
        part = loss(model(x), y) / N  # what these rows add to the mean
        part.backward()  # .grad grows by its gradient
        total = total + part.detach()
    sum_gradients(model, allreduce, group)
    optimizer.step()
    return total


@torch.no_grad()
def check_replicas(model, group=None):
    """Raise ValueError unless all ranks have rank 0's parameters and buffers.

    They are compared bit by bit, and the error names the first that differs.
    Each of rank 0's tensors is broadcast along the tree of chapter 05.
    """
    both = itertools.chain(model.named_parameters(), model.named_buffers())
    for name, tensor in both:
        mine = tensor.detach().contiguous().view(-1, 1)
        first = mine.clone()
        tree_broadcast(first, 0, group)
        unequal = first.view(torch.uint8) != mine.view(torch.uint8)  # bytes
        if unequal.any():
            count = int(unequal.any(dim=1).sum())
            raise ValueError(
                f"{name} of rank {dist.get_rank(group)} is not rank 0's: "
                f"{count:,} of {len(mine):,} numbers differ. Start all ranks "
                "with one seed, or broadcast the model."
            )


class SyncBatchNorm(nn.BatchNorm2d):
    """Normalise over the rows of all ranks, as nn.BatchNorm on one device.

    x is [N/n, C] or [N/n, C, ...], and the options are those of nn.BatchNorm.
    The forward pass sums C+1 and then C numbers over the ranks, the backward
    pass 2C.  All ranks must call it equally often, even with 0 rows, and their
    losses must be parts of the whole loss.
    """

    def __init__(self, C, allreduce=ring_allreduce, group=None, **options):
        super().__init__(C, **options)
        self.over = allreduce, group

    def forward(self, x):
        """Return x normalised per channel; in training, update statistics."""
        _check_channels(x, self.num_features)
        if not self.training and self.track_running_stats:
            four = self.running_mean, self.running_var, self.weight, self.bias
            return F.batch_norm(x, *four, eps=self.eps)
        normal, mean, var, M = _Normalise.apply(x, self.eps, *self.over)
        if self.training and self.track_running_stats:
            _remember(self, mean, var * M / (M - 1))
        if self.affine:
            normal = normal * _column(self.weight, x) + _column(self.bias, x)
        return normal.to(x.dtype)


class _Normalise(torch.autograd.Function):
    """(x - mean) / std over all ranks' rows, and mean, variance, count."""

    @staticmethod
    def forward(ctx, x, eps, allreduce, group):
        normal, scale, *statistics = _normalise(x, eps, allreduce, group)
        ctx.over = allreduce, group
        ctx.save_for_backward(normal, scale, statistics[-1])
        ctx.mark_non_differentiable(*statistics)
        return normal, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx, g, *_):
        normal, scale, M = ctx.saved_tensors
        sums = torch.cat([_channel_sums(g), _channel_sums(g * normal)])  # [2C]
        allreduce, group = ctx.over
        allreduce(sums, group=group)
        shift, turn = (sums / M).chunk(2)  # through the mean, the variance
        g = g - _column(shift, g) - normal * _column(turn, g)
        return g * _column(scale, g), None, None, None


def _normalise(x, eps, allreduce, group):
    """Return (normalised x, 1 / std, mean, variance, count) over all ranks."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    count = x.new_tensor([x.numel() / x.shape[1]])
    sums = torch.cat([_channel_sums(x), count])  # [C+1], partial sums
    allreduce(sums, group=group)
    mean, M = sums[:-1] / sums[-1], sums[-1]
    if M < 2:
        raise ValueError("Batch norm needs two values per channel to train.")
    x = x - _column(mean, x)
    squares = _channel_sums(x * x)  # [C], partial sums, around the common mean
    allreduce(squares, group=group)
    var = squares / M
    scale = (var + eps).rsqrt()
    return x * _column(scale, x), scale, mean, var, M


def _channel_sums(x):
    """Return the sums over everything but the channels, [C]."""
    return x.sum([d for d in range(x.dim()) if d != 1])


def _column(v, x):
    """Return v [C] as [1, C, 1, ...], so that it broadcasts with x."""
    return v.view(1, -1, *[1] * (x.dim() - 2))


@torch.no_grad()
def _remember(norm, mean, var):
    """Move the running statistics towards these, as torch does."""
    norm.num_batches_tracked += 1
    part = norm.momentum
    if part is None:
        part = 1 / norm.num_batches_tracked.item()  # the mean of all so far
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), part)
    norm.running_var.lerp_(var.to(norm.running_var.dtype), part)


def _check_channels(x, C):
    if x.dim() < 2 or x.shape[1] != C:
        shape = list(x.shape)
        raise ValueError(f"x needs the shape [N, {C}, ...], not {shape}.")


def convert_batch_norms(model, allreduce=ring_allreduce, group=None):
    """Return the model with each nn.BatchNorm replaced by a SyncBatchNorm.

    Parameters and buffers stay the same objects, with the same names.
    """
    if isinstance(model, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        options = {"eps": model.eps, "momentum": model.momentum}
        options |= {"affine": model.affine, "device": "meta"}
        options |= {"track_running_stats": model.track_running_stats}
        new = SyncBatchNorm(model.num_features, allreduce, group, **options)
        for name, tensor in model.named_parameters():
            setattr(new, name, tensor)
        for name, tensor in model.named_buffers():
            setattr(new, name, tensor)
        return new.train(model.training)
    for name, child in model.named_children():
        setattr(model, name, convert_batch_norms(child, allreduce, group))
    return model


def scaled_lr(step, base, k, warmup=0):
    """Return the learning rate at `step` for a batch k times as large.

    It is k times `base`, and grows evenly from `base` during the first
    `warmup` steps.  Linear scaling and gradual warm-up: Goyal et al. 2017,
    sections 2.1 and 2.2.
    """
    if k <= 0 or warmup < 0:
        raise ValueError(f"k > 0 and warmup >= 0, please, not {k}, {warmup}.")
    done = min(1, step / warmup) if warmup else 1
    return base * (1 + (k - 1) * done)
