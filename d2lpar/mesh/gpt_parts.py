"""Cut chapter 02's GPT: blocks over stages, and each block over tensor ranks.

    stage 0        token [V/n, D], position [T, D], blocks 0 1 ..
    stage s        blocks .. i ..
    last stage     blocks .., norm [D], and again token [V/n, D] for the scores

A parameter has the name that it has in the GPT, and on n tensor ranks this shape:

    token.weight        [V/n, D]        blocks.i.qkv.weight      [3 D/n, D]
    position.weight     [T, D]          blocks.i.out.weight      [D, D/n]
    norm.weight         [D]             blocks.i.mlp.0.weight    [4 D/n, D]

Serial truth: `one_device(config)`, which is a `model_zoo.GPT`.
"""

import functools
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from ..network_partition.layers import build, chain
from ..shared.model_zoo import GPT, Block
from ..tensor_parallel import ColumnParallel, Enter, RowParallel, parallel_mlp, parts_of
from ..tensor_parallel.vocabulary import VocabularyEmbedding, vocabulary_cross_entropy


class Config(NamedTuple):
    """The sizes of a GPT, as chapter 02 calls them, and its dropout."""

    D: int
    depth: int
    heads: int
    context: int = 2048
    vocabulary: int = 50257
    dropout: float = 0.0


def recipe(config):
    """Return the GPT as a list of layers: tables, blocks, norm."""

    def tables():
        token = nn.Embedding(config.vocabulary, config.D)
        position = nn.Embedding(config.context, config.D)
        return nn.ModuleDict({"token": token, "position": position})

    blocks = [partial(Block, config.D, config.heads)] * config.depth
    return chain(tables, *blocks, partial(nn.LayerNorm, config.D))


def one_device(config, seed=0):
    """Return the whole GPT with the initial values of a mesh of any size."""
    tables, *blocks, norm = build(recipe(config), seed=seed)
    with torch.device("meta"):
        sizes = config.D, config.depth, config.heads
        gpt = GPT(*sizes, config.context, config.vocabulary)
    gpt.token, gpt.position = tables["token"], tables["position"]
    gpt.blocks, gpt.norm = nn.Sequential(*blocks), norm
    return gpt


# The rows of qkv are those of all queries, all keys, all values.  Part r of n
# must have its heads of all three:
#
#     rows       q0 q1 | k0 k1 | v0 v1
#     by rank    q0 k0 v0 | q1 k1 v1
def by_rank(weight, n):
    """Reorder the rows of qkv, so that part r of n has its q, k and v."""
    return weight.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


def by_kind(weight, n):
    """Undo `by_rank`."""
    return weight.unflatten(0, (n, 3, -1)).transpose(0, 1).flatten(0, 2)


def parallel_block(block, group=None):
    """Split a block of the GPT in place: one all-reduce each way in each half.

    Its own `forward` stays, since a part of a block is a block with fewer
    heads.  On one rank the block stays as it is.
    """
    n, _ = parts_of(block.heads, "heads", group)
    if n == 1:
        return block
    for parameter in block.qkv.parameters():
        parameter.data = by_rank(parameter.data, n)
    block.heads //= n
    block.qkv = ColumnParallel(block.qkv, group=group)
    block.out = RowParallel(block.out, group=group)
    block.mlp = parallel_mlp(*block.mlp, group=group)
    return block


class Moment:
    """What the masks of a forward pass depend on, besides layer and seed."""

    step = first = 0  # number of the step; of the first row in the whole batch


class RowDropout(nn.Module):
    """Apply dropout with a mask per row, which does not depend on the rank.

    Seed, step, layer and number of the row decide it.  So it is the same on
    all tensor ranks and on one device, and different for all rows.
    """

    def __init__(self, p, layer, moment, seed=0):
        super().__init__()
        self.p, self.layer, self.moment, self.seed = p, layer, moment, seed

    def forward(self, x):
        """x [rows, ...] -> the same shape."""
        if not self.training or self.p == 0:
            return x
        if x.is_meta:
            return F.dropout(x, self.p)
        mask = torch.empty_like(x, requires_grad=False)
        generator = torch.Generator(x.device)
        for i in range(len(x)):
            row = self.moment.first + i
            key = self.seed, self.moment.step, self.layer, row
            generator.manual_seed(hash(key) % 2**63)  # equal on every rank
            mask[i].bernoulli_(1 - self.p, generator=generator)
        return x * mask / (1 - self.p)


class Stage(nn.Module):
    """Run some blocks; the first stage has the tables, the last the scores.

    blocks    {number: Block}, already split over `group`
    tables    {"token": VocabularyEmbedding, "position": Embedding}, or less
    drop      layer -> the dropout after this layer
    """

    def __init__(self, blocks, tables, norm, group, drop):
        super().__init__()
        self.group, self.first = group, "position" in tables
        self.last = norm is not None
        for name, table in tables.items():
            self.add_module(name, table)
        self.blocks = nn.ModuleDict({str(i): b for i, b in blocks.items()})
        self.norm, self.drop = norm if self.last else nn.Identity(), drop(0)
        for i, block in blocks.items():
            for k, part in enumerate((block.out, block.mlp), start=1):
                part.register_forward_hook(_after(drop(2 * i + k)))

    def forward(self, x):
        """Tokens or activations [rows, T, D] -> activations, or scores."""
        if self.first:
            positions = torch.arange(x.shape[1], device=x.device)
            x = self.drop(self.token(x) + self.position(positions))
        for block in self.blocks.values():
            x = block(x)  # [rows, T, D]
        if not self.last:
            return x
        x = self.norm(x)
        if dist.get_world_size(self.group) > 1:
            x = Enter.apply(x, self.group)
        return F.linear(x, self.token.weight)  # [rows, T, V/n]


def _after(module):
    return lambda _, inputs, output: module(output)


def make_stage(config, stage, stages, group=None, seed=0, moment=None):
    """Return stage number `stage` of `stages`, with this tensor rank's part.

    Builds one whole layer at a time, with the values that one device has.
    """
    net, moment = recipe(config), moment or Moment()
    drop = partial(RowDropout, config.dropout, moment=moment, seed=seed)
    first, last = stage == 0, stage == stages - 1
    tables, norm = {}, None
    if first or last:
        (both,) = build(net, 0, 1, seed)
        alone = dist.get_world_size(group) == 1
        token = both["token"]
        tables["token"] = token if alone else VocabularyEmbedding(token, group)
    if first:
        tables["position"] = both["position"]
    if last:
        (norm,) = build(net, len(net) - 1, len(net), seed)
    blocks = {}
    for i in blocks_of(config.depth, stage, stages):
        (block,) = build(net, i + 1, i + 2, seed)
        blocks[i] = parallel_block(block, group)
    return Stage(blocks, tables, norm, group, drop)


def blocks_of(depth, stage, stages):
    """Return the numbers of a stage's blocks; the first may have one more."""
    each, more = divmod(depth, stages)
    start = stage * each + min(stage, more)
    return range(start, start + each + (stage < more))


def row_losses(scores, targets, group=None):
    """Return the sum over rows of each row's mean loss over its tokens.

    scores     [rows, T, V/n]
    targets    [rows, T]
    """
    scores, words = scores.flatten(0, 1), targets.flatten()
    if dist.get_world_size(group) == 1:
        each = F.cross_entropy(scores, words, reduction="none")
    else:
        each = vocabulary_cross_entropy(scores, words, group)
    return each.sum() / targets.shape[1]


def split_dimensions(stage):
    """Return {name: the dimension along which a parameter is split}."""
    found = {}
    for name, module in stage.named_modules():
        if isinstance(module, ColumnParallel | VocabularyEmbedding):
            names = [key for key, _ in module.named_parameters(recurse=False)]
            found |= {f"{name}.{key}": 0 for key in names}
        elif isinstance(module, RowParallel):
            found[f"{name}.weight"] = 1
    return found


def own_piece(whole, name, dim, group):
    """Return this tensor rank's part of a parameter of the GPT."""
    if dim is None:
        return whole
    n, r = dist.get_world_size(group), dist.get_rank(group)
    if ".qkv." in name:
        whole = by_rank(whole, n)
    return whole.chunk(n, dim)[r]


def whole_of(mine, name, dim, group):
    """Return a parameter of the GPT, joined from the tensor ranks' parts."""
    n = dist.get_world_size(group)
    if dim is None or n == 1:
        return mine.clone()
    parts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(parts, mine.contiguous(), group=group)
    whole = torch.cat(parts, dim)
    return by_kind(whole, n) if ".qkv." in name else whole


def names_and_shapes(config, schedule):
    """Yield (name, stage that has it, shape) of the GPT's parameters."""
    stages = schedule.stages
    blocks = [blocks_of(config.depth, s, stages) for s in range(stages)]
    of_block = {i: s for s, mine in enumerate(blocks) for i in mine}
    for name, shape in shapes_of(config):
        stage = 0
        if name.startswith("blocks."):
            stage = of_block[int(name.split(".")[1])]
        elif name.startswith("norm."):
            stage = stages - 1
        yield name, stage, shape


@functools.cache
def shapes_of(config):
    """Return (name, shape) of every parameter of the GPT on one device."""
    with torch.device("meta"):
        state = one_device(config).state_dict()
    return [(name, x.shape) for name, x in state.items()]
