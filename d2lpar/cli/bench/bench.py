"""`d2lpar bench`: what this machine does, in figures.

Each run starts real processes, except those of the simulator.

    races         the course against PyTorch, side by side: all-reduces, and steps of
                  training with DDP, sharding, split layers, a pipeline and a mesh; and
                  attention over a split sequence
    predicted     runs beside what `Cluster.here()` predicts of them
    startup       four ranks by `d2lpar.run` and by `torch.multiprocessing.spawn`
    simulator     messages per second of real time
    memory        of sharded training
    meshes        bytes and memory of a mesh and of torch's parts, in the simulator
"""

from functools import partial

from ...launch.conditions import machine as machine
from . import (
    allreduces,
    mesh,
    overlap,
    pipeline,
    predicted,
    race,
    sequence,
    several_nodes,
    sharding,
    tensor_parallel,
    world,
)

TRAINING = [overlap.RACE, sharding.RACE, *tensor_parallel.RACES, pipeline.RACE]


def plan(sizes=None, ranks=None, quick=False):
    """What a bench does: a list of (name, function that returns figures).

    `sizes` such as "64K,1M" and `ranks` such as "2,4"; ValueError for others.
    """
    sizes = sizes or ("64K,1M" if quick else "64K,256K,1M,4M,16M,64M")
    sizes = allreduces.sizes_of(sizes)
    trained = race.numbers_of_ranks(ranks or "2")
    ranks = race.numbers_of_ranks(ranks or ("2" if quick else "2,4"))
    found = [("start-up", partial(world.startup, quick))]
    found += allreduces.race(sizes).plan(ranks, quick)
    widths = predicted.WIDTHS[: 1 if quick else None]
    compared = partial(predicted.step, ranks, sizes, widths, quick)
    found.append(("this machine, predicted", compared))
    found.append(("simulator", partial(world.simulator, 0.2 if quick else 1.0)))
    for each in TRAINING:
        found += each.plan(trained, quick)
    found += mesh.RACE.plan([4], quick)  # 2 x 2
    found += sequence.RACE.plan(trained, quick)
    found.append(("a mesh, bytes and memory", mesh.counts))
    for n in trained:
        remember = partial(sharding.memory, n, quick)
        found.append((f"memory of sharded training, {n} ranks", remember))
    return found


def add(results, figures):
    """`figures` are in `results`; lists and tables of several steps become one."""
    for key, value in figures.items():
        if isinstance(value, list):
            results.setdefault(key, []).extend(value)
        elif isinstance(value, dict):
            results.setdefault(key, {}).update(value)
        else:
            results[key] = value


def tables(results):
    """The results as rich tables."""
    yield from race.tables(results.get("races", ()))
    yield from sharding.tables(results.get("memory", ()))
    yield from mesh.tables(results.get("meshes", ()))
    yield from predicted.tables(results.get("predicted", ()))
    yield from world.tables(results)
    yield from several_nodes.tables(results.get("rows", ()))
