"""A learner's own script on simulated ranks, and a short report of what it did."""

import contextlib
import importlib.util
import linecache
import os
import re
import sys
import tempfile
from importlib.machinery import PathFinder
from pathlib import Path

from ..launch import run as launch
from ..launch.script.program import Script, play, read, surroundings
from ..report import player
from ..report.errors import DeadlockError, Interrupted, MismatchError, RankError
from ..report.places import place
from ..report.twin import text_twin
from ..report.units import counted, show_seconds
from ..shared.notebooks import write_bytes
from ..sim.cluster import Cluster
from ..sim.patching import patched_environment
from . import script_report
from .console import Refused, check_folder
from .steps import drift

MOST_RANKS = 4  # whose rows are printed one by one
KINDS = ".png", ".html", ".json"  # of files for a timeline
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body>
{body}
</body></html>
"""


def script(path, arguments, output, ranks, module=False, own=None, shared=None, **more):
    """The Script for `play`; Refused where there is none or it cannot be compiled.

    `module`: the path is a module's name, as in `python -m`.  `more` is for Script.
    """
    own, shared = tuple(own or ()), tuple(shared or ())
    for name in own + shared:
        if importlib.util.find_spec(name.partition(".")[0]) is None or "." in name:
            raise Refused(
                f"--own and --share take an installed package, and {name} is none."
            )
    folder, package = None, None
    if module:
        folder, (path, package) = os.getcwd(), _module(str(path))
    file = Path(path).absolute()
    linecache.checkcache(str(file))  # it may be another one than a moment ago
    try:
        read(file)
    except OSError as error:
        raise Refused(f"The script {path} cannot be read: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        where = f"{place((str(file), getattr(error, 'lineno', None) or 0))}"
        raise Refused(f"{where} is not Python: {error}") from None
    shown = {"all": range(ranks), "first": range(1), "none": ()}[output]
    folder = folder or str(file.parent)
    given = str(file), tuple(arguments), frozenset(shown), folder
    return Script(*given, package or None, own, shared, **more)


def _module(name):
    """(file, package) of a module found from this folder, which is not executed."""
    inside, spec = "", None
    places = [os.getcwd(), *sys.path]
    for part in [*name.split("."), "__main__"]:
        if part == "__main__" and places is None:
            break  # it is no package
        inside = f"{inside}.{part}".lstrip(".")
        spec = places and PathFinder.find_spec(inside, places)
        places = spec and spec.submodule_search_locations
    if spec is None or not spec.has_location:
        raise Refused(
            f"-m asks for a module, and {name} is none in this folder or among the "
            "installed packages: write its name with dots, without .py."
        )
    return spec.origin, spec.parent


def check(timeline, json, compare, shapes, assume, alike, gloo):
    """The report to compare with, or None; Refused where options cannot be followed."""
    if shapes and gloo:
        raise Refused("--shapes has no values, which --gloo would send.")
    if assume is not None and not shapes:
        raise Refused("--assume stands for values that only --shapes does without.")
    if alike and not shapes:
        raise Refused("--alike is for --shapes: ranks with values have different ones.")
    if timeline is not None and timeline.suffix not in KINDS:
        raise Refused(f"--timeline writes {', '.join(KINDS)}, not {timeline.name}.")
    for path in (timeline, json):
        check_folder(path)
    return None if compare is None else script_report.read(compare)


def beside(earlier, path):
    """A table of two reports, the second one in this file."""
    return script_report.compare(earlier, script_report.read(path))


def cluster_for(spec, network, ranks, gloo):
    """(Cluster or None, number of ranks) that the options name; Refused if none."""
    if gloo and spec:
        raise Refused("--cluster describes simulated GPUs, and --gloo measures here.")
    if not spec:
        return None, ranks or 4
    try:
        cluster = Cluster.of(spec, network)
        ranks = ranks or cluster.n
        cluster.check_world_size(ranks)
    except ValueError as error:
        raise Refused(error) from None
    return cluster, ranks


def simulate(program, ranks, cluster=None, gloo=False, timeout=60.0, alike=False):
    """(Run, error or None, marks of steps) of a Script, whose prints are shown.

    `alike`: only rank 0 is executed, and stands for all.
    """
    virtual = contextlib.nullcontext() if gloo else surroundings(program, virtual=True)
    executed, backend = 1 if alike else ranks, "gloo" if gloo else "sim"
    told = {"D2LPAR_LIVE": "1", "D2LPAR_PROGRESS": "0"}
    with (
        tempfile.TemporaryDirectory() as folder,
        patched_environment(**told, PATH=_with_nvidia_smi(folder, cluster)),
        virtual as modules,
    ):
        try:
            world = launch.World(ranks, backend, cluster, None, executed)
            run = launch.run_in(world, play, (program,), {}, timeout)
            marks = [used.marks for used in run.results]
            return run, outsiders(run), marks
        except (RankError, Interrupted) as error:
            trace = getattr(error.__cause__, "script_traceback", "")
            for name in modules.compiled if modules else ():
                if f"{os.sep}{name}{os.sep}" in trace:
                    error.add_note(COMPILED.format(name))
            marks = modules.marks if modules else {}
            return error.run, error, [marks.get(r, []) for r in range(executed)]


def _with_nvidia_smi(folder, cluster):
    """The PATH on which a script finds `nvidia-smi`, which names the simulated GPUs."""
    path, gpu = os.environ.get("PATH", os.defpath), cluster and cluster.gpu
    if gpu is None:
        return path
    names = [f"GPU {i}: NVIDIA {gpu.name}, simulated" for i in range(cluster.per_node)]
    tool = Path(folder, "nvidia-smi")
    tool.write_text("\n".join(["#!/bin/sh", "cat <<END", *names, "END", ""]))
    tool.chmod(0o755)
    return os.pathsep.join([folder, path])


COMPILED = (
    "Ranks share the package {0}, because it holds compiled code: --own {0} gives each "
    "rank its own, as under torchrun."
)


def outsiders(run):
    """A RuntimeError where ranks joined no process group, and so worked alone; or None.

    torchrun would let those that joined wait for the others.
    """
    apart = [str(rank) for rank, used in enumerate(run.results) if not used.joined]
    if run.world_size == 1 or not apart:
        return None
    return RuntimeError(
        f"{counted(len(apart), 'rank')} of {run.world_size} ({', '.join(apart)}) "
        "joined no process group, and ran the script as if there were one rank only. "
        "Call torch.distributed.init_process_group() on every rank, or take -n 1. If "
        "a package with compiled code was to call it, --own PACKAGE gives each rank "
        "its own."
    )


def failure(error, shapes=False):
    """What ended the run: the script's own traceback, and a line for every rank."""
    own = getattr(error.__cause__, "script_traceback", "")
    kind = type(error).__name__
    marks = "CUDA", os.path.join("torch", "cuda", ""), "torch.cuda", "SyncBatchNorm"
    marks += ("FSDP does not support CPU",)
    hint = f"\n{NOT_PLAYED}" if any(mark in own for mark in marks) else ""
    if shapes and re.search(r"\bmeta(_|\b)", str(error), re.IGNORECASE):
        hint = f"\n{NO_VALUES}"
    if shapes and "CheckpointException" in str(error):
        hint = f"\n{NO_CHECKPOINT}"
    return "\n".join([f"{own}{kind}: {error}{hint}", *getattr(error, "__notes__", ())])


NOT_PLAYED = (
    "simulate plays GPUs on the host, and this is not among what it plays: CUDA "
    "kernels and graphs, SyncBatchNorm, NCCL's own functions and FSDP's first version "
    "(not fully_shard) need real GPUs."
)
NO_VALUES = (
    "With --shapes a tensor on a GPU has no values, and this call needs them, perhaps "
    "for the shape of its result: do it on the host, or run without --shapes."
)
NO_CHECKPOINT = "With --shapes there is nothing to save or load: leave it out."


def tell(program, run, error, marks, timeline=None, json=None, earlier=None):
    """Print how the run went; `timeline` and `json` are files to write, or None.

    `earlier` is what an earlier run has written into such a file.
    """
    print(flush=True)
    if error is not None:
        print(failure(error, program.shapes), file=sys.stderr, flush=True)
    if run is None:
        return
    if isinstance(error, DeadlockError | MismatchError):
        for sentence in drift(run.ledger.entries, marks, program.folder):
            print(sentence, file=sys.stderr, flush=True)
    facts, line = script_report.facts(program, run, error, marks)
    print(f"{script_report.text(facts)}\n")
    line = line or run.timeline  # of a step, if there are any
    if timeline:
        print(write_timeline(line, timeline))
    elif len(line) and not json and earlier is None and error is None:
        print(text_twin(line, most=MOST_RANKS))
    if json:
        script_report.write(facts, json)
    if earlier is not None:
        print(script_report.compare(earlier, facts))


def write_timeline(line, path):
    """The file holds the picture, the player or the trace; gives what to say."""
    cut = ""
    if path.suffix == ".json":
        line.to_chrome_trace(path)
    elif path.suffix == ".png":
        figure = line.plot()
        getattr(figure, "figure", figure).savefig(path, dpi=150)
    else:
        if len(line) > player.MOST_EVENTS:
            end = line.events[player.MOST_EVENTS].start
            line, cut = line.between(0.0, end), f", the first {show_seconds(end)}"
        _write_page(line, path)
    return f"timeline: {path}{cut}"


def _write_page(line, path):
    body = line.play()._repr_mimebundle_()[0]["text/html"]
    write_bytes(path, PAGE.format(title=path.stem, body=body).encode())
