"""`d2lpar record`: all that this machine can measure of the course, in one file.

    cluster      what `Cluster.here()` measured; `Cluster.load` reads a record, too
    predicted    runs beside what the simulator says of them on that cluster
    races        the bench's races, in their quick form, and the start-up
    gpu          what `Cluster.here(device="cuda")` measured, where there is a GPU
    experiments  tables of the chapters, where there are GPUs for them

Nothing in it names the machine's host, its user or a path.
"""

import json
import re
from functools import partial
from pathlib import Path

import torch

from .. import experiments
from ..launch.conditions import machine
from ..launch.this_machine import Cluster
from ..sim.measured import FORMAT
from .bench import bench, predicted

RANKS = (2, 4)


def plan(repeats=3, quick=False):
    """A list of (name, function that returns figures), as the bench has one."""
    seconds = 1.0 if quick else 6.0
    what = ((64 * 2**10, 2**20), (256,)) if quick else ()
    found = [("this machine, predicted", partial(_predicted, seconds, repeats, what))]
    quickly = bench.plan(ranks="2", quick=True)
    found += [(name, step) for name, step in quickly if name != found[0][0]]
    if torch.cuda.is_available():
        found.append(("this GPU", partial(_gpu, seconds)))
    return found + [(name, partial(_table, each)) for name, each in _possible()]


def _gpu(seconds):
    """What copies, products and messages of the GPU take."""
    figures = Cluster.here(ranks=(2,), seconds=2 * seconds, device="cuda").figures
    return {"gpu": {"d2lpar": FORMAT, **figures}}


def _possible():
    """The experiments that this machine has the GPUs for, with their names."""
    gpus = torch.cuda.device_count()
    named = experiments.every().items()
    return [(name, each) for name, each in named if gpus >= (each.ranks or 2)]


def _table(experiment):
    """What is measured at the sizes of the chapter, and where and when it was."""
    if experiments.is_small():
        raise ValueError("D2LPAR_SMALL=1 makes experiments too small for a record.")
    table, about = experiments.measure(experiment), machine("cuda")
    where = f"recorded on {about['name']}, torch {about['torch']}, {about['date'][:10]}"
    return {"experiments": {table.name: table.figures(where)}}


def _predicted(seconds, repeats, what):
    clusters, rows = predicted.compare(RANKS, seconds, repeats, what)
    quietest = min(clusters, key=lambda c: c.figures["machine"]["others"])
    return {
        "cluster": {"d2lpar": FORMAT, **quietest.figures},
        "predicted": rows,
        "within": {
            "time": predicted.share(rows),
            "work": predicted.share(rows, "work_error"),
        },
    }


def file_name(record):
    """`2_cpu_cores_amd_epyc.json`: the machine's name, as a file is called."""
    name = record["cluster"]["machine"]["name"]
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") + ".json"


def write(record, path=None):
    """Write the record, in this folder where no path is given; return the path."""
    path = Path(path or file_name(record))
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path
