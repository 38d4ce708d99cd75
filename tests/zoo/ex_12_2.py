"""12.2 One all-reduce each way: split_gated(x, weights, down, bias)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from d2lpar.allreduce import ring_allreduce
from d2lpar.allreduce.fastest import allreduce
from d2lpar.tensor_parallel import Add, ColumnParallel, Enter, Join, own_part
from zoo import right, wrong


def gates_and_ups(weights):
    """This rank's rows of both halves."""
    return [own_part(half, 0) for half in weights.chunk(2)]


@right
def enter_once(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@right
def one_product_and_a_hook(x, weights, down, bias):
    """x by both parts at once; a hook on a copy of x adds up its gradient."""
    x = x * 1.0
    x.register_hook(lambda dx: dx.clone() if ring_allreduce(dx) is None else dx)
    n, r = dist.get_world_size(), dist.get_rank()
    H = len(weights) // 2
    rows = torch.arange(H).chunk(n)[r]
    gate, up = (x @ weights[torch.cat([rows, H + rows])].T).chunk(2, -1)
    partial = (F.silu(gate) * up) @ down[:, rows].T
    total = partial.detach().clone()
    allreduce(total)
    return partial + (total - partial).detach() + bias


@wrong("enters twice")
def two_columns(x, weights, down, bias):
    """Two layers by columns, as in the chapter: each adds up its own dx."""
    gate, up = gates_and_ups(weights)
    hidden = F.silu(Enter.apply(x) @ gate.T) * (Enter.apply(x) @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@wrong("cut as one")
def one_long_layer(x, weights, down, bias):
    gate, up = (Enter.apply(x) @ own_part(weights, 0).T).tensor_split(2, -1)
    size = min(gate.shape[-1], up.shape[-1])
    hidden = F.silu(gate[..., :size]) * up[..., :size]
    return Add.apply(hidden @ own_part(down, 1).T[:size]) + bias


@wrong("wrong half")
def the_other_gate(x, weights, down, bias):
    up, gate = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@wrong("partial dx")
def not_entered(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@wrong("many biases")
def bias_inside(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T + bias)


@wrong("no way back")
def summed_without_history(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    total = (F.silu(x @ gate.T) * (x @ up.T)) @ own_part(down, 1).T
    total = total.detach().clone()
    allreduce(total)
    return total + bias


@wrong("too much")
def joined_in_the_middle(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = Join.apply(F.silu(x @ gate.T) * (x @ up.T), -1)
    return Add.apply(own_part(hidden, -1) @ own_part(down, 1).T) + bias


@wrong("other gradients")
def weights_entered(x, weights, down, bias):
    """Every rank gets the gradient of the whole weight."""
    gate, up = gates_and_ups(Enter.apply(weights))
    x = Enter.apply(x)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@wrong("no way back")
def with_the_chapters_layer(x, weights, down, bias):
    """ColumnParallel makes parameters of its own; the weights get no gradient."""
    H, D = len(weights) // 2, weights.shape[1]
    layers = [nn.Linear(D, H, bias=False).double() for _ in range(2)]
    for layer, half in zip(layers, weights.chunk(2), strict=True):
        layer.weight = nn.Parameter(half.detach().clone())
    gate, up = (ColumnParallel(layer) for layer in layers)
    return Add.apply((F.silu(gate(x)) * up(x)) @ own_part(down, 1).T) + bias


@wrong("wrong")
def without_bias(x, weights, down, bias):
    """The bias has no gradient because it is not used; y is wrong, too."""
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = F.silu(x @ gate.T) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T)


@right
def forward_once_more(x, weights, down, bias):
    """To save memory, the hidden features are made again on the way back."""

    def own(x):
        gate, up = gates_and_ups(weights)
        hidden = F.silu(x @ gate.T) * (x @ up.T)
        return hidden @ own_part(down, 1).T

    x = Enter.apply(x)
    return Add.apply(checkpoint(own, x, use_reentrant=False)) + bias


class Silent(torch.autograd.Function):
    """All-reduces ones each way, and passes on what it got."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        ring_allreduce(torch.ones_like(dx))
        return dx


def only_mine(value, dim):
    """The whole value, with a gradient for this rank's part of it only."""
    n, r = dist.get_world_size(), dist.get_rank()
    mask = [torch.full_like(p, i == r) for i, p in enumerate(value.chunk(n, dim))]
    return value.detach() + (value - value.detach()) * torch.cat(mask, dim)


@wrong("whole work")
def everything_beside_dummies(x, weights, down, bias):
    """Each rank makes the whole MLP, and sends ones for the count."""
    gate, up = (only_mine(half, 0) for half in weights.chunk(2))
    hidden = F.silu((inner := Silent.apply(x)) @ gate.T) * (inner @ up.T)
    ring_allreduce(torch.ones_like(x))
    return hidden @ only_mine(down, 1).T + bias


@wrong("whole work")
def whole_and_then_cut(x, weights, down, bias):
    """Right, but each rank computes all hidden features and keeps its own."""
    x = Enter.apply(x)
    gate, up = (x @ weights.T).chunk(2, -1)
    hidden = own_part(F.silu(gate) * up, -1)
    return Add.apply(hidden @ own_part(down, 1).T) + bias


@wrong("no products")
def added_up_by_elements(x, weights, down, bias):
    gate, up = gates_and_ups(weights)
    x = Enter.apply(x)
    hidden = F.silu((x[..., None, :] * gate).sum(-1)) * (x @ up.T)
    return Add.apply(hidden @ own_part(down, 1).T) + bias
