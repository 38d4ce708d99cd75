"""Programs for ranks on several nodes: measured on slow links, and predicted.

Each program is the same in both worlds.  Computing is `d2lpar.sleep`, so that a laptop
with two cores can play four GPUs, and only the links decide.

    flat           a ring all-reduce over all ranks                      chapter 06
    hierarchical   in the nodes, then between them                       chapter 06
    DDP            a backward pass, then buckets; or both at once        chapter 08
    local SGD      eight steps alone, then one mean of the parameters    chapter 09
    pipeline       1F1B, with its middle boundary on the slow link       chapter 13

Rates are in bits per second, times in seconds.
"""

import json
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ..allreduce import hierarchical_allreduce, node_groups, ring_allreduce
from ..launch.nodes import cluster, nodes
from ..launch.run import now, run, sleep
from ..messages import fit_alpha_beta
from ..overlap import BucketedDDP, OverlappedDDP
from ..pipeline import Pipeline, schedule

RECORDED = Path(__file__).with_name("several_nodes.json")
NODES, PER_NODE = 2, 2
RATES = ("100Mb", "300Mb", "1Gb")
NUMBERS = 2**20  # float32, 4 MB
LAYERS, COMPUTE = 8, 0.01  # of the network; seconds of one layer's backward pass
WIDTH, ROWS = 256, 512  # of an activation in the pipeline


class Busy(torch.autograd.Function):
    """Multiply by a number of the weight; the backward pass takes a while."""

    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.size, ctx.seconds = weight.shape, seconds
        return x * 1.0

    @staticmethod
    def backward(ctx, dy):
        sleep(ctx.seconds, "B")
        return dy, torch.full(ctx.size, dist.get_rank() + 1.0), None


class BusyLayer(nn.Module):
    """Hold `numbers` parameters; backward takes `seconds`, forward no time."""

    def __init__(self, numbers, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numbers))
        self.seconds = seconds

    def forward(self, x):
        return Busy.apply(x, self.weight, self.seconds)


def flat(repeats):
    """Return the seconds of ring all-reduces of 4 MB."""
    x = torch.empty(NUMBERS)
    return timed(lambda: ring_allreduce(x.fill_(1)), repeats)


def hierarchical(repeats):
    """Return the seconds of hierarchical all-reduces of 4 MB."""
    x, groups = torch.empty(NUMBERS), node_groups(PER_NODE)
    return timed(lambda: hierarchical_allreduce(x.fill_(1), groups), repeats)


def ddp(wrap, repeats):
    """Return the seconds of a backward pass and of averaging 4 MB of gradients.

    The buckets travel by the native all-reduce of each world.
    """
    layers = [BusyLayer(NUMBERS // LAYERS, COMPUTE) for _ in range(LAYERS)]
    model = wrap(nn.Sequential(*layers), bucket_bytes=4 * NUMBERS // LAYERS)
    mean = (dist.get_world_size() + 1) / 2

    def step():
        model(torch.ones(1, requires_grad=True)).sum().backward()
        model.finish()
        assert all((p.grad == mean).all() for p in model.parameters())
        model.zero_grad()

    return timed(step, repeats)


def local_sgd(repeats):
    """Return the seconds of 8 steps of which only the last one sends."""
    x = torch.empty(NUMBERS)

    def steps():
        for _ in range(8):
            sleep(LAYERS * COMPUTE, "step")
        ring_allreduce(x.fill_(1))

    return timed(steps, repeats)


def pipeline(repeats):
    """Return the seconds of 1F1B steps: 4 stages, 8 micro-batches of 512 KB each."""
    p = dist.get_world_size()
    stage = nn.Sequential(BusyStage(COMPUTE))
    plan = schedule.make("1f1b", p, 8)
    pipe = Pipeline(plan, [stage], lambda y, t: y.sum())
    batch = torch.ones(8 * ROWS, WIDTH)
    return timed(lambda: pipe.step(batch, batch), repeats)


class BusyStage(nn.Module):
    """Pass its input on; forward takes `seconds`, backward twice as long."""

    def __init__(self, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds = seconds

    def forward(self, x):
        sleep(self.seconds, "F")
        return Busy.apply(x, self.weight, 2 * self.seconds)


def timed(program, repeats):
    """Return the seconds of each repetition, from a barrier on, after one more."""
    seconds = []
    for _ in range(1 + repeats):
        dist.barrier()
        start = now()
        program()
        seconds.append(now() - start)
    return seconds[1:]


PROGRAMS = {
    "flat ring": flat,
    "hierarchical": hierarchical,
    "DDP, no overlap": partial(ddp, BucketedDDP),
    "DDP, overlap": partial(ddp, OverlappedDDP),
    "local SGD": local_sgd,
    "pipeline": pipeline,
}


def slowest(run):
    """Return the shortest repetition of the slowest rank's seconds."""
    each = sorted(max(times) for times in zip(*run.results, strict=True))
    return each[0]


def one_way(sizes, dst, repeats=30):
    """Return the seconds of a message from rank 0 to rank `dst`, for each size."""
    r, found = dist.get_rank(), []
    for size in sizes:
        ball = torch.zeros(size, dtype=torch.uint8)
        trips = []
        for _ in range(repeats if r in (0, dst) else 0):
            start = now()
            if r == 0:
                dist.send(ball, dst)
                dist.recv(ball, dst)
            else:
                dist.recv(ball, 0)
                dist.send(ball, 0)
            trips.append(now() - start)
        found.append(min(trips) / 2 if trips else 0.0)
    return found


def links(here):
    """Return a Cluster for the simulator, after timing single messages.

    The rate between nodes is not measured: it is that of the link, less headers.
    """
    small, large = 64, 2**20
    gloo = {"world_size": here.world_size, "backend": "gloo"}
    inside = run(one_way, [small, 2**16, large], 1, **gloo).results[0]
    alpha, beta = fit_alpha_beta([small, 2**16, large], inside)
    (across,) = run(one_way, [small], here.per_node, **gloo).results[0]
    return cluster(here, max(alpha, 1e-6), 1 / beta, across)


def measure(rates=RATES, repeats=5, rounds=5, programs=PROGRAMS):
    """Return rows of what each program took at each rate, and what was predicted.

    The shortest time of all rounds counts, since noise only adds.
    """
    rows = []
    for rate in rates:
        best = {}
        with nodes(NODES, PER_NODE, rate) as here:
            known = links(here)
            for name in list(programs) * rounds:
                how = {"world_size": here.world_size, "backend": "gloo"}
                took = slowest(run(programs[name], repeats, **how))
                best[name] = min(took, best.get(name, took))
        for name, program in programs.items():
            how = {"world_size": here.world_size, "backend": "sim"}
            virtual = run(program, 1, cluster=known, **how)
            rows.append(row(name, rate, best[name], slowest(virtual)))
    return rows


def row(name, rate, measured, predicted):
    """Return a row of the table."""
    error = predicted / measured - 1
    return {"program": name, "rate": rate, "measured": measured,
            "predicted": predicted, "error": error}  # fmt: skip


def recorded():
    """Return {"machine": ..., "rows": [...]} of the run that the course recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))
