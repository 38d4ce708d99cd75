"""`python -m bench`: what this machine does, in figures, as tables and as JSON."""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from d2lpar.cli import doctor, execution
from d2lpar.failures import several_nodes

from . import allreduces, local_tensor, mesh, race, training, world


def plan(sizes, ranks=None, quick=False):
    """A list of functions that return rows, for these sizes and numbers of ranks."""
    found, trained = [partial(world.startup, quick)], ranks or [2]
    for size in sizes:
        found += allreduces.race(*size).plan(ranks or ([2] if quick else [2, 4]), quick)
    races = training.DDP, training.SHARDED, *mesh.LAYERS, training.PIPELINE
    for each in (*races, training.SEQUENCE):
        found += each.plan(trained, quick)
    found += mesh.RACE.plan([4], quick)  # 2 x 2
    found += [partial(training.memory, n, quick) for n in trained]
    found += [partial(world.simulator, 0.2 if quick else 1.0)]
    return found + local_tensor.plan(ranks, quick)


def on_nodes(quick):
    """Rows of chapter 19's programs on two nodes, measured and predicted."""
    for each in several_nodes.measure(rounds=1 if quick else 5):
        about = "Two nodes", f"{each['program']}, {each['rate']}"
        for name in ("measured", "predicted"):
            shown = f"{each[name] * 1e3:.1f} ms"
            yield race.row(*about, name, shown, seconds=each[name])


def main(words=None):
    """Measure all-reduces, start-up, simulator and training on this machine."""
    sizes_of = lambda text: [allreduces.size_of(each) for each in text.split(",")]
    numbers = lambda text: [int(each) for each in text.split(",")]
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("--sizes", type=sizes_of, help="such as 64K,1M,16M")
    parser.add_argument("--ranks", type=numbers, help="of processes, such as 2,4")
    parser.add_argument("--quick", action="store_true", help="less of all")
    parser.add_argument("--nodes", action="store_true", help="only chapter 19's")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args(words)
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"There is no folder {given.json.parent} for {given.json.name}.")
    about = {finding.topic: finding.value for finding in doctor.examine()}
    about["load before"] = getattr(os, "getloadavg", tuple)()
    about["date"] = time.strftime("%Y-%m-%d %H:%M %z")
    about["processor"] = execution.processor()
    usual = "64K,1M" if given.quick else "64K,256K,1M,4M,16M,64M"
    steps = plan(given.sizes or sizes_of(usual), given.ranks, given.quick)
    if given.nodes:
        steps = [partial(on_nodes, given.quick)]
    os.environ["D2LPAR_PROGRESS"] = "0"
    rows = [row for step in steps for row in step()]
    for table in race.tables(rows):
        Console(highlight=False).print(table)
    if given.json:
        text = json.dumps({"machine": about, "rows": rows}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
