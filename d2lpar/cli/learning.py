"""The commands of those who learn."""

import contextlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..shared import notebooks
from .console import (
    LAB,
    Backend,
    Chapters,
    Output,
    Refused,
    Timeout,
    check_folder,
    each,
    execution_tools,
    needing,
    ready,
    refusing,
)

commands = typer.Typer()


@commands.command()
def run(
    chapters: Chapters = None,
    backend: Annotated[
        Backend | None,
        typer.Option(help="Run in this world, not in the one the notebook names."),
    ] = None,
    further: Annotated[
        bool, typer.Option("--further", help="Their Further parts, too.")
    ] = False,
    timeout: Timeout = 120.0,
):
    """Execute chapters on this machine; a row each, exit 1 if one fails."""
    folders = [notebooks.CORE] + [notebooks.FURTHER] * further
    environ = dict(os.environ)
    if backend is not None:
        environ["D2LPAR_BACKEND"] = backend.value
    execution, package = execution_tools(), notebooks.installed()

    def one(path, on_cell):
        folder = scratch if package in path.parents else None
        return execution.execute(path, environ, timeout, on_cell, folder)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        each(notebooks.find(chapters or (), folders), one)


@commands.command()
def script(
    chapter: Annotated[str, typer.Argument(help="Number, name or path.")],
    to: Annotated[
        Path | None, typer.Option(help="The file; in this folder otherwise.")
    ] = None,
):
    """Write a chapter as a script for torchrun and Slurm."""
    from . import script as scripts

    [path] = notebooks.find([chapter])
    to = to or Path(f"{path.stem}.py")
    check_folder(to)
    notebook = notebooks.read(path)
    text = scripts.script(notebook, path.stem)
    to.write_text(text, encoding="utf-8", newline="\n")
    print(f"torchrun --nproc-per-node {scripts.ranks(notebook)} {to}")


def _flag(words, text):
    return Annotated[bool, typer.Option(*words.split(), help=text)]


def _given(kind, text, **more):
    return Annotated[kind | None, typer.Option(help=text, **more)]


Module = _flag("-m --module", "SCRIPT is a module's name.")
Own = _given(list[str], "Each rank loads it.", metavar="PACKAGE")
Share = _given(list[str], "It is loaded once, for all.", metavar="PACKAGE")
Cluster = _given(str, "Such as 8xA100-40GB, or 4x8xH100 for four nodes.")
Network = Annotated[str, typer.Option(help="A node's network card, or 8x400Gb: eight.")]
Gloo = _flag("--gloo", "Real processes here, measured.")
NoValues = _flag("--shapes", "GPUs hold shapes, no values: any size.")
Alike = _flag("--alike", "With --shapes: rank 0 stands for all ranks.")
Assume = _given(float, "What a value on such a GPU is.")
Timeline = _given(Path, "Write a step's there: .png, .html or .json.")
Json = _given(Path, "Write the report there.")
Compare = _given(Path, "A report of --json, put beside this run, or a second report.")
Shown = Annotated[Output, typer.Option(help="The ranks whose prints are shown.")]
Patience = Annotated[float, typer.Option(help="Seconds without progress, at most.")]


@commands.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False}
)
def simulate(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file.")],
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--ranks", min=1, help="Those of the cluster, else 4."),
    ] = None,
    module: Module = False,
    cluster: Cluster = None,
    network: Network = "100Gb",
    gloo: Gloo = False,
    shapes: NoValues = False,
    assume: Assume = None,
    alike: Alike = False,
    timeline: Timeline = None,
    json: Json = None,
    compare: Compare = None,
    output: Shown = Output.all,
    own: Own = None,
    share: Share = None,
    timeout: Patience = 60.0,
):
    """Run a script written for torchrun on simulated ranks; its arguments follow.

    The exit status is 0 if all ranks ended well, 130 after Ctrl-C, else 1.
    """
    ready()
    from . import simulate as simulating

    earlier = simulating.check(timeline, json, compare, shapes, assume, alike, gloo)
    if earlier is not None and path.suffix == ".json":
        return print(simulating.beside(earlier, path))
    where, count = simulating.cluster_for(cluster, network, ranks, gloo)
    given = path, context.args, output, count, module, own, share
    program = simulating.script(*given, shapes=shapes, assumed=assume)
    with refusing(ValueError, RuntimeError):
        done = simulating.simulate(program, count, where, gloo, timeout, alike)
    simulating.tell(program, *done, timeline, json, earlier)
    if (error := done[1]) is not None:
        raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 1)


Copy = Annotated[
    Path | None,
    typer.Option("--to", help="The folder; in a clone work/, else d2lpar-course/."),
]


@commands.command()
def course(to: Copy = None):
    """Lay out a copy of the course to work on, or bring it up to date."""
    _lay_out(to)


@commands.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def lab(context: typer.Context, to: Copy = None):
    """Open a copy of the course in JupyterLab, whose options may follow."""
    ready()
    if importlib.util.find_spec("jupyterlab") is None:
        raise Refused(f"JupyterLab is not installed. {LAB}")
    from . import standing

    folder = _lay_out(to).resolve()
    with contextlib.suppress(ValueError, OSError):  # JupyterLab shows what is broken
        print(standing.sentence(standing.chapters(folder)), flush=True)
    words = [f"--ServerApp.root_dir={folder}", *context.args]
    words.append(str(folder / "chapters" / "00_start.ipynb"))
    try:
        os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *words])
    except OSError as error:
        raise Refused(f"JupyterLab did not start: {error}.") from None


def _lay_out(to):
    from . import working_copy

    to = to or working_copy.default()
    try:
        with refusing(ValueError):
            print(working_copy.lay_out(to), flush=True)
    except OSError as error:
        raise Refused(f"The course cannot be laid out in {to}: {error}.") from None
    return to


@commands.command()
def progress(
    to: Copy = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take out the reports of all checks first.")
    ] = False,
):
    """Say which exercises have passed, as saved in your copy of the course."""
    from . import standing, working_copy

    folder = to or working_copy.default()
    if not working_copy.manifest(folder):
        raise Refused(f"No copy of the course is in {folder}: d2lpar lab makes one.")
    with refusing(ValueError, OSError):
        if reset:
            standing.reset(folder)
        standing.show(folder)


@commands.command()
def doctor(
    prove: Annotated[
        bool, typer.Option("--prove", help="Run the course's paths on the GPUs here.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the report of --prove there.")
    ] = None,
    backend: Annotated[
        Backend | None, typer.Option(help="Rehearse --prove on the CPU: sim, gloo.")
    ] = None,
    ranks: Annotated[str, typer.Option(help="Ranks of a rehearsal.")] = "2,4",
):
    """Say what this machine has, what is missing and how to get it."""
    if prove:
        return _prove(out, backend, ranks)
    if out or backend:
        raise Refused("--out and --backend are options of --prove.")
    from . import doctor as checks

    findings = checks.examine()
    Console().print(checks.table(findings))
    if not checks.can_run(findings):
        raise typer.Exit(1)


def _prove(out, backend, ranks):
    ready()
    with needing("It runs the paths: pip install pytest"):
        from . import gpu_report as proving

    check_folder(out)
    rehearse = backend if backend in (Backend.sim, Backend.gloo) else None
    with refusing(ValueError):
        worlds = proving.worlds(rehearse, ranks)
    if not worlds:
        raise Refused(proving.NOTHING)
    with refusing(RuntimeError):
        rows = proving.prove(worlds)
    report = proving.report(rows, rehearse)
    Console(highlight=False, soft_wrap=True).print(Text(report))
    if out is not None:
        out.write_text(report, encoding="utf-8")
    if any(state == proving.FAILED for _, _, state, *_ in rows):
        raise typer.Exit(1)
