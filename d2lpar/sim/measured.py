"""A machine that was measured, as a cluster for the simulator; see `here.py`.

`figures` is what a file holds.  A row of it is [x, median, lower quartile, upper
quartile, rounds], x in bytes or FLOPs, the rest in seconds.

    machine      processor, cores, system, versions, date, how busy others kept it
    products     {dtype: rows over FLOPs}; "tf32" on a GPU that has it
    operations   {name: rows over the bytes of arguments and results}
    launch       row: what Python adds to an operation of a training step
    messages     {k: rows}: one message, while k are in flight together
    all_reduce   {ranks: rows}: a native one, over the bytes of the tensor
    work         {"messages", "all_reduce 2": [bytes, seconds of a processor]}
    sharing      {ranks: row}: a product, while so many ranks compute
    overlap      {ranks: part of an all-reduce that a product beside it hides}
    copies       {kind: rows} between host and GPU, and inside it
    missing      sentences: what could not be measured;  unsteady: what varied
"""

import bisect
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from .cluster import Cluster
from .meter import EMPTY

QUIET = 0.1  # part of the processors that other programs take at most

FORMAT = 1
NEEDED = (("products", "float32"), ("operations", "add"), ("operations", "add_"))
NEEDED += (("work", "messages"), ("work", "all_reduce 2"), ("messages", "1"))
_free = lambda size: 0.0
PARTS = "machine products operations launch messages all_reduce work sharing overlap"
PARTS += " copies missing unsteady"


class Curve:
    """Seconds over a size, linear between the sizes that were measured.

    Below the first it is constant, beyond the last it goes on as between the last two.
    """

    def __init__(self, rows):
        rows = sorted(rows)
        self.sizes = [row[0] for row in rows]
        self.seconds = [row[1] for row in rows]

    def __call__(self, size):
        sizes, seconds = self.sizes, self.seconds
        if size <= sizes[0] or len(sizes) == 1:
            return seconds[0]
        i = min(bisect.bisect_left(sizes, size), len(sizes) - 1)
        part = (size - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        slope = seconds[i] - seconds[i - 1]
        if part > 1 and slope < 0:
            return seconds[i]  # noise: more bytes do not take less time
        return seconds[i - 1] + part * slope


@dataclass(frozen=True, repr=False)
class MeasuredCluster(Cluster):
    """The machine that `Cluster.here()` has measured; `figures` holds all of it."""

    figures: dict = field(default_factory=dict, compare=False)
    source: str = field(default="", compare=False)  # why it may be another machine
    measured = True

    def save(self, path):
        """Write the figures as JSON, for `Cluster.load`."""
        text = json.dumps({"d2lpar": FORMAT, **self.figures}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @property
    def free_compute(self):
        return False

    @property
    def disturbed(self):
        """A sentence if other programs were busy while this was measured."""
        busy = self.figures["machine"].get("others", 0)
        if busy <= QUIET:
            return []
        return [
            f"Other programs took {busy:.0%} of the processors while it was measured. "
            "Measure again when they are quiet: d2lpar.Cluster.here(fresh=True)."
        ]

    # what the simulator wants to know

    @cached_property
    def _curves(self):
        """{(part, name): Curve}."""
        parts = ("products", "operations", "messages", "all_reduce", "work")
        return {
            (part, name): Curve(rows)
            for part in parts
            for name, rows in self.figures[part].items()
        }

    @cached_property
    def _together(self):
        """How many messages were in flight together, in order."""
        return sorted(map(int, self.figures["messages"]))

    def operation_seconds(self, rank, name, flops, bytes, dtype=None):
        """Seconds of one operation, from its own curve, or from its FLOPs and bytes."""
        own = self._curves.get(("operations", name), _free if name == EMPTY else None)
        if own is not None:
            return own(bytes) * self.slow_factor(rank)
        return self.compute_seconds(rank, flops, bytes, dtype, name.endswith("_"))

    def compute_seconds(self, rank, flops, bytes, dtype=None, in_place=False):
        """The time of a sum that moves as many bytes, and of a product besides.

        A product with fewer FLOPs than bytes is none.  The two times add up, since
        the product was measured with operands in a cache, where weights are not.
        """
        seconds = self._curves["operations", "add_" if in_place else "add"](bytes)
        if flops > bytes:
            kind = str(dtype).removeprefix("torch.")
            product = self._curves.get(("products", kind))
            seconds += (product or self._curves["products", "float32"])(flops)
        return seconds * self.slow_factor(rank)

    def launch_seconds(self, rank):
        return self.figures["launch"][1] * self.slow_factor(rank)

    def peak(self, dtype):
        """FLOP per second of the fastest product of this type, or else of float32."""
        products = self.figures["products"]
        rows = products.get(str(dtype).removeprefix("torch."), products["float32"])
        return max(row[0] / row[1] for row in rows)

    def message_seconds(self, nbytes, together=1):
        """Seconds of a message while so many are in flight."""
        known = self._together
        i = min(bisect.bisect_left(known, together), len(known) - 1)
        high = self._curves["messages", str(known[i])](nbytes)
        if together >= known[i] or i == 0:
            return high * max(1.0, together / known[i])
        low = self._curves["messages", str(known[i - 1])](nbytes)
        part = (together - known[i - 1]) / (known[i] - known[i - 1])
        return low + part * (high - low)

    def message_work(self, nbytes):
        """Seconds of processor that both ends of a message need together."""
        return self._curves["work", "messages"](nbytes)

    def collective_work(self, nbytes, n):
        """Seconds of processor that each rank needs for an all-reduce of n ranks."""
        two = self._curves["work", "all_reduce 2"]
        return self._curves.get(("work", f"all_reduce {n}"), two)(nbytes)

    def collective_seconds(self, kind, n, cost):
        """(seconds, seconds of each rank's processor) of a native collective.

        An all-reduce was measured.  Of others the messages count, step by step.
        """
        if not cost.edges:
            return 0.0, 0.0
        if kind == "all_reduce" and ("all_reduce", str(n)) in self._curves:
            size = cost.steps[0] * n
            seconds = self._curves["all_reduce", str(n)](size)
            return seconds, self.collective_work(size, n)
        steps = cost.steps if len(cost.steps) > 1 else cost.steps * cost.latencies
        together = len(cost.edges) if kind != "gather" and kind != "scatter" else 1
        work = sum(map(self.message_work, steps))
        return sum(self.message_seconds(size, together) for size in steps), work

    def check_world_size(self, n):
        most = max(map(int, self.figures["sharing"]))
        if n > most:
            raise ValueError(
                f"{self.name}: measured with up to {most} ranks, but the run wants "
                f"{n}. Measure again with d2lpar.Cluster.here(ranks=(2, {n}))."
            )

    def __repr__(self):
        small, large = (self.message_seconds(size) for size in (1, 2**20))
        day = self.figures["machine"].get("date", "")[:10]
        text = f"Cluster {self.name}, measured{day and f' on {day}'}: "
        text += (
            f"{small * 1e6:.0f} us for a small message, {large * 1e6:.0f} us for 1 MB"
        )
        rates = {kind: self.peak(kind) / 1e9 for kind in self.figures["products"]}
        text += "".join(f"; {rate:.0f} GFLOP/s {kind}" for kind, rate in rates.items())
        text += "".join(f"\n  {each}" for each in self.figures["missing"])
        text += "".join(f"\n  {each}" for each in self.disturbed)
        return text + (self.source and f"\n  Loaded from {self.source}.")


def cluster_of(figures):
    """Return the cluster that these figures describe."""
    machine = figures["machine"]
    messages = figures["messages"]
    one = Curve(messages[min(messages, key=int)])
    latency, large = one(1), one.sizes[-1]
    cores = machine["cores"]
    on_cpu = machine["device"] == "cpu"
    return MeasuredCluster(
        name=machine["name"],
        latency=latency,
        rate=large / max(one(large) - latency, 1e-9),
        launch=figures["launch"][1],
        cores=cores if on_cpu else None,
        figures=figures,
    )


def load(path):
    """Return the cluster that `Cluster.here().save(path)` has written.

    Raises ValueError, in a sentence, where the file holds something else.
    """
    bad = f"{path} holds no measured cluster, which `Cluster.here().save(path)` writes"
    try:
        figures = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{bad}: it is no JSON ({error}).") from None
    return from_file(figures, bad)


Cluster.load = staticmethod(load)


def from_file(figures, bad="The record"):
    """Return the cluster of what a file holds, a record or a cluster alone."""
    if isinstance(figures, dict) and "cluster" in figures:
        figures = figures["cluster"]  # a record holds more than that
    if not isinstance(figures, dict) or "d2lpar" not in figures:
        raise ValueError(f"{bad}: it has no entry 'd2lpar'.")
    if (version := figures["d2lpar"]) != FORMAT:
        raise ValueError(f"{bad}: its format is {version!r}, and {FORMAT} is expected.")
    _check(figures, bad)
    return cluster_of({part: figures[part] for part in PARTS.split()})


def _check(figures, bad):
    """Raise ValueError where the simulator would miss something."""
    if absent := [part for part in PARTS.split() if part not in figures]:
        raise ValueError(f"{bad}: the entry {absent[0]!r} is missing.")
    machine = figures["machine"]
    for name, kind in {"name": str, "cores": int, "device": str}.items():
        if not isinstance(machine, dict) or not isinstance(machine.get(name), kind):
            raise ValueError(f"{bad}: 'machine' has no {name!r}.")
    for part, name in NEEDED:
        if not isinstance(figures[part], dict) or name not in figures[part]:
            raise ValueError(f"{bad}: {part!r} has no rows for {name!r}.")
    for part in ("products", "operations", "messages", "all_reduce", "work"):
        for name, rows in figures[part].items():
            if not _are_rows(rows, 2 if part == "work" else 5):
                raise ValueError(f"{bad}: the rows of {part!r}, {name!r} are unusable.")
    for part in ("messages", "all_reduce", "sharing"):
        if odd := [name for name in figures[part] if not str(name).isdigit()]:
            raise ValueError(f"{bad}: {part!r} has {odd[0]!r} in place of a number.")
    if not (_are_rows([figures["launch"]], 5) and figures["sharing"]):
        raise ValueError(f"{bad}: 'launch' or 'sharing' is unusable.")


def _are_rows(rows, length):
    """Whether these are rows of so many finite numbers, none below 0."""
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, list) and len(row) >= length for row in rows)
        and all(
            isinstance(x, int | float) and 0 <= x < math.inf
            for row in rows
            for x in row
        )
    )


def recorded(name):
    """Return a record that the course holds."""
    folder = resources.files("d2lpar").joinpath("launch", "records")
    return json.loads(folder.joinpath(f"{name}.json").read_text(encoding="utf-8"))
