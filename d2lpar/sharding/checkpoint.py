"""Compute activations again, which is also called activation checkpointing.

Chen, Xu, Zhang and Guestrin 2016: a part of the model keeps only its inputs, and runs
a second time during the backward pass.

    forward     part 0    part 1    part 2        keeps what enters each part
    backward    part 2 again, its backward; part 1 again, its backward; ...
"""

import torch


def recompute(run, *inputs):
    """Return `run(*inputs)`, and keep only the inputs for the backward pass.

    There `run` is called a second time, with the same random numbers.  The
    gradients are those of a plain call.  `run` must return one tensor.
    """
    anchor = torch.empty(0, requires_grad=True)  # makes autograd call backward
    return _Recompute.apply(run, anchor, *inputs)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, anchor, *inputs):
        ctx.run, ctx.random = run, _random_state()
        ctx.save_for_backward(*inputs)
        return run(*inputs)  # autograd is off in here

    @staticmethod
    def backward(ctx, grad):
        inputs = [x.detach() for x in ctx.saved_tensors]
        for x, old in zip(inputs, ctx.saved_tensors, strict=True):
            x.requires_grad_(old.requires_grad)
        now = _random_state()
        _set_random_state(ctx.random)
        with torch.enable_grad():
            output = ctx.run(*inputs)
        _set_random_state(now)
        torch.autograd.backward(output, grad)
        return None, None, *(x.grad for x in inputs)


def _random_state():
    """Return the state of the random generators of the host and the GPU."""
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), gpu


def _set_random_state(state):
    host, gpu = state
    torch.set_rng_state(host)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu)
