"""Attention over a split sequence, forward and backward: ours against torch's ring.

torch's is the ring below `context_parallel`, which refuses CPUs itself.  All rivals
have the same tokens in zigzag order, and their results and gradients must agree.
"""

import torch

from ... import sequence
from ...sim.torch_private import torch_ring_attention
from .race import LineUp, Race, near

TORCH = "torch context_parallel"
RIVALS = {
    TORCH: torch_ring_attention,
    "ring": sequence.ring_attention,
    "gather": sequence.gather_attention,
    "ulysses": sequence.ulysses_attention,
}
HEADS, SIZE = 8, 64


def line_up(tokens):
    """All rivals on the same queries, keys and values, one row of `tokens` tokens."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, 1, HEADS, tokens, SIZE, generator=generator)
    *mine, dy = (sequence.split_sequence(x, 2) for x in whole)
    found, programs = {}, {}
    for name, attend in RIVALS.items():
        order = {"order": "zigzag"} if name == "ulysses" else {}

        def step(name=name, attend=attend, order=order):
            qkv = [x.detach().requires_grad_() for x in mine]
            y = attend(*qkv, **order)
            y.backward(dy)
            found[name] = [y.detach(), *(x.grad for x in qkv)]

        programs[name] = step

    def compare():
        for name, ours in found.items():
            if not all(near(a, b) for a, b in zip(ours, found[TORCH], strict=True)):
                raise AssertionError(f"{name} does not attend as torch does")

    return LineUp(programs, compare=compare)


COURSES = {"1024 tokens": (1024,), "4096 tokens": (4096,)}
RACE = Race("A split sequence", line_up, COURSES)
