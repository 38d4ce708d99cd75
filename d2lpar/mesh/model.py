"""Train a GPT on data x pipeline x tensor ranks, with what chapters 07 to 13 built.

What a step of `MeshModel` does, and along which axis of the mesh it sends:

    tensor      each block: 2 sums forward, 2 backward          chapter 12
    pipeline    activations and gradients, as a schedule says   chapter 13
    data        the gradients' mean, once per step              chapters 07, 08, 10
    pipeline    the two gradients of the token table, added     here
    all         the gradient's norm, one number                 here

N rows of the whole batch, T tokens in a row, m micro-batches of each data rank.  Serial
truth: `gpt_parts.one_device`, one device with the whole batch.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from ..data_parallel import shard
from ..messages import exchange
from ..overlap import OverlappedDDP
from ..pipeline import schedule as schedules
from ..sharding import ZeRO1, collect
from .gpt_parts import (
    Config,
    Moment,
    make_stage,
    names_and_shapes,
    own_piece,
    row_losses,
    split_dimensions,
    whole_of,
)
from .grid import AXES, Mesh, bytes_per_axis
from .pipeline import MeshPipeline

__all__ = ["Config", "Mesh", "MeshModel", "bytes_per_axis"]


class MeshModel(nn.Module):
    """Hold one rank's part of a GPT, and train it together with all ranks.

    config       a `Config`, or a dict with its fields
    schedule     a name for `schedule.make`, or a Schedule
    zero         1 to shard the optimizer's state over the data axis
    recompute    True to keep only the input of a stage until its backward
    """

    def __init__(
        self, config, mesh, schedule="1f1b", micro_batches=1, zero=0,
        recompute=False, seed=0,
    ):  # fmt: skip
        super().__init__()
        config = Config(**config) if isinstance(config, dict) else config
        if isinstance(schedule, str):
            p = mesh.sizes["pipeline"]
            schedule = schedules.make(schedule, p, micro_batches)
        check_fit(config, mesh, schedule, zero)
        self.groups = {axis: mesh.group(axis) for axis in AXES}
        self.at = mesh.coordinates(dist.get_rank())
        self.config, self.mesh, self.zero = config, mesh, zero
        self.moment, self.data = Moment(), None
        self.make_parts(schedule, recompute, seed)

    def make_parts(self, schedule, recompute, seed):
        """Make this rank's stages, and the pipeline that runs them."""
        home, count = schedule.home, schedule.stages
        self.ends = home[0], home[count - 1]  # they have token tables
        mine = [s for s in sorted(home) if home[s] == self.at["pipeline"]]
        tensor, config = self.groups["tensor"], self.config
        how = {"group": tensor, "seed": seed, "moment": self.moment}
        made = [make_stage(config, s, count, **how) for s in mine]
        self.stages = nn.ModuleList(made)
        loss, group = partial(row_losses, group=tensor), self.groups["pipeline"]
        self.pipeline = MeshPipeline(schedule, made, loss, group, recompute)
        self.pipeline.moment = self.moment

    @property
    def shards(self):
        """Return what an optimizer of this rank steps."""
        self.prepare()
        return self.data.shards if self.zero else list(self.parameters())

    def entries(self):
        """Yield (name in the GPT, parameter, its split dimension or None)."""
        for stage in self.stages:
            dims = split_dimensions(stage)
            for name, parameter in stage.named_parameters():
                yield name, parameter, dims.get(name)

    def step(self, tokens, targets):
        """Compute all gradients of the mean loss of a batch, and return the loss.

        tokens, targets    [N, T], the whole batch, equal on every rank

        Every rank returns the same loss.  Gradients of an earlier step are
        gone.  After it, `update` steps an optimizer of `shards`.
        """
        check_batch(self, tokens, targets)
        self.prepare()
        self.clear()
        group, n = self.groups["data"], self.mesh.sizes["data"]
        mine = shard((tokens, targets), group)
        begin = int(shard(torch.arange(len(tokens), device="cpu"), group)[0])
        loss = self.pipeline.step(*mine, len(tokens) / n, begin).double()
        self.finish()
        self.moment.step += 1
        for axis in ("pipeline", "data"):
            if self.mesh.sizes[axis] > 1:
                dist.all_reduce(loss, group=self.groups[axis])
        return loss / n

    def prepare(self):
        """Wrap the stages, so that the data axis averages their gradients."""
        group = self.groups["data"]
        if self.zero and not self.data:
            units = [unit for stage in self.stages for unit in units_of(stage)]
            self.data = ZeRO1(self.stages, units, group)
        elif not self.zero and group.size() > 1 and not self.pipeline.ddp:
            self.pipeline.ddp = OverlappedDDP(self.stages, group, alike=True)

    def clear(self):
        """Forget the gradients; those of a bucket grow inside of it."""
        self.zero_grad()
        for bucket in self.pipeline.ddp.buckets if self.pipeline.ddp else ():
            bucket.flat.zero_()
            pairs = zip(bucket.weights, bucket.views, strict=True)
            for parameter, view in pairs:
                parameter.grad = view

    def finish(self):
        """Average over the data axis what has not travelled, and add the tied."""
        if self.pipeline.ddp:
            self.pipeline.ddp.finish()
        if self.zero:
            for flat in self.data.trained:
                for i, p in enumerate(flat.params):
                    if p.grad is not None:  # came as a W of the schedule
                        collect(flat, i)
            self.data.finish()
        self.add_tied()

    def add_tied(self):
        """Add the two gradients of the token table, of the first and last stage.

        Both copies then take the same steps, so they stay equal bit for bit.
        """
        mine = list(self.tied())
        if len(mine) == 2:  # both stages are on this rank
            mine[0].add_(mine[1])
            mine[1].copy_(mine[0])
        elif mine and self.ends[0] != self.ends[1]:
            first, last = self.ends
            other = last if self.at["pipeline"] == first else first
            theirs = torch.empty_like(mine[0])
            group = self.groups["pipeline"]
            exchange(mine[0].contiguous(), other, theirs, other, group)
            mine[0].add_(theirs)

    def tied(self):
        """Yield the gradient of each token table on this rank, or its shard."""
        for name, table, _ in self.entries():
            if name == "token.weight" and not self.zero:
                yield table.grad
            elif name == "token.weight":
                flats = [f for f in self.data.flats if f.params[0] is table]
                yield flats[0].grad

    # A number of the gradient may be on several ranks: count it once.
    #
    #     parameter       tensor ranks     stages    data ranks
    #     split           each its part    one       the same; zero=1: shards
    #     replicated      the same         one       the same; zero=1: shards
    #     token.weight    each its part    two       the same; zero=1: shards
    def norm(self):
        """Return the norm of the whole gradient, that of one device."""
        total, seen = torch.zeros((), dtype=torch.float64), set()
        mine = self.gradients()
        for name, parameter, dim in self.entries():
            of_partner = dim is None and self.at["tensor"] > 0
            tied = name == "token.weight" and self.at["pipeline"] != self.ends[0]
            twice = name in seen  # both token tables are on this rank
            seen.add(name)
            if parameter in mine and not (of_partner or tied or twice):
                total += mine[parameter].double().square().sum()
        for axis in AXES:
            if self.mesh.sizes[axis] > 1 and (axis != "data" or self.zero):
                dist.all_reduce(total, group=self.groups[axis])
        return total.sqrt()

    def gradients(self):
        """Return {parameter: the piece of its gradient that this rank has}."""
        if not self.zero:
            return {p: p.grad for p in self.parameters()}
        shards = map(pieces_of_shard, self.data.trained)
        return {p: piece for shard in shards for p, piece in shard}

    @torch.no_grad()
    def clip(self, limit):
        """Scale the gradient down to a norm of `limit`; return the norm before.

        Does what torch.nn.utils.clip_grad_norm_ does on one device.
        """
        norm = self.norm()
        scale = (limit / (norm + 1e-6)).clamp(max=1.0)
        every = [p.grad for p in self.parameters()]
        if self.zero:
            every = [flat.grad for flat in self.data.trained]
        for gradient in every:
            gradient.mul_(scale.to(gradient.dtype))
        return norm

    def update(self, optimizer):
        """Step an optimizer of `shards`; share the result if it is sharded."""
        if self.zero:
            self.data.step(optimizer)
        else:
            optimizer.step()

    @torch.no_grad()
    def state_dict(self, of=lambda parameter: parameter.detach()):
        """Return all parameters of the GPT, whole, on every rank.

        They have the names and shapes of one device.  With `of` it is
        something else of each parameter, such as its gradient.
        """
        group, tensor = self.groups["pipeline"], self.groups["tensor"]
        mine, found, like = {}, {}, next(self.parameters())
        for name, x, dim in self.entries():
            mine.setdefault(name, (x, dim))  # the first of two token tables
        schedule = self.pipeline.schedule
        for name, stage, shape in names_and_shapes(self.config, schedule):
            src = schedule.home[stage]
            if src == self.at["pipeline"]:
                x, dim = mine[name]
                found[name] = whole_of(of(x), name, dim, tensor)
            else:
                found[name] = like.new_empty(shape)
            if self.mesh.sizes["pipeline"] > 1:
                dist.broadcast(found[name], group=group, group_src=src)
        return found

    @torch.no_grad()
    def load_state_dict(self, state):
        """Take this rank's part of the parameters of a GPT."""
        for name, parameter, dim in self.entries():
            if name not in state:
                raise ValueError(f"The state has no {name}.")
            mine = own_piece(state[name], name, dim, self.groups["tensor"])
            parameter.copy_(mine)


def units_of(stage):
    """Return the modules with a flat of their own: token table, blocks."""
    tables = [stage.token] if stage.first or stage.last else []
    return [*tables, *stage.blocks.values()]


def pieces_of_shard(flat):
    """Yield (parameter, what this rank's shard has of its gradient)."""
    begin = 0
    for p, shape in zip(flat.params, flat.shapes, strict=True):
        end = begin + shape.numel()
        low, high = max(begin, flat.mine.start), min(end, flat.mine.stop)
        if low < high:
            yield p, flat.grad[low - flat.mine.start : high - flat.mine.start]
        begin = end


def check_fit(config, mesh, schedule, zero):
    """Raise ValueError, with the reason, unless this GPT fits this mesh."""
    p, t = mesh.sizes["pipeline"], mesh.sizes["tensor"]
    words = config.vocabulary, "words of the vocabulary"
    for count, what in [(config.heads, "heads"), words]:
        if count % t:
            text = f"{t} tensor ranks cannot share {count} {what} evenly."
            raise ValueError(f"{text} Use a divisor of {count} for `tensor`.")
    if schedule.p != p:
        text = f"The schedule has {schedule.p} ranks, the pipeline axis {p}."
        raise ValueError(f"{text} Make a schedule with p={p}.")
    if config.depth < schedule.stages:
        text = f"{config.depth} blocks cannot fill {schedule.stages} stages."
        raise ValueError(f"{text} Every stage needs a block of its own.")
    if zero not in (0, 1):
        text = "zero must be 0 or 1, because stages 2 and 3 of ZeRO would send"
        raise ValueError(f"{text} in every micro-batch. It is {zero!r}.")


def check_batch(model, tokens, targets):
    """Raise ValueError unless each micro-batch of each data rank has a row."""
    shapes = [list(tokens.shape), list(targets.shape)]
    longest = model.config.context
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or shapes[0][1] > longest:
        text = "tokens and targets must have the same shape [rows, T], with"
        more = f"T at most {longest}, not {shapes[0]} and {shapes[1]}."
        raise ValueError(f"{text} {more}")
    n, m = model.mesh.sizes["data"], model.pipeline.schedule.m
    if len(tokens) < n * m:
        text = f"{len(tokens)} rows cannot fill {m} micro-batches on each of"
        more = f"{n} data ranks. A step needs at least {n * m} rows."
        raise ValueError(f"{text} {more}")
