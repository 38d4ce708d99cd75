"""Network partition: give every rank some whole layers, and send their values on.

A small U-Net of six layers, cut before layer 3.  Value i is what layer i makes, value
-1 the input:

    layer      0      1      2     |     3        4       5
    takes     -1      0      1     |    2, 1     3, 0     4
                                   |
    across the cut:  down go the values 0, 1, 2, up come the gradients 0, 2, 1

A value goes straight to each part that takes it, however many parts lie between.
p parts, one for each rank, r this rank, N rows of the batch.  Serial truth:
`layers.Whole`, the same layers on one device.
"""

import torch
import torch.distributed as dist
from torch import nn

from .layers import build, comes_in


# Sender and receiver agree on an order:
#
#     down    values, in the order in which they are made
#     up      gradients, in the order in which they become final: each does
#             when backward has passed the earliest layer that takes the value
def way_back(net, first, last):
    """Return the values that come in, in the order their gradients leave."""
    begins = {}
    for i in range(last - 1, first - 1, -1):
        begins |= dict.fromkeys(net[i].needs, i)
    return sorted(comes_in(net, first, last), key=lambda v: (-begins[v], -v))


def home_of(part, v):
    """Return the rank that makes value v."""
    return sum(end <= max(v, 0) for end in part.ends) - 1


def like_value(part, v):
    """Make an empty tensor for value v or its gradient, with part.x's rows."""
    if v < 0:
        return torch.empty_like(part.x, memory_format=torch.contiguous_format)
    row, dtype = part.size[v].row, part.size[v].dtype
    return torch.empty(len(part.x), *row, dtype=dtype)


def open_receives(part):
    """Start to receive all values from other parts: {v: (buffer, Work)}."""
    coming = {}
    for v in comes_in(part.net, part.first, part.last):
        buffer, src = like_value(part, v), home_of(part, v)
        coming[v] = buffer, dist.irecv(buffer, group=part.group, group_src=src)
    return coming


def forward_part(part, x):
    """Run this rank's layers; return the output on the last rank, else None.

    Rank 0 reads x, the other ranks only its shape.  All receives are open from
    the start, and a value leaves as soon as it is made.
    """
    values, going, part.x = {}, [], x
    part.sent, part.came, part.queue = {}, {}, []
    coming = open_receives(part)
    if part.r == 0:
        values[-1] = x
        going += send_value(part, -1, x)
    for i, layer in enumerate(part.layers, start=part.first):
        for v in part.net[i].needs:
            if v not in values:
                values[v] = receive_value(part, v, *coming[v])
        values[i] = layer(*[values[v] for v in part.net[i].needs])
        going += send_value(part, i, values[i])
    for work, _ in going:
        work.wait()
    return values[i] if part.last == len(part.net) else None


def send_value(part, v, value):
    """Start to send value v to all that take it: [(Work, tensor), ...]."""
    readers = [r for r, back in enumerate(part.back) if v in back]
    if not readers:
        return []
    like = like_value(part, v)
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"Value {v} is {value.dtype} {list(value.shape)}; `sizes` said "
            f"{like.dtype} {list(like.shape)}: it wants this network and x."
        )
    part.sent[v] = value
    out = value.detach().contiguous()
    way = {"group": part.group}
    return [(dist.isend(out, group_dst=r, **way), out) for r in readers]


def receive_value(part, v, buffer, work):
    """Wait for value v; make it a leaf whose gradient goes back by itself."""
    work.wait()
    if returns(part, v):
        buffer.requires_grad_()
        leave = lambda x: send_back(part, v, x.grad)
        buffer.register_post_accumulate_grad_hook(leave)
    part.came[v] = buffer
    return buffer


def returns(part, v):
    """Tell whether value v has a gradient that goes back."""
    if v < 0:
        return part.x.requires_grad
    return part.size[v].dtype.is_floating_point


# Gradients may become final in a different order than the agreed one.  On a
# rank that owes the gradients of 0, 2, 1:
#
#     final      0     1     2
#     sent       0           2, 1
def send_back(part, v, gradient):
    """Send the gradient of value v, as soon as it is its turn."""
    part.ready[v] = gradient.contiguous()
    while part.owed and part.owed[0] in part.ready:
        v = part.owed.pop(0)
        dst, out = home_of(part, v), part.ready[v]
        part.queue.append(dist.isend(out, group=part.group, group_dst=dst))


def gradients_back(part):
    """Receive [(value, its gradient), ...] of all that later parts took."""
    coming, gradients = [], {}
    for r, back in enumerate(part.back):
        for v in (v for v in back if v in part.sent and returns(part, v)):
            buffer = like_value(part, v)
            work = dist.irecv(buffer, group=part.group, group_src=r)
            coming.append((v, buffer, work))
    for v, buffer, work in coming:
        work.wait()
        gradients[v] = gradients[v] + buffer if v in gradients else buffer
    return [(part.sent[v], gradient) for v, gradient in gradients.items()]


def backward_part(part, loss=None):
    """Give this rank's parameters their gradients.

    The last rank passes its loss.  Gradients of values arrive from later
    parts, and leave for earlier ones.
    """
    part.ready, part.queue = {}, []
    part.owed = [v for v in part.back[part.r] if returns(part, v)]
    ends = gradients_back(part) + [(loss, None)] * (loss is not None)
    ends = [(end, gradient) for end, gradient in ends if end.requires_grad]
    if ends:
        torch.autograd.backward(*zip(*ends, strict=True))
    for v in list(part.owed):  # what had no influence on the loss
        if v not in part.ready:
            send_back(part, v, torch.zeros_like(part.came[v]))
    for work in part.queue:
        work.wait()
    part.sent, part.came, part.ready = {}, {}, {}


class Part(nn.Module):
    """Hold and run this rank's layers of a network that is cut between ranks.

    net, cuts    rank r has the layers between two cuts; one part for each rank
    size         from `sizes`, for a batch of any number of rows

    Call it, then `backward`, on all ranks: parameters then have the gradients
    of one device.  Rows must be the first dimension of every value.
    """

    forward, backward = forward_part, backward_part

    def __init__(self, net, cuts, size, group=None, seed=0):
        super().__init__()
        self.ends = _ends(net, cuts, dist.get_world_size(group))
        self.net, self.size, self.group = net, size, group
        self.r = dist.get_rank(group)
        self.first, self.last = self.ends[self.r : self.r + 2]
        self.layers = build(net, self.first, self.last, seed)
        parts = zip(self.ends, self.ends[1:], strict=False)
        self.back = [way_back(net, *part) for part in parts]


def _ends(net, cuts, n):
    """Return [0, *cuts, L]; ValueError unless they make n parts."""
    ends, L = [0, *cuts, len(net)], len(net)
    if any(a >= b for a, b in zip(ends, ends[1:], strict=False)):
        raise ValueError(f"Cuts rise from 1 to {L - 1} here, not {cuts}.")
    if len(ends) != n + 1:
        raise ValueError(f"{len(ends) - 1} parts do not fit {n} ranks.")
    return ends
