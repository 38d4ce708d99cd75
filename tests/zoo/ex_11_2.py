"""11.2 Only the last rank learns: train(part, widths, batches, targets, lr)."""

import torch
import torch.distributed as dist

from zoo import right, wrong


def came(rows, features, src):
    x = torch.empty(rows, features, dtype=torch.float64)
    dist.recv(x, src)
    return x


def steps(part, lr, clear=True):
    with torch.no_grad():
        for p in part.parameters():
            if p.grad is not None:
                p -= lr * p.grad
                if clear:
                    p.grad = None


def place():
    return dist.get_rank(), dist.get_world_size() - 1


def mended(part, widths, batches, targets, lr, ones=False, clear=True, ask=True,
           leaf=lambda part: True, zeros=False, share=False):  # fmt: skip
    """The loop, with one thing that may be otherwise."""
    r, last = place()
    for x, y in zip(batches, targets, strict=True):
        rows = len(x)
        if r > 0:
            x = came(rows, widths[r], r - 1).requires_grad_(leaf(part))
        out = part(x)
        end, gradient = (out - y).square().sum() / rows if r == last else out, None
        if r < last:
            dist.send(out.detach(), r + 1)
            gradient = came(rows, widths[r + 1], r + 1)
            gradient = torch.ones_like(gradient) if ones else gradient
            gradient = gradient / rows if share else gradient
        if end.requires_grad or not ask:
            end.backward(gradient)
        if r > 0:
            dist.send(
                torch.zeros_like(x) if zeros and x.grad is None else x.grad, r - 1
            )
        steps(part, lr, clear)
    return list(part.parameters())


@right
def leaf_by_leaf(part, widths, batches, targets, lr):
    return mended(part, widths, batches, targets, lr)


class Cross(torch.autograd.Function):
    """From rank to rank, and back again in backward."""

    @staticmethod
    def forward(ctx, anchor, shape, src):
        ctx.src = src
        return came(*shape, src)

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient.contiguous(), ctx.src)
        return None, None, None


@right
def with_an_autograd_function(part, widths, batches, targets, lr):
    r, last = place()
    for x, y in zip(batches, targets, strict=True):
        rows, anchor = len(x), torch.zeros((), requires_grad=True)
        if r > 0:
            x = Cross.apply(anchor, (rows, widths[r]), r - 1)
        out = part(x)
        if r < last:
            dist.send(out.detach(), r + 1)
            gradient = came(rows, widths[r + 1], r + 1)
            if out.requires_grad:
                out.backward(gradient)
        else:
            ((out - y).square().sum() / rows).backward() if out.requires_grad else None
        steps(part, lr)
    return tuple(part.parameters())


@right
def by_torch_autograd_grad(part, widths, batches, targets, lr):
    r, last = place()
    mine = [p for p in part.parameters() if p.requires_grad]
    for x, y in zip(batches, targets, strict=True):
        rows = len(x)
        if r > 0:
            x = came(rows, widths[r], r - 1).requires_grad_()
        out = part(x)
        if r < last:
            dist.isend(out.detach(), r + 1).wait()
            gradient = came(rows, widths[r + 1], r + 1)
        else:
            gradient = 2 * (out - y).detach() / rows
        wanted = mine + [x] * (r > 0)
        grads = torch.autograd.grad(out, wanted, gradient) if wanted else ()
        if r > 0:
            dist.send(grads[-1].contiguous(), r - 1)
        for p, g in zip(mine, grads, strict=False):
            p.data -= lr * g
    return [p.detach() for p in part.parameters()]


@wrong("only the last")
def as_it_was(part, widths, batches, targets, lr):
    r, last = place()
    for x, y in zip(batches, targets, strict=True):
        if r > 0:
            x = came(len(x), widths[r], r - 1)
        out = part(x)
        if r < last:
            dist.send(out.detach(), r + 1)
        else:
            loss = (out - y).square().sum() / len(y)
            if loss.requires_grad:
                loss.backward()
        steps(part, lr)
    return list(part.parameters())


@wrong("no leaf")
def forgets_the_leaf(*given):
    return mended(*given, leaf=lambda part: False, ask=False)


@wrong("ones")
def goes_back_with_ones(part, widths, batches, targets, lr):
    return mended(part, widths, batches, targets, lr, ones=True)


@wrong("old")
def never_clears(part, widths, batches, targets, lr):
    return mended(part, widths, batches, targets, lr, clear=False)


@wrong("divides again")
def a_mean_at_each_border(*given):
    return mended(*given, share=True)


@wrong("thaws")
def wakes_all_parameters(part, *given):
    for p in part.parameters():
        p.requires_grad = True
    return mended(part, *given)


@wrong("frozen")
def does_not_ask(part, widths, batches, targets, lr):
    return mended(part, widths, batches, targets, lr, ask=False)


@wrong("hangs")
def wants_the_gradient_first(part, widths, batches, targets, lr):
    r, last = place()
    for x, y in zip(batches, targets, strict=True):
        rows = len(x)
        if r > 0:
            x = came(rows, widths[r], r - 1).requires_grad_()
        if r < last:
            gradient = came(rows, widths[r + 1], r + 1)
            out = part(x)
            dist.send(out.detach(), r + 1)
            out.backward(gradient)
        else:
            ((part(x) - y).square().sum() / rows).backward()
        if r > 0:
            dist.send(x.grad, r - 1)
        steps(part, lr)
    return list(part.parameters())


@wrong("no list")
def returns_the_part(part, widths, batches, targets, lr):
    mended(part, widths, batches, targets, lr)
    return part


@wrong("chatty")
def tells_the_shape_each_time(part, widths, batches, targets, lr):
    r, last = place()
    note = torch.tensor([0, 0])
    if r > 0:
        dist.recv(note, r - 1)
    if r < last:
        dist.send(note, r + 1)
    return mended(part, widths, batches, targets, lr)


@wrong("frozen")
def zeros_from_a_frozen_part(*given):
    """All learn where no rank is frozen, so nothing is said of the last rank."""
    learns = lambda part: any(p.requires_grad for p in part.parameters())
    return mended(*given, leaf=learns, zeros=True)
