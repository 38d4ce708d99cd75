"""Send something away, compute, and take it in: a trip, with its gradients back.

A layer that needs tensors of other ranks can compute something else while they travel.
Autograd knows nothing of that, so two functions tell it where the trip begins and where
it ends.  Between the two calls lies what the trip hides behind, forward and backward.
"""

import torch
import torch.distributed as dist


# A trip carries something to other ranks, and gradients back, in four steps.
#
#     forward     depart(x)       something to compute     arrive()
#     backward    come_back(dx)   its backward pass        go_back(dy)
#
# Autograd runs the lower line from right to left, so both ways are hidden.
class Depart(torch.autograd.Function):
    """Return x, a token and copies of some of its rows; send what others need.

    ends    (start, stop) of the rows that are copied, [..., rows, columns]

    Backward, the copies' gradients are added to those rows, which costs less
    than autograd's sum of whole tensors.
    """

    @staticmethod
    def forward(ctx, x, trip, *ends):
        ctx.trip, ctx.ends = trip, ends
        trip.depart(x.detach())
        copies = [x[..., start:stop, :].clone() for start, stop in ends]
        return x.view_as(x), x.new_empty(0), *copies

    @staticmethod
    def backward(ctx, dx, _, *copies):
        dx = dx.clone()
        for (start, stop), gradient in zip(ctx.ends, copies, strict=True):
            dx[..., start:stop, :] += gradient
        return ctx.trip.come_back(dx), None, *[None for _ in copies]


class Arrive(torch.autograd.Function):
    """Return what has come; backward, send its gradient back to its ranks."""

    @staticmethod
    def forward(ctx, token, trip):
        ctx.trip = trip
        return trip.arrive()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.trip.go_back(*gradients)
        return gradients[0].new_empty(0), None


def post(send, recv, group):
    """Start messages at once: pairs of a tensor and a rank of the group."""
    both = (dist.isend, send), (dist.irecv, recv)
    ops = [
        dist.P2POp(do, tensor, group=group, group_peer=peer)
        for do, pairs in both
        for tensor, peer in pairs
        if tensor.numel() > 0
    ]
    return dist.batch_isend_irecv(ops) if ops else []


def wait(works):
    """Wait for messages that `post` has started."""
    for work in works:
        work.wait()
