"""Compute activations again, and save a run: two things called checkpoint.

Recomputing (Chen, Xu, Zhang and Guestrin 2016): a part of the model keeps only its
inputs, and runs a second time during the backward pass.

    forward     part 0    part 1    part 2        keeps what enters each part
    backward    part 2 again, its backward; part 1 again, its backward; ...

Saving: every rank writes its shards.  The folder gets its name once all are in it:

    rank 0      writes step-12.part/rank-0-of-2.pt     all meet     renames the folder
    rank 1      writes step-12.part/rank-1-of-2.pt     all meet     to step-12
"""

import os
import re
from pathlib import Path

import torch
import torch.distributed as dist

from .zero import arrive, gather


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


def save(folder, step, model, optimizer):
    """Write a complete checkpoint of all ranks to `folder`/step-<step>.

    Each rank writes its shards, optimizer state, buffers and random state to
    the same file system.  Raises ValueError if the checkpoint exists already.
    """
    group, final = model.flats[0].group, Path(folder) / f"step-{step}"
    if final.exists():
        text = f"There is a checkpoint of step {step} already: remove it."
        raise ValueError(text)
    part = final.with_name(final.name + ".part")
    part.mkdir(parents=True, exist_ok=True)
    with open(part / _name(group), "wb") as file:
        torch.save(_state(step, model, optimizer), file)
        file.flush()
        os.fsync(file.fileno())
    dist.barrier(group)  # all ranks have written
    if dist.get_rank(group) == 0:
        os.replace(part, final)
    dist.barrier(group)  # the folder has its name


def _name(group):
    return f"rank-{dist.get_rank(group)}-of-{dist.get_world_size(group)}.pt"


def _state(step, model, optimizer):
    """Return all that this rank needs to continue."""
    return {
        "step": step,
        "shards": [flat.shard.detach() for flat in model.flats],
        "buffers": list(model.model.buffers()),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }


def complete(folder):
    """Return the steps of the complete checkpoints, the newest last."""
    names = [path.name for path in Path(folder).glob("step-*")]
    found = [re.fullmatch(r"step-(\d+)", name) for name in names]
    return sorted(int(match[1]) for match in found if match)


@torch.no_grad()
def load(folder, model, optimizer):
    """Restore the newest complete checkpoint, and return its step, or 0.

    Raises ValueError if a different number of ranks wrote it, or if its model
    has different shards.
    """
    if not complete(folder):
        return 0
    newest = Path(folder) / f"step-{complete(folder)[-1]}"
    path = newest / _name(model.flats[0].group)
    if not path.exists():
        there = ", ".join(sorted(x.name for x in newest.glob("rank-*.pt")))
        raise ValueError(f"{newest.name} has no {path.name}, but {there}.")
    state = torch.load(path, weights_only=True)
    shapes = [flat.shard.shape for flat in model.flats]
    if [shard.shape for shard in state["shards"]] != shapes:
        raise ValueError(f"{newest.name} is of a model with other shards.")
    _put(state, model, optimizer)
    return state["step"]


def _put(state, model, optimizer):
    """Restore model, optimizer and random generator from a saved state."""
    for flat, shard in zip(model.flats, state["shards"], strict=True):
        flat.shard.copy_(shard)
        flat.own.copy_(shard)  # in its own dtype
        if not model.apart:
            gather(flat)
            arrive(flat)
    buffers = model.model.buffers()
    for buffer, saved in zip(buffers, state["buffers"], strict=True):
        buffer.copy_(saved)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
