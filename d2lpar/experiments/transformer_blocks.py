"""Chapter 16: a block of a GPT on one GPU, and one that all GPUs share."""

from functools import partial

import torch

from ..mesh.gpt_parts import parallel_block
from ..shared.model_zoo import Block
from .measuring import experiment, half


@experiment(small={"widths": (128, 256), "tokens": 16})
def gpt_blocks(widths=(1024, 4096, 8192), rows=(1, 4), tokens=2048):
    """A block, forward and backward, by width and rows of a micro-batch."""

    def prepare(width, count):
        block = Block(width, width // 128).to(dtype=half())
        shape = count, tokens, width
        x = torch.randn(shape, dtype=half(), requires_grad=True)
        return lambda: block(x).sum().backward()

    sizes = [(width, count) for width in widths for count in rows]
    return {f"{w} x {r}": partial(prepare, w, r) for w, r in sizes}


@experiment(small={"width": 1024, "tokens": 16}, ranks=None)
def split_blocks(width=6144, rows=(1, 4, 16), tokens=2048):
    """A block whose heads and features all GPUs share, by rows."""

    def prepare(count):
        block = parallel_block(Block(width, width // 128)).to(dtype=half())
        shape = count, tokens, width
        x = torch.randn(shape, dtype=half(), requires_grad=True)
        return lambda: block(x).sum().backward()

    return {f"{width} x {r}": partial(prepare, r) for r in rows}
