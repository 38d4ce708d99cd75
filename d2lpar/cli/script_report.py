"""What a run of a script did: in numbers, as text, in a file, beside an earlier run."""

import json
import re
from collections import Counter
from linecache import getlines

from ..launch.script.replicas import apart
from ..report.runs import text_table
from ..report.units import counted, show_bytes, show_seconds
from ..shared.notebooks import write_bytes
from .console import Refused
from .steps import near_place, step, told

ROWS = 12  # lines of the table of calls
VERSION = 1  # of the file; another one may name other facts
DATES = re.compile(r"\bdatetime\.(now|utcnow|today)\(")
KIND = "d2lpar simulate"  # how such a file says what it is


def facts(program, run, error, marks):
    """(what `write` writes, the Timeline of a typical step or None)."""
    about, line = step(run, marks, program.folder)
    sentences = [w for w in run.warnings if not w.startswith("init_process_group does")]
    gpu = run.cluster and run.cluster.gpu
    return {
        "report": KIND,
        "version": VERSION,
        "run": repr(run).splitlines()[0],
        "ranks": run.world_size,
        "error": None if error is None else f"{type(error).__name__}: {error}",
        "clock": run.clock,
        "seconds": run.elapsed,
        "step": about,
        "calls": _calls(run, program),
        "peak_memory": list(run.peak_memory or ()),
        "gpu_memory": gpu.memory if gpu else None,
        "notes": sentences
        + shared_gpus(run)
        + apart(run.results)
        + unreal(run, program),
    }, line


def _calls(run, program):
    """Of each call and line, dearest first: how often, and the bytes sent."""
    found = sorted(run.ledger.by_call().items(), key=lambda item: -item[1][1])
    return [
        {"call": kind, "line": near_place(where, program.folder),
         "calls": count, "bytes": size}
        for (kind, where), (count, size) in found
    ]  # fmt: skip


def text(facts):
    """A step, bytes per call, memory, and sentences about what would be different."""
    lines = told(facts["step"]) if facts["step"] else []
    lines += [facts["run"], "", _table(facts["calls"])]
    if any(facts["peak_memory"]):
        lines += ["", _memory(facts["peak_memory"], facts["gpu_memory"])]
    return "\n".join(lines + [f"Note: {sentence}" for sentence in facts["notes"]])


def _table(calls):
    if not calls:
        return "The ranks did not communicate."
    rows = [["call", "line", "calls", "bytes"]]
    for one in calls[:ROWS]:
        size = show_bytes(one["bytes"])
        rows.append([one["call"], one["line"], f"{one['calls']:,}", size])
    if rest := calls[ROWS:]:
        count, size = (sum(one[what] for one in rest) for what in ("calls", "bytes"))
        rows.append([f"{len(rest)} others", "", f"{count:,}", show_bytes(size)])
    return text_table(rows)


def _memory(peaks, whole):
    most, least = max(peaks), min(peaks)
    where = "each rank"
    if most > least:
        where = f"rank {peaks.index(most)}, at least {show_bytes(least)}"
    part = f"; {most / whole:.0%} of a GPU's {show_bytes(whole)}" if whole else ""
    return f"peak memory: {show_bytes(most)} on {where}{part}"


def unreal(run, program):
    """Sentences on ranks, memory and a clock that are not real, --shapes in vain."""
    gpu, said = run.cluster and run.cluster.gpu, []
    if others := run.world_size - len(run.results):
        said.append(f"Rank 0 stands for {counted(others, 'other rank')}, not executed.")
    if run.clock == "virtual" and DATES.search("".join(getlines(program.path))):
        said.append(
            "datetime tells the time of this machine, and time.time() and "
            "time.perf_counter() that of the simulated cluster."
        )
    if gpu and max(run.peak_memory or [0]) > gpu.memory:
        said.append(
            f"On a real {gpu.name} this ends with torch.OutOfMemoryError: a rank holds "
            f"more than its {show_bytes(gpu.memory)}."
        )
    ended = all(used is not None for used in run.results)
    if program.shapes and ended and not any(used.gpus for used in run.results):
        said.append(
            "--shapes had no effect: the script put nothing on a GPU, so all of it was "
            "computed on the host, whose work takes no time here."
        )
    elif program.shapes and program.assumed is None:
        said.append("With --shapes all values that the script reads from a GPU are 1.")
    return said


def shared_gpus(run):
    """A sentence where ranks of a node have named the same GPU, which hardly is meant.

    Ranks that have named several, or none, are left out.
    """
    per_node = (run.cluster and run.cluster.per_node) or run.world_size
    users = {}
    for rank, used in enumerate(run.results):
        if used is not None and len(used.gpus) == 1:
            users.setdefault((rank // per_node, used.gpus[0]), []).append(rank)
    for (_, index), ranks in users.items():
        if len(ranks) > 1:
            return [
                f"{counted(len(ranks), 'rank')} of one node use cuda:{index}, and its "
                'other GPUs are idle: call torch.cuda.set_device(int(os.environ["'
                'LOCAL_RANK"])) before "cuda".'
            ]
    return []


def write(facts, path):
    """The file holds the facts as JSON."""
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def read(path):
    """The facts that `write` has written; Refused where the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("report") != KIND:
        raise Refused(f"{path} is no report: simulate --json {path} writes one.")
    if found["version"] != VERSION:
        raise Refused(
            f"{path} is a report of version {found['version']}, and this d2lpar reads "
            f"version {VERSION}: write it anew."
        )
    return found


def compare(before, now):
    """A table of two reports, and how many times as much the second one takes."""
    rows = [["", "before", "now", "now / before"]]
    if before["step"] and now["step"]:
        a, b = before["step"], now["step"]
        rows.append(_row("a step", a["seconds"], b["seconds"], show_seconds))
        names = ("computing", "exposed communication", "waiting")
        for name, key in zip(names, ("computing", "exposed", "waiting"), strict=True):
            values = (part[key] * part["seconds"] for part in (a, b))
            rows.append(_row(f"  {name}", *values, show_seconds))
    else:
        rows.append(_row("the run", before["seconds"], now["seconds"], show_seconds))
    most = (max(part["peak_memory"], default=0) for part in (before, now))
    rows.append(_row("peak memory", *most, show_bytes))
    sent = [Counter(), Counter()]
    for counter, part in zip(sent, (before, now), strict=True):
        for one in part["calls"]:
            counter[one["call"]] += one["bytes"]
    for call in sorted(sent[0] | sent[1], key=lambda call: -sent[1][call]):
        rows.append(_row(call, sent[0][call], sent[1][call], show_bytes))
    runs = (part["run"].removeprefix("Run: ") for part in (before, now))
    return "before: {}\nnow:    {}\n\n".format(*runs) + text_table(rows)


def _row(name, before, now, show):
    ratio = f"{now / before:.2f}" if before else ""
    return [name, show(before), show(now), ratio]
