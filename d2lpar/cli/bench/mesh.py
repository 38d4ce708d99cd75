"""A training step of a GPT on a mesh, ours against one composed from torch's parts.

torch's: `init_device_mesh`, `parallelize_module` on the tensor axis, `fully_shard` (or
DDP where nothing is split) on the data axis, `PipelineStage` with 1F1B.  torch has no
part for the tied table, so its two gradients are added by an all-reduce here, too.
"""

import contextlib
import math
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ...launch import run as launch
from ...mesh import Mesh, MeshModel
from ...mesh.gpt_parts import Config, blocks_of, by_rank, one_device
from .race import LineUp, Race, new_table

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
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"token": RowwiseParallel(input_layouts=Replicate())}
    plan["head"] = ColwiseParallel(output_layouts=Shard(-1))
    for name, block in stage.blocks.items():
        for parameter in block.qkv.parameters():
            parameter.data = by_rank(parameter.data, mesh.size())
        block.heads //= mesh.size()
        plan |= {f"blocks.{name}.{x}": ColwiseParallel() for x in ("qkv", "mlp.0")}
        plan |= {f"blocks.{name}.{x}": RowwiseParallel() for x in ("out", "mlp.2")}
    there = {name for name, _ in stage.named_modules()}
    parallelize_module(stage, mesh, {k: v for k, v in plan.items() if k in there})
    if stage.first and stage.last:
        stage.head.weight = stage.token.weight  # tied again


class Composed:
    """Train the GPT with torch's parts: `step(tokens, targets)` and `parameters()`."""

    def __init__(self, config, sizes):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        self.mesh = init_device_mesh(
            launch.device().type, sizes, mesh_dim_names=("data", "pipeline", "tensor")
        )
        d, self.p, t = self.sizes = sizes
        s = self.mesh["pipeline"].get_local_rank()
        self.stage = PlainStage(one_device(config), s, self.p)
        if t > 1:
            split_by_torch(self.stage, self.mesh["tensor"])
        self.run = self.stage
        if d > 1 and t > 1:
            fully_shard(self.stage, mesh=self.mesh["data"], reshard_after_forward=False)
        elif d > 1:
            group = self.mesh.get_group("data")
            self.run = DistributedDataParallel(self.stage, process_group=group)
        self.schedule = self.piped(s) if self.p > 1 else None

    def piped(self, s):
        """Return torch's 1F1B around the stage."""
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        group = self.mesh.get_group("pipeline")
        part = PipelineStage(self.run, s, self.p, launch.device(), group=group)
        return Schedule1F1B(part, MICRO, loss_fn=self.loss, scale_grads=False)

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
        r = self.mesh["data"].get_local_rank()
        x, y = tokens.chunk(d)[r], targets.chunk(d)[r]
        with loss_parallel() if t > 1 else contextlib.nullcontext():
            losses = self.in_pipeline(x, y) if self.p > 1 else self.in_turn(x, y)
        self.add_tied()
        return sum(float(_local(loss.detach())) for loss in losses)

    def in_pipeline(self, x, y):
        """Run torch's schedule, and return the losses of the micro-batches."""
        losses = []
        given = [x] if self.stage.first else []
        wanted = {"target": y, "losses": losses} if self.stage.last else {}
        self.schedule.step(*given, **wanted)
        return losses

    def in_turn(self, x, y):
        """Run the micro-batches one after the other; the last one averages."""
        losses = []
        for i, (a, b) in enumerate(zip(x.chunk(MICRO), y.chunk(MICRO), strict=True)):
            last, wait = i == MICRO - 1, contextlib.nullcontext()
            if hasattr(self.run, "set_requires_gradient_sync"):
                self.run.set_requires_gradient_sync(last)
            elif self.sizes[0] > 1 and not last:
                wait = self.run.no_sync()
            with wait:
                losses.append(self.loss(self.run(a), b))
                losses[-1].backward()
        return losses

    def add_tied(self):
        """Add the gradients of the token tables of the first and the last stage."""
        ends = self.stage.first or self.stage.last
        if self.p == 2 and ends:
            weight = (self.stage.token if self.stage.first else self.stage.head).weight
            if hasattr(weight, "placements"):  # the gradient may be cut otherwise
                weight.grad = weight.grad.redistribute(placements=weight.placements)
            group = self.mesh.get_group("pipeline")
            dist.all_reduce(_local(weight.grad), group=group)


def _local(x):
    return x.to_local() if hasattr(x, "to_local") else x


def rival(name, config, sizes):
    """Return (model, its optimizer, function that updates) of one of the two."""
    d, _, t = sizes
    if name == TORCH:
        model = Composed(config, sizes)
        optimizer = torch.optim.SGD(model.stage.parameters(), lr=1e-3)
        return model, optimizer, optimizer.step
    model = MeshModel(config, Mesh(*sizes), "1f1b", MICRO, zero=int(d > 1 and t > 1))
    optimizer = torch.optim.SGD(model.shards, lr=1e-3)
    return model, optimizer, partial(model.update, optimizer)


def rivals(config, sizes):
    """Return {name: what `rival` returns}."""
    return {name: rival(name, config, sizes) for name in (TORCH, OURS)}


def losses_of(config, sizes, rows, count):
    """Return {name: losses of `count` steps}, of the last stage's ranks."""
    found = {}
    for name, (model, optimizer, after) in rivals(config, sizes).items():
        found[name] = []
        for k in range(count):
            optimizer.zero_grad()
            found[name].append(float(model.step(*batch(config, rows, k))))
            after()
    return found


def batch(config, rows, k=0):
    """Return (tokens, targets) [rows, T] by chance, equal on all ranks."""
    generator = torch.Generator().manual_seed(k)
    shape = 2, rows, config.context
    return torch.randint(0, config.vocabulary, shape, generator=generator)


def line_up(width, sizes):
    """Both models with the same values; at the end their losses must agree."""
    config = Config(D=width, **SIZES)
    given = batch(config, sizes[0] * MICRO * ROWS)
    losses, programs = {}, {}
    for name, (model, optimizer, after) in rivals(config, sizes).items():
        mine = losses[name] = []

        def step(model=model, optimizer=optimizer, after=after, mine=mine):
            optimizer.zero_grad()
            mine.append(float(model.step(*given)))
            after()

        programs[name] = step

    def compare():
        """Sum the parts of the data ranks' last stages, which have torch's losses."""
        theirs = torch.tensor(losses[TORCH], dtype=torch.float64)
        dist.all_reduce(theirs)
        theirs /= sizes[0] * sizes[2]
        ours = torch.tensor(losses[OURS], dtype=torch.float64)
        if not torch.allclose(theirs, ours, rtol=1e-3):
            raise AssertionError(f"losses differ: {theirs} and {ours}")

    return LineUp(programs, compare=compare)


AXES = {
    "data x pipeline": (2, 2, 1),
    "data x tensor": (2, 1, 2),
    "pipeline x tensor": (1, 2, 2),
}
RACE = Race("A mesh", line_up, {name: (256, sizes) for name, sizes in AXES.items()})


def counts(width=64, courses=AXES):
    """Bytes that all ranks send in a step, and a rank's peak memory, simulated."""
    rows = []
    for course, sizes in courses.items():
        world = {"world_size": math.prod(sizes), "backend": "sim"}
        for name in (TORCH, OURS):
            given = _steps, name, width, sizes
            one, two = (launch.run(*given, k, **world) for k in (1, 2))
            sent = int((two.traffic - one.traffic).sum())
            figures = {"sent": sent, "peak": max(two.peak_memory)}
            rows.append({"course": course, "rival": name} | figures)
    return {"meshes": rows}


def _steps(name, width, sizes, count):
    config = Config(D=width, **SIZES)
    model, optimizer, after = rival(name, config, sizes)
    for _ in range(count):
        optimizer.zero_grad()
        model.step(*batch(config, sizes[0] * MICRO * ROWS))
        after()


def tables(rows):
    """A rich table: bytes of a step and peak memory, ours as a ratio of torch's."""
    if not rows:
        return
    heads = "bytes of a step", "ratio", "peak memory", "ratio"
    table = new_table("A mesh of simulated ranks", "", "model", *heads)
    torchs = {row["course"]: row for row in rows if row["rival"] == TORCH}
    for row in rows:
        theirs = torchs[row["course"]]
        cells = [row["course"], row["rival"]]
        for key in ("sent", "peak"):
            cells += [f"{row[key] / 1e6:.2f} MB", f"{row[key] / theirs[key]:.2f}"]
        table.add_row(*cells)
    yield table
