"""Programs of the chapters at the sizes of real machines: simulated, and measured.

    @experiment(small={"width": 64})     marks a function that returns {case: prepare}
    def products(width=8192): ...        prepare() returns the step that is timed
    table = measure(products)            on one GPU; simulated everywhere
    measure(gradients)                   on all GPUs, if `experiment(ranks=None)`
    table.cluster(8)                     eight such GPUs, at the pace that was measured

Where there is no GPU, the table shows what a record of the course measured, if one has
it.  `tables` has the figures, `measuring` the clocks, other modules the experiments.
"""

import importlib
import pkgutil

from .measuring import Case, experiment, half, is_small, measure
from .tables import Row, Table

__all__ = ["Case", "Row", "Table", "every", "experiment", "half", "is_small", "measure"]


def every():
    """Return {name: experiment} of the course, in order of their names."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f".{module.name}", __name__)
        for name, value in vars(loaded).items():
            mine = getattr(value, "__module__", "") == loaded.__name__
            if mine and hasattr(value, "ranks"):
                found[name] = value
    return dict(sorted(found.items()))
