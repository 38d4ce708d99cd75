"""Send something away, compute, and take it in: a trip, with its gradients back.

A layer that needs tensors of other ranks can compute something else while they travel.
Autograd knows nothing of that, so two functions tell it where the trip begins and where
it ends.  Between the two calls lies what the trip hides behind, forward and backward.
"""

import torch
import torch.distributed as dist

from ..scatter import all_gather, members


# A trip carries something to other ranks, and gradients back, in four steps.
#
#     forward     send_rows            something to compute     collect_rows
#     backward    collect_gradients    its backward pass        send_gradients
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
        ctx.trip, ctx.ends, trip.gradients_sent = trip, ends, False
        trip.send_rows(x.detach())
        copies = [x[..., start:stop, :].clone() for start, stop in ends]
        return x.view_as(x), x.new_empty(0), *copies

    @staticmethod
    def backward(ctx, dx, _, *copies):
        dx = dx.clone()
        for (start, stop), gradient in zip(ctx.ends, copies, strict=True):
            dx[..., start:stop, :] += gradient
        if not ctx.trip.gradients_sent:  # unused here, but other ranks wait
            ctx.trip.send_gradients(*map(dx.new_zeros, ctx.trip.shapes))
        return ctx.trip.collect_gradients(dx), None, *[None for _ in copies]


class Arrive(torch.autograd.Function):
    """Return what has come; backward, send its gradient back to its ranks."""

    @staticmethod
    def forward(ctx, token, trip):
        ctx.trip, came = trip, trip.collect_rows()
        parts = came if isinstance(came, tuple) else (came,)
        trip.shapes = [rows.shape for rows in parts]
        return came

    @staticmethod
    def backward(ctx, *gradients):
        ctx.trip.gradients_sent = True
        ctx.trip.send_gradients(*gradients)
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


def gather_number(number, like, group=None):
    """Return the numbers of all ranks; 8 bytes go to each of the others.

    like    a tensor; the number travels from where it lies
    """
    device = "cpu" if like.is_meta else like.device
    mine = torch.tensor([number], device=device)
    every = [torch.empty_like(mine) for _ in range(members(group)[0])]
    all_gather(every, mine, group)
    return [int(found) for found in every]
