"""Gradients of weights, put off until there is time for them.

A backward pass computes two products.  The gradient of the input is urgent, because the
stage before waits for it; the gradient of the weight is not.  Serial truth: autograd,
which computes both at once.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F


# Backward, a product becomes two products, and only one of them is urgent:
#
#     forward    y = x w.T          to the next stage
#     B          dx = dy w          to the stage before, which waits for it
#     W          dw = dy.T x        no rank waits for it
class Delayed(torch.autograd.Function):
    """Multiply x by a weight, and put the weight's gradient off.

    `product` is (of, by_x, by_weight): of(x, weight), and its two gradients
    by_...(dy, x, weight).  Backward appends to `delayed` a function that adds
    the weight's gradient to `weight.grad`.  Qi et al. 2024, section 2.
    """

    @staticmethod
    def forward(ctx, x, weight, product, delayed):
        ctx.product, ctx.delayed, ctx.weight = product, delayed, weight
        ctx.save_for_backward(x, weight)  # a checkpoint recomputes these
        return product[0](x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _, by_x, by_weight = ctx.product
        if ctx.needs_input_grad[1]:
            add = partial(_add, ctx.weight, by_weight, dy, x)
            ctx.delayed.append(add)
        dx = by_x(dy, x, weight) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


@torch.no_grad()  # or the gradient would keep the graph that made it
def _add(weight, by_weight, dy, x):
    gradient = by_weight(dy, x, weight)
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


LINEAR = (
    F.linear,  # x [N, D], weight [O, D] -> [N, O]
    lambda dy, x, weight: dy @ weight,  # [N, D]
    lambda dy, x, weight: dy.flatten(0, -2).T @ x.flatten(0, -2),  # [O, D]
)


def convolution(layer):
    """Return the product of a Conv2d, with its stride, padding and so on."""
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return (
        lambda x, weight: F.conv2d(x, weight, None, *how),
        lambda dy, x, weight: nn.grad.conv2d_input(x.shape, weight, dy, *how),
        lambda dy, x, weight: nn.grad.conv2d_weight(x, weight.shape, dy, *how),
    )


def delay_weights(module):
    """Put off the gradients of a module's weights; return a list of them.

    From now on, backward passes append to it a function for each weight of
    an nn.Linear or nn.Conv2d, whole or split by columns or rows, which adds
    the gradient.  Biases and all other parameters are small, and get their
    gradients at once.
    """
    delayed = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = _forward(layer, LINEAR, (), delayed)
        elif isinstance(layer, nn.Conv2d) and _is_plain(layer):
            product = convolution(layer)
            layer.forward = _forward(layer, product, (1, 1), delayed)
        elif getattr(layer, "dim", None) == -1 and hasattr(layer, "product"):
            of = lambda x, weight: Delayed.apply(x, weight, LINEAR, delayed)
            layer.product = of  # a part of a linear layer
    return delayed


def _is_plain(conv):
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _forward(layer, product, tail, delayed):
    """Return a forward for the layer that puts off its weight's gradient."""

    def forward(x):
        y = Delayed.apply(x, layer.weight, product, delayed)
        return y if layer.bias is None else y + layer.bias.view(-1, *tail)

    return forward
