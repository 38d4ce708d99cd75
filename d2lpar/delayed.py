"""The gradient of a weight, put off until there is time for it.

A backward pass makes two products.  The gradient of the input is urgent, for the stage
before waits for it; that of the weight is not.  Serial truth: autograd, which makes
both at once.
"""

import torch
from torch import nn
from torch.nn import functional as F


# A product has two backward products, and only one of them is urgent:
#
#     forward    y = x w.T          to the next stage
#     B          dx = dy w          to the stage before, which waits for it
#     W          dw = dy.T x        nobody waits
class Delayed(torch.autograd.Function):
    """A product of x and a weight; the weight's gradient is put off.

    `product` is (of, by_x, by_weight): of(x, weight), and its gradients
    by_...(dy, x, weight).  A function that adds the weight's gradient to
    `weight.grad` is appended to `delayed`.  Qi et al. 2024, section 2.
    """

    @staticmethod
    def forward(ctx, x, weight, product, delayed):
        ctx.product, ctx.delayed, ctx.weight = product, delayed, weight
        ctx.save_for_backward(x, weight)  # of which a checkpoint makes copies
        return product[0](x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        _, by_x, by_weight = ctx.product
        if ctx.needs_input_grad[1]:
            later = lambda: _add(ctx.weight, by_weight, dy, x)
            ctx.delayed.append(later)
        dx = by_x(dy, x, weight) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


@torch.no_grad()  # else the gradient would keep the graph that made it
def _add(weight, by_weight, dy, x):
    gradient = by_weight(dy, x, weight)
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


LINEAR = (
    F.linear,  # x [N, D], weight [O, D] -> [N, O]
    lambda dy, x, weight: dy @ weight,  # [N, D]
    lambda dy, x, weight: dy.flatten(0, -2).T @ x.flatten(0, -2),  # [O, D]
)


def convolution(layer):
    """The product of a Conv2d, with its stride, padding and so on."""
    how = layer.stride, layer.padding, layer.dilation, layer.groups
    return (
        lambda x, weight: F.conv2d(x, weight, None, *how),
        lambda dy, x, weight: nn.grad.conv2d_input(x.shape, weight, dy, *how),
        lambda dy, x, weight: nn.grad.conv2d_weight(x, weight.shape, dy, *how),
    )


def delay_weights(module):
    """The list to which backward passes of this module append, from now on.

    The weights of nn.Linear and nn.Conv2d wait there; biases and all other
    parameters are small, and have their gradient at once.
    """
    delayed = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = _forward(layer, LINEAR, (), delayed)
        elif isinstance(layer, nn.Conv2d) and _is_plain(layer):
            product = convolution(layer)
            layer.forward = _forward(layer, product, (1, 1), delayed)
    return delayed


def _is_plain(conv):
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _forward(layer, product, tail, delayed):
    """The layer's forward, whose product puts off the weight's gradient."""

    def forward(x):
        y = Delayed.apply(x, layer.weight, product, delayed)
        return y if layer.bias is None else y + layer.bias.view(-1, *tail)

    return forward
