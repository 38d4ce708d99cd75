"""A training step of a GPT on a mesh, ours against one composed from torch's parts.

torch's is chapter 15's: `init_device_mesh`, `parallelize_module` in each block,
`fully_shard` (or DDP where nothing is split) on the data axis, and `PipelineStage` with
1F1B, also for a single stage.  The two gradients of the tied table are added by an
all-reduce, because torch has no part for that.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from d2lpar.launch import run as launch
from d2lpar.mesh import Mesh, MeshModel
from d2lpar.mesh.gpt_parts import Config, blocks_of, by_rank, one_device

from .race import LineUp, Race

TORCH, OURS = "torch DeviceMesh", "mesh"
SIZES = {"depth": 4, "heads": 8, "context": 64, "vocabulary": 512}
MICRO, ROWS = 4, 2  # micro-batches of a data rank, rows of each


class PlainStage(nn.Module):
    """A stage of chapter 02's GPT, not split, with the scores at the end."""

    def __init__(self, gpt, stage, stages):
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        self.token = gpt.token if self.first or self.last else None
        self.position = gpt.position if self.first else None
        self.norm = gpt.norm if self.last else None
        mine = blocks_of(len(gpt.blocks), stage, stages)
        self.blocks = nn.ModuleList(gpt.blocks[i] for i in mine)

    def forward(self, x):
        """Tokens or activations [rows, T, D] -> activations, or scores."""
        if self.first:
            x = self.token(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight) if self.last else x


def split_by_torch(block, mesh):
    """Split a block over the tensor axis of a DeviceMesh, in place."""
    from torch.distributed.tensor import parallel as tp

    for parameter in block.qkv.parameters():
        parameter.data = by_rank(parameter.data, mesh.size())
    block.heads //= mesh.size()
    plan = dict.fromkeys(("qkv", "mlp.0"), tp.ColwiseParallel())
    plan |= dict.fromkeys(("out", "mlp.2"), tp.RowwiseParallel())
    tp.parallelize_module(block, mesh, plan)


def torchs(config, sizes, tokens, targets):
    """Compose torch's parts; return a function of a step, which returns [the loss]."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    d, p, t = sizes
    names = "data", "pipeline", "tensor"
    mesh = dist.init_device_mesh(launch.device().type, sizes, mesh_dim_names=names)
    row, s = (mesh[name].get_local_rank() for name in names[:2])
    model = stage = PlainStage(one_device(config), s, p)
    for block in stage.blocks if t > 1 else ():
        split_by_torch(block, mesh["tensor"])
    if d > 1 and t > 1:
        fully_shard(stage, mesh=mesh["data"], reshard_after_forward=False)
    elif d > 1:
        group = mesh.get_group("data")
        model = nn.parallel.DistributedDataParallel(stage, process_group=group)
    line = mesh.get_group("pipeline")
    part = PipelineStage(model, s, p, launch.device(), group=line)
    mean = lambda scores, y: F.cross_entropy(scores.flatten(0, 1), y.flatten()) / MICRO
    schedule = Schedule1F1B(part, MICRO, loss_fn=mean, scale_grads=False)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3, foreach=False)
    given = [tokens.chunk(d)[row]] if stage.first else []

    def step():
        optimizer.zero_grad()
        losses = []
        more = {"target": targets.chunk(d)[row], "losses": losses} if stage.last else {}
        schedule.step(*given, **more)
        if p == 2:
            dist.all_reduce(stage.token.weight.grad, group=line)
        optimizer.step()
        loss = sum(losses, torch.zeros(())).detach()
        dist.all_reduce(loss)
        return [loss / (d * t)]

    return step


def ours(config, sizes, *batch):
    """Make the same of chapter 15's `MeshModel`."""
    zero = int(sizes[0] > 1 and sizes[2] > 1)
    model = MeshModel(config, Mesh(*sizes), "1f1b", MICRO, zero=zero)
    optimizer = torch.optim.SGD(model.shards, lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss = model.step(*batch)
        model.update(optimizer)
        return [loss]

    return step


def line_up(width, sizes):
    """Both models with the same values, on the same batch."""
    config, generator = Config(D=width, **SIZES), torch.Generator().manual_seed(0)
    shape = 2, sizes[0] * MICRO * ROWS, config.context
    batch = torch.randint(0, config.vocabulary, shape, generator=generator)
    makers = {TORCH: torchs, OURS: ours}
    return LineUp({name: make(config, sizes, *batch) for name, make in makers.items()})


AXES = {
    "data x pipeline": (2, 2, 1),
    "data x tensor": (2, 1, 2),
    "pipeline x tensor": (1, 2, 2),
}
RACE = Race("A mesh", line_up, {name: (256, sizes) for name, sizes in AXES.items()})
