"""Published training runs, as models, clusters, plans and the seconds of a step.

`published.csv` has one run per row, each with its source; `use` marks those on which
`usual_shares` are calibrated.  Nodes have eight GPUs with a network card each.
`measured.csv` has all runs of a search over plans, with those that ran out of memory:
Hagemann et al. 2023, arXiv 2311.05610, and the spreadsheets that belong to it.
"""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from ..sim.cluster import Cluster
from .model import Model, Plan


@dataclass(frozen=True)
class Row:
    """A published run: `published` in the `unit` of its source, and as seconds.

    use      "calibrate", "predict", or why it cannot be predicted
    first    seconds that the first, blind version of the planner predicted
    """

    name: str
    use: str
    model: Model
    cluster: Cluster
    plan: Plan
    batch: int
    unit: str
    published: float
    first: float
    source: str

    @property
    def seconds(self):
        """Seconds of a step, computed from what was published."""
        if self.unit == "seconds":
            return self.published
        tokens = self.batch * self.model.sequence
        if self.unit == "tokens/s":
            return tokens / self.published
        if self.unit == "tokens/s of a GPU":
            return tokens / self.published / self.plan.ranks
        recompute = "none" if self.unit == "TFLOP/s" else self.plan.recompute
        flops = self.model.flops(self.batch, recompute)
        return flops / (self.published * 1e12 * self.plan.ranks)


@functools.cache
def published():
    """Return the Rows of `published.csv`."""
    return tuple(map(_row, _table("published.csv")))


def calibration():
    """Return the Rows that are marked for calibration."""
    return tuple(row for row in published() if row.use == "calibrate")


def _table(name):
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def _row(row):
    def number(name, default):
        return int(row[name]) if row[name] else default

    model = Model(
        *(int(row[name]) for name in ("layers", "hidden", "heads", "vocabulary")),
        int(row["sequence"]),
        tied=bool(number("tied", 1)),
        kv_heads=number("kv_heads", None),
        feed_forward=number("feed_forward", None),
        gated=bool(number("gated", 0)),
        positions=bool(number("positions", 1)),
        head_size=number("head_size", None),
        parallel=bool(number("parallel", 0)),
    )
    degrees = ("data", "tensor", "pipeline", "micro_batch", "interleave")
    plan = Plan(
        **{name: number(name, 1) for name in degrees},
        zero=number("zero", 0),
        sequence_parallel=bool(number("sequence_parallel", 0)),
        recompute=row["recompute"],
    )
    cluster = eights(int(row["gpus"]), row["gpu"], row["network"])
    given = row["unit"], float(row["published"]), float(row["first"]), row["source"]
    name, use, batch = row["name"], row["use"], int(row["batch"])
    return Row(name, use, model, cluster, plan, batch, *given)


def eights(gpus, gpu, network):
    """Return a cluster of nodes of eight GPUs, with a network card for each."""
    spec = f"{gpus // 8}x8x{gpu}" if gpus > 8 else f"{gpus}x{gpu}"
    return Cluster.of(spec, network=network, cards=min(8, gpus))


# Layers, hidden, heads, feed-forward of the models in `measured.csv`.
LLAMA = {"13B": (40, 5120, 40, 13824), "30B": (60, 6656, 52, 17920)}
LLAMA["65B"] = (80, 8192, 64, 22016)


@functools.cache
def measured():
    """Return the runs of the search: (key, Row, seconds or None out of memory, MFU).

    The key is (model, sequence, GPUs).  Words: 128,000; 2,048 rows of 2,048
    tokens or 512 of 8,192; ZeRO-1, fused attention, nothing recomputed.  Rows
    and words are not in the tables: they follow from their MFU and seconds.
    """
    found = []
    for row in _table("measured.csv"):
        s, gpus = int(row["sequence"]), int(row["gpus"])
        layers, hidden, heads, f = LLAMA[row["model"]]
        model = Model(
            *(layers, hidden, heads, 128000, s), tied=False, feed_forward=f,
            gated=True, positions=False,
        )  # fmt: skip
        t, p = int(row["tensor"]), int(row["pipeline"])
        plan = Plan(
            *(gpus // t // p, t, p, int(row["micro_batch"])), zero=1, flash=True,
            sequence_parallel=row["sequence_parallel"] == "1" and t > 1,
        )  # fmt: skip
        batch = 2048 if s == 2048 else 512
        seconds = None if row["seconds"] == "oom" else float(row["seconds"])
        rate = float(row["mfu"]) / 100 if row["mfu"] else None
        key = row["model"], s, gpus
        cluster = eights(gpus, "A100", "200Gb")
        found.append((key, model, cluster, plan, batch, seconds, rate))
    return tuple(found)
