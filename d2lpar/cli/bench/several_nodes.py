"""Chapter 19's programs on several nodes: measured and predicted."""

from functools import partial

from ...failures import several_nodes
from ...launch.nodes import nodes
from .race import new_table


def plan(quick=False):
    """Return a list of (name, function that returns figures); RuntimeError if none."""
    with nodes(2, 1, "1Gb"):
        pass  # it can be done here
    found = []
    for rate in several_nodes.RATES:
        rounds = 1 if quick else 5
        find = partial(several_nodes.measure, [rate], rounds=rounds)
        found.append((f"nodes, {rate}", lambda find=find: {"rows": find()}))
    return found


def tables(rows):
    """The table of the programs, where there are some."""
    columns = "program", "rate", "measured", "predicted", "error"
    table = new_table("Two nodes with two ranks each", *columns)
    for row in rows:
        times = (f"{row[key] * 1e3:.1f} ms" for key in ("measured", "predicted"))
        table.add_row(row["program"], row["rate"], *times, f"{row['error']:+.1%}")
    return [table] if rows else []
