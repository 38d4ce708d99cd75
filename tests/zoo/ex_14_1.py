"""14.1 A round world: around(x, depth)."""

import torch
import torch.distributed as dist

from d2lpar.checks.rubrics.ex_14_1 import WRONG_BACK, WRONG_ROWS
from d2lpar.hybrid import halo_exchange
from d2lpar.scatter import ring_all_gather
from zoo import right, wrong


def travel(up, down, like_above, like_below, swap=False):
    """Send `up` to the rank before and `down` to the next; (from before, from next)."""
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return down.clone(), up.clone()
    above, below = torch.empty_like(like_above), torch.empty_like(like_below)
    prev, following = (r - 1) % n, (r + 1) % n
    ops = [
        dist.P2POp(dist.isend, down.contiguous(), following),
        dist.P2POp(dist.isend, up.contiguous(), prev),
        dist.P2POp(dist.irecv, above, prev),
        dist.P2POp(dist.irecv, below, following),
    ]
    if swap:
        ops = [ops[1], ops[0], ops[2], ops[3]]
    for work in dist.batch_isend_irecv(ops if up.numel() else []) if up.numel() else ():
        work.wait()
    return above, below


class Around(torch.autograd.Function):
    """The right way, with one thing that may be otherwise."""

    @staticmethod
    def forward(ctx, x, depth, slip=""):
        ctx.depth, ctx.slip = depth, slip
        h = x.shape[2]
        up, down = x[:, :, :depth], x[:, :, h - depth :]
        if slip == "other end":
            up, down = down, up
        above, below = travel(up, down, up, down, slip == "two ranks")
        if slip == "other way round":
            above, below = below, above
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx, dy):
        depth = ctx.depth
        h = dy.shape[2] - 2 * depth
        dx = dy[:, :, depth : depth + h].clone()
        first, last = dy[:, :, :depth], dy[:, :, depth + h :]
        above, below = travel(first, last, first, last)
        if ctx.slip == "stays abroad":
            return dx, None, None
        if ctx.slip == "instead of added":
            dx[:, :, h - depth :] = below
            dx[:, :, :depth] = above
            return dx, None, None
        if ctx.slip == "one halo":
            own = dx.clone()
            dx[:, :, :depth] = own[:, :, :depth] + above
            dx[:, :, h - depth :] = own[:, :, h - depth :] + below
            return dx, None, None
        dx[:, :, h - depth :] += below
        dx[:, :, :depth] += above
        return dx, None, None


@right
def by_a_function(x, depth):
    return Around.apply(x, depth)


class Sent(torch.autograd.Function):
    """A message to the rank `step` further; its gradient goes the other way."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        return shifted(x, step)

    @staticmethod
    def backward(ctx, dy):
        return shifted(dy, -ctx.step), None


def shifted(x, step):
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1 or not x.numel():
        return x.clone()
    came = torch.empty_like(x.contiguous())
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (r + step) % n),
        dist.P2POp(dist.irecv, came, (r - step) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return came


@right
def one_direction_after_the_other(x, depth):
    above = Sent.apply(x[:, :, x.shape[2] - depth :], 1)
    below = Sent.apply(x[:, :, :depth], -1)
    return torch.cat([above, x, below], 2)


@wrong("flat world")
def the_chapters_own(x, depth):
    return halo_exchange(x, depth, depth)


def with_slip(slip):
    def around(x, depth):
        return Around.apply(x, depth, slip)

    around.__name__ = slip.replace(" ", "_")
    return around


for slip in (*WRONG_ROWS[1:], *WRONG_BACK, "one halo", "two ranks"):
    wrong(slip)(with_slip(slip))


@wrong("no way back")
def detached(x, depth):
    return Around.apply(x.detach(), depth)


@wrong("to itself")
def always_a_message(x, depth):
    n, r = dist.get_world_size(), dist.get_rank()
    if n > 1 or not depth:
        return Around.apply(x, depth)
    dist.send(x.detach(), (r + 1) % n)
    return x


class Unwaited(Around):
    """Forward, the halos are used before they are here."""

    @staticmethod
    def forward(ctx, x, depth):
        n, r = dist.get_world_size(), dist.get_rank()
        if n == 1 or not depth:
            return Around.forward(ctx, x, depth)
        ctx.depth, ctx.slip = depth, ""
        up, down = x[:, :, :depth].contiguous(), x[:, :, -depth:].contiguous()
        above, below = torch.zeros_like(down), torch.zeros_like(up)
        dist.isend(down, (r + 1) % n), dist.isend(up, (r - 1) % n)
        dist.irecv(above, (r - 1) % n), dist.irecv(below, (r + 1) % n)
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx, dy):
        return Around.backward(ctx, dy)[:2]


@wrong("race")
def never_waits(x, depth):
    return Unwaited.apply(x, depth)


@wrong("no rows")
def counts_from_the_end(x, depth):
    above, below = Sent.apply(x[:, :, -depth:], 1), Sent.apply(x[:, :, :depth], -1)
    return torch.cat([above, x, below], 2)


@wrong("hangs")
def first_everyone_sends(x, depth):
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1 or not depth:
        return Around.apply(x, depth)
    dist.send(x[:, :, -depth:].detach().contiguous(), (r + 1) % n)
    above = torch.empty_like(x[:, :, :depth]).contiguous()
    dist.recv(above, (r - 1) % n)
    return Around.apply(x, depth)


class Everything(torch.autograd.Function):
    """Before the halos, small tensors go round many times, for nothing."""

    @staticmethod
    def forward(ctx, x, depth):
        if dist.get_world_size() > 1:
            parts = [
                torch.zeros(8, dtype=x.dtype) for _ in range(dist.get_world_size())
            ]
            for _ in range(40):
                ring_all_gather(parts)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


@wrong("too much")
def with_everything_around(x, depth):
    return Around.apply(Everything.apply(x, depth), depth)
