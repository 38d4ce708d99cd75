"""08.3 The forgotten buffers: train(model, batches, lr)."""

import torch
import torch.distributed as dist

from d2lpar.allreduce import ring_allreduce
from d2lpar.scatter import flat_broadcast, tree_broadcast
from zoo import right, wrong


def share(tensors, broadcast=flat_broadcast):
    for x in tensors:
        broadcast(x.detach(), 0)


def step(model, x, lr):
    n = dist.get_world_size()
    model.zero_grad()
    model(x).square().mean().backward()
    for p in model.parameters():
        ring_allreduce(p.grad)
        p.data -= lr * p.grad / n


@right
def before_each_step_and_at_the_end(model, batches, lr):
    share(model.parameters())
    for x in batches:
        share(model.buffers())
        step(model, x, lr)
    share(model.buffers())
    return model.state_dict()


@right
def after_each_step_by_a_tree(model, batches, lr):
    """The same number of times: once at the start, then after each step."""
    share([*model.parameters(), *model.buffers()], tree_broadcast)
    for x in batches:
        step(model, x, lr)
        share(model.buffers(), tree_broadcast)
    return {name: x.clone() for name, x in model.state_dict().items()}


@right
def bytes_of_all_dtypes_in_one_message(model, batches, lr):
    def together(tensors):
        tensors = [x.detach() for x in tensors]
        flat = torch.cat([x.reshape(-1).view(torch.uint8) for x in tensors])
        flat_broadcast(flat, 0)
        pieces = flat.split([x.nbytes for x in tensors])
        for x, piece in zip(tensors, pieces, strict=True):
            x.copy_(piece.clone().view(x.dtype).view(x.shape))

    together([*model.parameters(), *model.buffers()])
    for x in batches:
        step(model, x, lr)
        together(model.buffers())
    return model.state_dict()


@wrong("no state")
def returns_the_model_less_its_buffers(model, batches, lr):
    share([*model.parameters(), *model.buffers()])
    for x in batches:
        step(model, x, lr)
        share(model.buffers())
    return dict(model.named_parameters())


@wrong("never shared")
def as_it_was_given(model, batches, lr):
    share(model.parameters())
    for x in batches:
        step(model, x, lr)
    return model.state_dict()


@wrong("only the start")
def once_and_for_all(model, batches, lr):
    share([*model.parameters(), *model.buffers()])
    for x in batches:
        step(model, x, lr)
    return model.state_dict()


@wrong("at the end")
def forgets_the_end(model, batches, lr):
    share([*model.parameters(), *model.buffers()])
    for k, x in enumerate(batches):
        if k:
            share(model.buffers())
        step(model, x, lr)
    return model.state_dict()


@wrong("averaged")
def means_of_buffers(model, batches, lr):
    share([*model.parameters(), *model.buffers()])
    for x in batches:
        step(model, x, lr)
        ring_allreduce(model.mean)
        model.mean /= dist.get_world_size()
        flat_broadcast(model.seen, 0)
    return model.state_dict()


@wrong("counter")
def one_flat_tensor_of_floats(model, batches, lr):
    def together():
        flat = torch.cat([x.double().reshape(-1) for x in model.buffers()])
        flat_broadcast(flat, 0)
        sizes = [x.numel() for x in model.buffers()]
        for x, piece in zip(model.buffers(), flat.split(sizes), strict=True):
            x.copy_(piece.view(x.shape))

    share(model.parameters())
    together()
    for x in batches:
        step(model, x, lr)
        together()
    return model.state_dict()


@wrong("chatty")
def everything_each_time(model, batches, lr):
    for x in batches:
        share([*model.parameters(), *model.buffers()])
        step(model, x, lr)
    share([*model.parameters(), *model.buffers()])
    return model.state_dict()


@wrong("native collective")
def torchs_broadcast(model, batches, lr):
    for x in (*model.parameters(), *model.buffers()):
        dist.broadcast(x.detach(), 0)
    for x in batches:
        step(model, x, lr)
    return model.state_dict()


def trained(model, batches, lr, buffers, at_first=True):
    """Shares what `buffers()` returns, at the start or not, and after each step."""
    share([*model.parameters(), *(buffers() if at_first else ())])
    for x in batches:
        step(model, x, lr)
        share(buffers())
    return model.state_dict()


@wrong("not at the start")
def parameters_first(model, batches, lr):
    return trained(model, batches, lr, model.buffers, at_first=False)


@wrong("only floats")
def numbers_with_a_point(model, batches, lr):
    floats = lambda: [x for x in model.buffers() if x.is_floating_point()]
    return trained(model, batches, lr, floats)


@wrong("only the state")
def what_is_saved(model, batches, lr):
    names = [name for name, _ in model.named_parameters()]
    state = lambda: [x for name, x in model.state_dict().items() if name not in names]
    return trained(model, batches, lr, state)


@wrong("old tensors")
def one_list_for_all_steps(model, batches, lr):
    found = list(model.buffers())
    return trained(model, batches, lr, lambda: found)


@wrong("at the end")
def before_each_step_only(model, batches, lr):
    share(model.parameters())
    for x in batches:
        share(model.buffers())
        step(model, x, lr)
    return model.state_dict()
