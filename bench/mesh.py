"""Split layers, and a GPT on a mesh: ours against the same composed from torch's parts.

An MLP and a block: columns, then rows, with one all-reduce each way.  The mesh is that
of chapter 15: `init_device_mesh`, `parallelize_module` in each block, `fully_shard` (or
DDP where nothing is split) on the data axis, and `PipelineStage` with 1F1B.
"""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from d2lpar.launch import run as launch
from d2lpar.mesh import Mesh, MeshModel
from d2lpar.mesh.gpt_parts import Config, blocks_of, by_rank, one_device, parallel_block
from d2lpar.shared.model_zoo import Block
from d2lpar.sim.patching import patched
from d2lpar.tensor_parallel import parallel_mlp, products

from .race import WIDTHS, LineUp, Race, step_of

# Split layers


def split_by_us(model):
    """Split an MLP by chapter 12's modules, or a block by chapter 15's."""
    return parallel_block(model) if isinstance(model, Block) else parallel_mlp(*model)


def split_by_torch(model, mesh=None):
    """Split an MLP or a block in the same way, over an axis of a DeviceMesh."""
    from torch.distributed.tensor import parallel as tp

    mesh = mesh or dist.init_device_mesh("cpu", (dist.get_world_size(),))
    columns, rows = ("0",), ("2",)
    if isinstance(model, Block):
        columns, rows = ("qkv", "mlp.0"), ("out", "mlp.2")
        for parameter in model.qkv.parameters():
            parameter.data = by_rank(parameter.data, mesh.size())
        model.heads //= mesh.size()
    plan = dict.fromkeys(columns, tp.ColwiseParallel())
    plan |= dict.fromkeys(rows, tp.RowwiseParallel())
    return tp.parallelize_module(model, mesh, plan)


NATIVE = "tensor parallel, dist.all_reduce"
SPLITS = {"parallelize_module": split_by_torch, "tensor parallel": split_by_us}
SPLITS[NATIVE] = split_by_us


def splits(name, width):
    """Every rival with a copy of one model."""
    torch.manual_seed(0)
    block, x = Block(width, 8), torch.randn(4, 64, width)
    first = block if name == "block" else block.mlp
    models = {name: split(copy.deepcopy(first)) for name, split in SPLITS.items()}

    def backward(name):  # the third adds up as DTensor does
        native = lambda _: lambda x, group: dist.all_reduce(x, group=group)
        change = [(products, "allreduce", native)] if name == NATIVE else []
        with patched(*change):
            models[name](x.requires_grad_()).square().mean().backward()
            x.grad = None

    return LineUp({k: step_of(m, partial(backward, k)) for k, m in models.items()})


LAYERS = [Race(f"A split {x}", partial(splits, x), WIDTHS) for x in ("MLP", "block")]

# A GPT on a mesh

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


def torchs(config, sizes, tokens, targets):
    """Compose torch's parts; the tied table's two gradients are added by hand."""
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
            table = stage.token.weight.grad  # fully_shard's is a DTensor
            dist.all_reduce(getattr(table, "to_local", lambda: table)(), group=line)
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


AXES = {"data x pipeline": (2, 2, 1), "data x tensor": (2, 1, 2)}
AXES["pipeline x tensor"] = 1, 2, 2
RACE = Race("A mesh", line_up, {name: (256, sizes) for name, sizes in AXES.items()})
