"""The figures of an experiment: a row for each case, simulated beside measured."""

import json
import statistics
from dataclasses import asdict, dataclass, replace
from importlib import resources

from ..report.units import short_bytes
from ..sim.cluster import Cluster
from ..sim.hardware import find_gpu

NOT_RUN = "not simulated"


@dataclass(frozen=True)
class Row:
    """A case: seconds of a step and most bytes held by a rank; None: not known.

    flops    of the step's products on one rank; moved: bytes that count instead
    low      lower quartile of the measured seconds; high: upper one
    failed   why there is nothing measured, such as "out of memory"
    """

    case: str
    simulated: float | None = None
    simulated_peak: int | None = None
    flops: int = 0
    moved: int | None = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    peak: int | None = None
    failed: str = ""

    @property
    def seconds(self):
        """Measured seconds where there are some, or else simulated ones."""
        return self.simulated if self.measured is None else self.measured

    @property
    def rate(self):
        """FLOP, or bytes where the case counts them, per second."""
        return (self.moved or self.flops) / self.seconds


@dataclass(frozen=True)
class Table:
    """The rows of an experiment; `table["1/8"]` is the row of a case.

    where    what was simulated, such as "1xA100"
    source   where the measured figures come from, or why there are none
    """

    name: str
    where: str
    source: str
    rows: tuple[Row, ...]

    def __getitem__(self, case):
        for row in self.rows:
            if row.case == case:
                return row
        raise KeyError(f"no case {case!r}: there are {', '.join(self.cases)}")

    @property
    def cases(self):
        return [row.case for row in self.rows]

    @property
    def gpu(self):
        """The name of the simulated GPU, as `Cluster.of` takes it."""
        return self.where.rpartition("x")[2]

    @property
    def is_measured(self):
        return any(row.measured for row in self.rows)

    @property
    def pace(self):
        """How many times as long steps take as simulated: the median of the rows."""
        both = [row for row in self.rows if row.measured and row.simulated]
        known = [row.measured / row.simulated for row in both]
        return statistics.median(known) if known else 1.0

    def cluster(self, n, **links):
        """n of these GPUs, as `Cluster.of` makes them, computing at this pace."""
        there = Cluster.of(f"{n}x{self.gpu}", **links)
        if not self.is_measured:
            return there
        name = f"{there.name} at the measured pace"
        slowed = tuple((rank, self.pace) for rank in range(n))
        return replace(there, name=name, slowed=slowed)

    def __str__(self):
        wide = max(len(case) for case in self.cases)
        three = "{:>9} {:>8} {:>8}".format(*self._heads())
        sides, heads, title = f"{'simulated':>27}", three, f"simulated on {self.where}"
        if self.is_measured:
            title, sides = f"{title}, {self.source}", f"{sides} {'measured':>27}"
            heads = f"{three} {three}"
        lines = [title, f"{'':{wide}} {sides}", f"{'':{wide}} {heads}"]
        for row in self.rows:
            text = _columns(row.simulated, row.simulated_peak, row) or NOT_RUN
            more = row.failed or _columns(row.measured, row.peak, row)
            lines.append(f"{row.case:{wide}} {text:>27} {more}".rstrip())
        lines += self._too_large()
        return "\n".join(lines + [self.source] * (not self.is_measured))

    def _too_large(self):
        """A line that names the cases which the simulated GPU has no memory for."""
        gpu = find_gpu(self.gpu)
        over = [r.case for r in self.rows if (r.simulated_peak or 0) > gpu.memory]
        text = f"More than the {short_bytes(gpu.memory)} of a GPU: {', '.join(over)}"
        return [text] if over else []

    def _heads(self):
        rate = "GB/s" if any(row.moved for row in self.rows) else "TFLOP/s"
        return "ms", "memory", rate

    __repr__ = __str__

    def figures(self, source):
        """Return what a record holds of this table, for `from_figures`."""
        rows = [asdict(row) for row in self.rows]
        return {"where": self.where, "source": source, "rows": rows}


def from_figures(name, figures):
    """Return the Table whose `figures` these are."""
    rows = tuple(Row(**row) for row in figures["rows"])
    return Table(name, figures["where"], figures["source"], rows)


def _columns(seconds, peak, row):
    if not seconds:
        return ""
    rate = (row.moved / 1e9 if row.moved else row.flops / 1e12) / seconds
    memory = short_bytes(peak) if peak else ""
    return f"{1e3 * seconds:9.4g} {memory:>8} {_short(rate) if rate else '':>8}"


def _short(rate):
    return f"{float(f'{rate:.3g}'):g}"  # 2030, not 2.03e+03


def recorded(name):
    """Return the table of this name that a record of the course holds, or None."""
    folder = resources.files("d2lpar").joinpath("launch", "records")
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        record = json.loads(path.read_text(encoding="utf-8"))
        if name in (tables := record.get("experiments", {})):
            return from_figures(name, tables[name])
    return None
