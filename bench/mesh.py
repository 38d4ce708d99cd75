"""A training step of a GPT on a mesh, ours against one composed from torch's parts.

torch's: `init_device_mesh`, `parallelize_module` on the tensor axis, `fully_shard` (or
DDP where nothing is split) on the data axis, `PipelineStage` with 1F1B.  torch has no
part for the tied table, so its two gradients are added by an all-reduce here, too.
"""

import contextlib
from functools import partial

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
    """A stage of chapter 02's GPT, not split, with the scores as a layer."""

    def __init__(self, gpt, stage, stages):
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        if self.first:
            self.token, self.position = gpt.token, gpt.position
        mine = blocks_of(len(gpt.blocks), stage, stages)
        self.blocks = nn.ModuleDict({str(i): gpt.blocks[i] for i in mine})
        if self.last:
            self.norm = gpt.norm
            self.head = nn.Linear(*gpt.token.weight.shape[::-1], bias=False)
            self.head.weight = gpt.token.weight

    def forward(self, x):
        """Tokens or activations [rows, T, D] -> activations, or scores."""
        if self.first:
            x = self.token(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def split_by_torch(stage, mesh):
    """Split a stage's layers over the tensor axis of a DeviceMesh, in place."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    plan = {"token": tp.RowwiseParallel(input_layouts=Replicate())}
    plan["head"] = tp.ColwiseParallel(output_layouts=Shard(-1))
    for name, block in stage.blocks.items():
        for parameter in block.qkv.parameters():
            parameter.data = by_rank(parameter.data, mesh.size())
        block.heads //= mesh.size()
        plan |= {f"blocks.{name}.{x}": tp.ColwiseParallel() for x in ("qkv", "mlp.0")}
        plan |= {f"blocks.{name}.{x}": tp.RowwiseParallel() for x in ("out", "mlp.2")}
    there = {name for name, _ in stage.named_modules()}
    tp.parallelize_module(stage, mesh, {k: v for k, v in plan.items() if k in there})
    if stage.first and stage.last:
        stage.head.weight = stage.token.weight  # tied again


class Composed:
    """Train the GPT with torch's parts: `step(tokens, targets)` and `parameters()`."""

    def __init__(self, config, sizes):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        from torch.nn.parallel import DistributedDataParallel

        names = "data", "pipeline", "tensor"
        self.mesh = init_device_mesh(launch.device().type, sizes, mesh_dim_names=names)
        d, self.p, t = self.sizes = sizes
        s, group = self.mesh["pipeline"].get_local_rank(), self.mesh.get_group
        self.run = self.stage = PlainStage(one_device(config), s, self.p)
        if t > 1:
            split_by_torch(self.stage, self.mesh["tensor"])
        if d > 1 and t > 1:
            fully_shard(self.stage, mesh=self.mesh["data"], reshard_after_forward=False)
        elif d > 1:
            self.run = DistributedDataParallel(self.stage, process_group=group("data"))
        if self.p > 1:
            where = s, self.p, launch.device()
            part = PipelineStage(self.run, *where, group=group("pipeline"))
            how = {"loss_fn": self.loss, "scale_grads": False}
            self.schedule = Schedule1F1B(part, MICRO, **how)

    def loss(self, scores, targets):
        """The part of the mean loss of this data rank that these rows add."""
        from torch.distributed.tensor import DTensor, Shard

        scores = scores.flatten(0, 1)
        if self.sizes[2] > 1:
            scores = DTensor.from_local(scores, self.mesh["tensor"], [Shard(-1)])
        return F.cross_entropy(scores, targets.flatten()) / MICRO

    def step(self, tokens, targets):
        """Compute all gradients; return this data rank's loss on the last stage."""
        from torch.distributed.tensor.parallel import loss_parallel

        d, _, t = self.sizes
        r, losses = self.mesh["data"].get_local_rank(), []
        x, y = tokens.chunk(d)[r], targets.chunk(d)[r]
        with loss_parallel() if t > 1 else contextlib.nullcontext():
            if self.p > 1:
                wanted = {"target": y, "losses": losses} if self.stage.last else {}
                self.schedule.step(*[x] * self.stage.first, **wanted)
            for i in range(MICRO if self.p == 1 else 0):  # the last one averages
                self.stage.set_requires_gradient_sync(i == MICRO - 1)
                losses.append(self.loss(self.run(x.chunk(MICRO)[i]), y.chunk(MICRO)[i]))
                losses[-1].backward()
        self.add_tied()
        return sum(float(_local(loss.detach())) for loss in losses)

    def add_tied(self):
        """Add the gradients of the token tables of the first and the last stage."""
        if self.p == 2 and (self.stage.first or self.stage.last):
            weight = (self.stage.token if self.stage.first else self.stage.head).weight
            if hasattr(weight, "placements"):  # the gradient may be cut otherwise
                weight.grad = weight.grad.redistribute(placements=weight.placements)
            group = self.mesh.get_group("pipeline")
            dist.all_reduce(_local(weight.grad), group=group)


def _local(x):
    return x.to_local() if hasattr(x, "to_local") else x


def trainer(name, config, sizes, rows):
    """Make a function that trains with a batch of `rows` rows, and gives the loss."""
    d, _, t = sizes
    if name == TORCH:
        model = Composed(config, sizes)
        optimizer = torch.optim.SGD(model.stage.parameters(), lr=1e-3)
        update = optimizer.step
    else:
        zero = int(d > 1 and t > 1)
        model = MeshModel(config, Mesh(*sizes), "1f1b", MICRO, zero=zero)
        optimizer = torch.optim.SGD(model.shards, lr=1e-3)
        update = partial(model.update, optimizer)

    def step(k=0):
        generator, shape = torch.Generator().manual_seed(k), (2, rows, config.context)
        given = torch.randint(0, config.vocabulary, shape, generator=generator)
        optimizer.zero_grad()
        loss = float(model.step(*given))
        update()
        return loss

    return step


def line_up(width, sizes):
    """Both models with the same values; at the end their losses must agree."""
    losses, programs = {TORCH: [], OURS: []}, {}
    for name, mine in losses.items():
        step = trainer(name, Config(D=width, **SIZES), sizes, sizes[0] * MICRO * ROWS)
        programs[name] = lambda mine=mine, step=step: mine.append(step())

    def compare():
        """Sum the parts of the data ranks' last stages, which have torch's losses."""
        theirs, ours = torch.tensor([*losses.values()], dtype=torch.float64)
        dist.all_reduce(theirs)
        theirs /= sizes[0] * sizes[2]
        if not torch.allclose(theirs, ours, rtol=1e-3):
            raise AssertionError(f"losses differ: {theirs} and {ours}")

    return LineUp(programs, compare=compare)


AXES = {
    "data x pipeline": (2, 2, 1),
    "data x tensor": (2, 1, 2),
    "pipeline x tensor": (1, 2, 2),
}
RACE = Race("A mesh", line_up, {name: (256, sizes) for name, sizes in AXES.items()})
