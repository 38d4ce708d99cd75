"""Runs on this machine, measured, beside what `Cluster.here()` predicts of them.

The same program runs on processes and in the simulator.  Measuring the cluster and the
runs follow each other at once, so that both meet the same machine.  Work is seconds of
all processors together: other programs hardly change it, whatever they do to the time.

    ring           the course's ring all-reduce, 64 KB to 64 MB              chapter 06
    all-reduce     a native one: it was measured, so only noise is seen
    DDP            a step of an MLP, its gradients in buckets, overlapped    chapter 08
    split MLP      a step of a tensor-parallel MLP, native all-reduces       chapter 12
    1F1B           a step of a pipeline, 8 micro-batches                     chapter 13
"""

import statistics
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist

from ...allreduce import ring_allreduce
from ...launch import run as launch
from ...launch.predictions import simulated
from ...launch.rounds import (
    LineUp,
    counted,
    durations,
    often,
    others,
    quiet_rounds,
    take_turns,
    worked,
)
from ...overlap import OverlappedDDP
from ...sim.cluster import Cluster
from . import pipeline, tensor_parallel
from .allreduces import KB, MB, size_name
from .overlap import BUCKET, ROWS, network
from .race import ON_CPU, new_table, show_time, step_of

SIZES = (64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB)
WIDTHS = (256, 512, 1024)
TURNS = 9  # of messages in KB in each round
NEAR = 0.15  # an error that counts as right
MANY = 1000  # processors: more than there are ranks


def programs(sizes=SIZES, widths=WIDTHS):
    """{name: program} on each rank."""
    x = torch.ones(max(sizes, default=4) // 4)
    made = {}
    for size in sizes:
        view = x[: size // 4]
        made[f"ring, {size_name(size)}"] = partial(ring_allreduce, view)
        made[f"all-reduce, {size_name(size)}"] = partial(dist.all_reduce, view)
    for width in widths:
        made[f"DDP, width {width}"] = _ddp(width)
        made[f"split MLP, width {width}"] = _split(width)
        made[f"1F1B, width {width}"] = _pipeline(width)
    return made


def _ddp(width):
    torch.manual_seed(0)
    model = OverlappedDDP(network(width), bucket_bytes=BUCKET)
    data = torch.randn(ROWS, width)

    def backward():
        model(data).square().mean().backward()
        model.finish()

    return step_of(model, backward)


def _split(width):
    model = tensor_parallel.ours(tensor_parallel.make("MLP", width))
    data = torch.randn(4, tensor_parallel.TOKENS, width)

    def backward():
        with tensor_parallel.native_allreduce():
            model(data.requires_grad_()).square().mean().backward()
            data.grad = None

    return step_of(model, backward)


def _pipeline(width):
    stage = pipeline.tanh_layers(dist.get_rank(), width)
    data = torch.randn(pipeline.MICRO * pipeline.ROWS, width)
    step = pipeline.our_step("1f1b", stage, data, torch.zeros_like(data))
    return step_of(stage, step)


def _measured(seconds, *what):
    several = often(programs(*what), lambda name: TURNS if name.endswith("KB") else 1)
    return take_turns(LineUp(several), seconds, steady=True)


def predict(cluster, n, *what):
    """{name: (seconds, seconds of all processors)} on this cluster, simulated."""
    how = {"world_size": n, "backend": "sim", "device": "cpu"}
    run = launch.run(simulated, programs, *what, cluster=cluster, **how)
    # with a processor for each rank no event waits for one
    alone = launch.run(
        simulated, programs, *what, cluster=replace(cluster, cores=MANY), **how
    )
    seconds = durations(run.results)
    return {name: (seconds[name][0], _work(alone, name)) for name in seconds}


def _work(run, name):
    """Seconds that all processors work together while this program runs."""
    work = 0.0
    for event in run.timeline:
        [(start, stop)] = run.results[event.rank][name]
        if not (start <= event.start and event.stop <= stop + 1e-9):
            continue
        if event.stream == "compute" and event.bytes:  # it does not only wait
            work += event.stop - event.start
        elif event.stream == "send":
            work += run.cluster.message_work(event.bytes)
        elif event.stream == "comm" and event.bytes:  # not a barrier
            work += run.cluster.collective_work(event.bytes, run.world_size)
    return work


def compare(ranks=(2, 4), seconds=10.0, repeats=3, what=(), here=Cluster.here):
    """(clusters, rows): the measured clusters, and a row per program.

    In each repetition the machine is measured anew, then the programs run; `what` are
    sizes and widths.  Rounds in which other programs were busy do not count, as far as
    there are quiet ones.
    """
    clusters, found = [], {}
    for _ in range(repeats):
        cluster = here(ranks, 2 * seconds)
        clusters.append(cluster)
        for n in ranks:
            run = launch.run(_measured, seconds, *what, world_size=n, **ON_CPU)
            predicted, kept = predict(cluster, n, *what), quiet_rounds(run.results)
            busy = statistics.median(counted(others(run.results), kept))
            for name, each in durations(run.results, quiet=True).items():
                low, middle, high = statistics.quantiles(each, n=4)
                work = statistics.median(worked(run.results, name, kept))
                figures = middle, predicted[name][0], low, high
                figures += work, predicted[name][1], busy
                found.setdefault((n, name), []).append(figures)
    return clusters, [_row(n, name, each) for (n, name), each in found.items()]


COLUMNS = "seconds predicted low high work predicted_work others".split()


def _row(n, name, repeats):
    """A row of the table, of the figures of several repetitions."""
    errors = [predicted / measured - 1 for measured, predicted, *_ in repeats]
    columns = map(statistics.median, zip(*repeats, strict=True))
    row = {"program": name, "ranks": n, **dict(zip(COLUMNS, columns, strict=True))}
    row |= {"error": statistics.median(errors)}
    row |= {"errors": [round(error, 3) for error in errors]}
    return row | {"work_error": row["predicted_work"] / row["work"] - 1}


def share(rows, error="error"):
    """The part of the rows whose prediction is right within 15 %."""
    return sum(abs(row[error]) <= NEAR for row in rows) / len(rows)


def step(ranks, sizes, widths, quick):
    """Figures for the bench: the rows of one repetition."""
    seconds = 1.0 if quick else 10.0
    return {"predicted": compare(ranks, seconds, 1, (sizes, widths))[1]}


def tables(rows):
    """The table of predictions, where there are some."""
    if not rows:
        return []
    busy = statistics.mean(row["others"] for row in rows)
    title = f"Predicted by Cluster.here(); other programs took {busy:.0%}"
    heads = "ranks", "measured", "predicted", "error", "work", "error"
    table = new_table(title, "program", *heads)
    for row in rows:
        time, guess, work = (
            show_time({"seconds": row[x]}) for x in ("seconds", "predicted", "work")
        )
        errors = [f"{row[x]:+.0%}" for x in ("error", "work_error")]
        texts = time, guess, errors[0], work, errors[1]
        table.add_row(row["program"], str(row["ranks"]), *texts)
    return [table]
