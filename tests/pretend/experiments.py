"""Measure experiments: `one` those on one GPU, `all` those on all of them, too."""

import json
import sys

import torch

from d2lpar import experiments


def why_not(table):
    """What is missing in a table that GPUs have measured; "" if nothing is."""
    missing = [row.case for row in table.rows if not row.measured]
    return f"not measured: {', '.join(missing)}" if missing else ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = experiments.every().items()
    chosen = {name: x for name, x in every if x.ranks == 1 or "all" in sys.argv}
    found = {name: why_not(experiments.measure(x)) for name, x in chosen.items()}
    print("\n" + json.dumps(found))
