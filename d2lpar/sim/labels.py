"""Names for what a rank does, as timelines show them: F3, the forward pass of layer 3.

Outside of a run nothing happens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch

from .torch_private import after_backward, current_engine, inside_backward


@contextlib.contextmanager
def label(text: str | int | None) -> Iterator[None]:
    """Name what this rank computes and sends inside, for its timeline.

    `F`, `B` and `W`, each with a number, are drawn as the forward pass, the backward
    pass and the weight gradient of that layer or micro-batch.  A collective takes over
    the number: an all-gather in `label("F3")` or in `label(3)` is called AG3.
    """
    engine = current_engine()
    before = engine.label if engine else None
    _name(None if text is None else f"{text}")
    try:
        yield
    finally:
        _name(before)


def label_layers(
    model: torch.nn.Module,
    layers: Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module] | None = None,
) -> torch.nn.Module:
    """Name both passes of each layer: F0, F1, ... and ..., B1, B0; return the model.

    Layers are the modules that have parameters of their own, in the model's order, or
    those that are given.  Of `{"attention": module}` the passes are called F attention
    and B attention.  What runs between two layers counts to the first of them.
    """
    if layers is None:
        layers = [part for part in model.modules() if part._parameters]
    if isinstance(layers, Mapping):
        named = [(f" {name}", layer) for name, layer in layers.items()]
    else:
        named = [(f"{i}", layer) for i, layer in enumerate(layers)]
    for name, layer in named:
        layer.register_forward_pre_hook(partial(_enter, name))
        layer.register_forward_hook(partial(_leave, name))
    model.register_forward_hook(_end)
    return model


def _name(text):
    engine = current_engine()
    if engine is not None and engine.label != text:
        engine.relabel(text)


def _enter(name, module, inputs):
    if not inside_backward():  # what backward computes again is a part of it
        _name(f"F{name}")


def _leave(name, module, inputs, outputs):
    """The backward pass comes to this layer when its output has a gradient."""
    for x in outputs if isinstance(outputs, tuple | list) else (outputs,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            x.register_hook(partial(_enter_backward, name))


def _enter_backward(name, gradient):
    _name(f"B{name}")
    after_backward(partial(_name, None))


def _end(module, inputs, outputs):
    if not inside_backward():
        _name(None)
