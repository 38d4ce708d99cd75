"""Chapter 15: what one of eight ranks computes, and a GPT on a mesh of all GPUs."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ..mesh import Config, MeshModel
from ..mesh.grid import Mesh
from ..shared.model_zoo import Block
from .measuring import experiment, half

SPLITS = {  # data, pipeline, tensor
    "data 8": (8, 1, 1),
    "pipeline 8": (1, 8, 1),
    "tensor 8": (1, 1, 8),
    "2 x 2 x 2": (2, 2, 2),
}


@experiment(small={"width": 64, "length": 8})
def rank_parts(width=4096, depth=8, rows=8, length=1024):
    """The blocks of one of eight ranks, for its rows; nothing is sent."""

    def prepare(d, p, t):
        parts = [part_of_block(width, t) for _ in range(depth // p)]
        blocks = nn.Sequential(*parts).to(dtype=half())
        shape = rows // d // p, length, width  # of one of p micro-batches
        x = torch.randn(shape, dtype=half(), requires_grad=True)
        return lambda: [blocks(x).sum().backward() for _ in range(p)]

    return {name: partial(prepare, *split) for name, split in SPLITS.items()}


def part_of_block(width, t):
    """Return 1/t of a block: as `parallel_block` has it, without sums."""
    block = Block(width, heads=32)
    block.heads //= t
    block.qkv = nn.Linear(width, 3 * width // t)
    block.out = nn.Linear(width // t, width)
    block.mlp[0] = nn.Linear(width, 4 * width // t)
    block.mlp[2] = nn.Linear(4 * width // t, width)
    return block


@experiment(small={"width": 64, "length": 8}, ranks=None)
def meshes(width=4096, depth=2, rows=16, length=512, words=16384):
    """A step of a GPT by `MeshModel`, for three meshes of all GPUs."""
    config = Config(width, depth, 32, length, words)

    def prepare(pipeline, tensor):
        data = dist.get_world_size() // (pipeline * tensor)
        mesh, m = Mesh(data, pipeline, tensor), 4 if pipeline > 1 else 1
        model = MeshModel(config, mesh, micro_batches=m).to(dtype=half())
        batch = torch.zeros(2, rows, length, dtype=torch.long)
        return lambda: model.step(*batch)

    cases = {"data": partial(prepare, 1, 1)}
    if torch.cuda.device_count() % 2:
        return cases  # no axis of two divides them
    cases["data x tensor 2"] = partial(prepare, 1, 2)
    return cases | {"data x pipeline 2": partial(prepare, 2, 1)}
