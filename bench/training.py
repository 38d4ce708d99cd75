"""Steps with DDP, with FSDP and with a pipeline, and a split sequence."""

import copy
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from d2lpar import overlap, sequence
from d2lpar.allreduce.shared_memory import shared_memory_allreduce
from d2lpar.launch import run as launch
from d2lpar.pipeline import Pipeline
from d2lpar.pipeline.schedule import make
from d2lpar.sequence import torch_ring_attention
from d2lpar.sharding import FSDP

from .race import ON_CPU, WIDTHS, LineUp, Race, row, step_of

BUCKET = 2**20  # bytes; torch's own counts in MB of this size
LAYERS, ROWS, MICRO = 6, 64, 8  # of an MLP; of a micro-batch; micro-batches

# DDP: each rival has a copy of the same model and the same share of the data

THEIRS = partial(DistributedDataParallel, bucket_cap_mb=BUCKET / 2**20)
OURS = partial(overlap.OverlappedDDP, bucket_bytes=BUCKET)
DDPS = {
    "torch DDP": THEIRS,
    "torch DDP, gradients as views": partial(THEIRS, gradient_as_bucket_view=True),
    "naive": overlap.NaiveDDP,
    "flat": overlap.FlatDDP,
    "bucketed": partial(overlap.BucketedDDP, bucket_bytes=BUCKET),
    "overlapped": OURS,
    "overlapped, shared memory": partial(OURS, allreduce=shared_memory_allreduce),
}


def ddps(width):
    """Every rival with a copy of one MLP."""
    torch.manual_seed(0)
    layers = [(nn.Linear(width, width), nn.ReLU()) for _ in range(LAYERS)]
    first = nn.Sequential(*[part for pair in layers for part in pair])
    x = torch.randn(ROWS, width) + dist.get_rank()
    models = {name: wrap(copy.deepcopy(first)) for name, wrap in DDPS.items()}

    def backward(model):
        model(x).square().mean().backward()
        getattr(model, "finish", int)()  # torch's has none

    return LineUp({k: step_of(m, partial(backward, m)) for k, m in models.items()})


DDP = Race("A training step", ddps, WIDTHS)

# FSDP, in time and in memory; for memory each has processes of its own

OUR_FSDP, TORCHS_FSDP = "FSDP", "fully_shard"
SHAPES = {"6 layers of 512": (512, 6, 64), "8 layers of 2048": (2048, 8, 64)}


def make_step(name, width, layers, rows):
    """A function that trains one step with one of the two, and returns [its loss]."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    net, x = nn.Sequential(*blocks), torch.full((rows, width), 0.1 + dist.get_rank())
    if name == OUR_FSDP:
        net = FSDP(net)
    for module in (*blocks, net) if name == TORCHS_FSDP else ():
        fully_shard(module)
    optimizer = torch.optim.Adam(net.shards if name == OUR_FSDP else net.parameters())

    def step():
        loss = net(x).square().mean()
        loss.backward()
        if name == OUR_FSDP:
            net.finish()
            net.step(optimizer)
        else:
            optimizer.step()
        optimizer.zero_grad()
        return [loss]

    return step


def sharded(*shape):
    """Both trainers, from the same weights."""
    return LineUp({name: make_step(name, *shape) for name in (TORCHS_FSDP, OUR_FSDP)})


SHARDED = Race("Sharded training", sharded, SHAPES, seconds=(20.0, 0.8))


def memory(ranks, quick=False):
    """Bytes of a rank: the most resident, and how much it grew from the start."""
    rows, shape = [], list(SHAPES.values())[0 if quick else -1]
    title = f"Sharded training on {ranks} Gloo ranks"
    heads = "peak memory", "of it since the start"
    for name in (TORCHS_FSDP, OUR_FSDP):
        run = launch.run(_peak, name, shape, world_size=ranks, **ON_CPU)
        for head, size in zip(heads, map(max, *run.results), strict=True):
            rows.append(row(title, name, head, f"{size / 2**20:,.0f} MB", bytes=size))
    return rows


def _peak(name, shape):
    """(peak resident bytes, growth since before the model) of this process."""
    import resource  # not on Windows

    unit = 1024 if sys.platform.startswith("linux") else 1
    most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    make_step(name, 8, 1, 1)()  # all modules are loaded now
    before, step = most(), make_step(name, *shape)
    for _ in range(3):
        step()
    return most(), most() - before


# A pipeline: the same stages and micro-batches

TORCHS, SCHEDULES = "torch Schedule1F1B", ("1f1b", "gpipe", "zb-h1")


squares = lambda out, y: (out - y).square().sum()


def our_step(name, stage, x, y):
    """Make a function of all gradients, with a schedule of that name."""
    made = make(name, dist.get_world_size(), MICRO)
    return partial(Pipeline(made, [stage], squares).step, x, y)


def torchs_step(stage, x, y):
    """Make the same with PyTorch's stage and schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    r, last = dist.get_rank(), dist.get_world_size() - 1
    part = PipelineStage(stage, r, last + 1, launch.device())
    mean = lambda out, y: squares(out, y) / len(x)
    made = Schedule1F1B(part, MICRO, loss_fn=mean, scale_grads=False)
    given, wanted = [x] if r == 0 else [], {"target": y} if r == last else {}
    return partial(made.step, *given, **wanted)


def pipelines(width):
    """Every rival with stages of the same weights, two layers on each rank."""
    x, stages = torch.randn(MICRO * ROWS, width), {}
    y = torch.zeros_like(x)
    for name in (TORCHS, *SCHEDULES):
        torch.manual_seed(dist.get_rank())
        layers = [nn.Linear(width, width), nn.Linear(width, width)]
        stages[name] = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh())
    steps = {TORCHS: torchs_step(stages[TORCHS], x, y)}
    steps |= {name: our_step(name, stages[name], x, y) for name in SCHEDULES}
    return LineUp({name: step_of(stages[name], steps[name]) for name in steps})


PIPELINE = Race("A pipeline", pipelines, WIDTHS)

# A split sequence: torch's is the ring below `context_parallel`, which refuses CPUs

ATTENTIONS = {
    "torch context_parallel": torch_ring_attention,
    "ring": partial(sequence.ring_attention, tile=None),
    "ring, our tiles": sequence.ring_attention,
    "gather": partial(sequence.gather_attention, tile=None),
    "ulysses": partial(sequence.ulysses_attention, order="zigzag", tile=None),
}


def attentions(tokens):
    """All rivals on the same queries, keys and values of `tokens` tokens, in zigzag."""
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(4, 1, 8, tokens, 64, generator=generator)
    *mine, dy = (sequence.split_sequence(x, 2) for x in whole)

    def step(attend):
        qkv = [x.detach().requires_grad_() for x in mine]
        y = attend(*qkv)
        y.backward(dy)
        return [y, *(x.grad for x in qkv)]

    return LineUp({name: partial(step, each) for name, each in ATTENTIONS.items()})


COURSES = {f"{n} tokens": (n,) for n in (1024, 4096)}
SEQUENCE = Race("A split sequence", attentions, COURSES)
