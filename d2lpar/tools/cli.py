"""The commands: what a learner, an instructor and a contributor type."""

import difflib
import importlib.util
import json
import os
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from . import notebooks

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A course on multi-GPU deep learning.",
)
LAB = 'It needs a few packages more: pip install "d2lpar[lab]"'
INSTRUCTOR = 'Instructors need one package more: pip install "d2lpar[instructor]"'

Chapters = Annotated[
    list[str] | None,
    typer.Argument(help="Numbers, names or paths; all where none is given."),
]
Timeout = Annotated[float, typer.Option(help="Seconds that one cell may take.")]


class Backend(StrEnum):
    """The worlds in which a notebook can be made to run."""

    sim = "sim"
    gloo = "gloo"
    nccl = "nccl"
    auto = "auto"


class Refused(Exception):
    """A command that cannot do what was asked, in one sentence."""


def main():
    """The process ends with 0, or with 1 and a sentence or report that says why."""
    try:
        app()
    except (Refused, FileNotFoundError) as error:
        print(f"d2lpar: {error}", file=sys.stderr)
        sys.exit(1)


@app.command()
def run(
    chapters: Chapters = None,
    backend: Annotated[
        Backend | None,
        typer.Option(help="Run in this world, not in the one the notebook names."),
    ] = None,
    timeout: Timeout = 120.0,
):
    """Execute chapters on this machine; a row each, exit 1 if one fails."""
    environ = dict(os.environ)
    if backend is not None:
        environ["D2LPAR_BACKEND"] = backend.value
    execution, package = _execution(), notebooks.installed()

    def one(path, on_cell):
        folder = scratch if package in path.parents else None
        return execution.execute(path, environ, timeout, on_cell, folder)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        _each(notebooks.find(chapters or ()), one)


@app.command()
def execute(chapters: Chapters = None, timeout: Timeout = 120.0):
    """Execute notebooks and write their outputs into them, in normal form."""
    execution = _execution()

    def one(path, on_cell):
        return execution.rewrite(path, timeout, on_cell)

    _each(_writable(chapters), one)


@app.command()
def sync(chapters: Chapters = None):
    """Bring the library's text, and the glossary, into the cells that show them."""
    from . import glossary, inline_code

    console = Console(highlight=False, soft_wrap=True)
    for path in _writable(chapters):
        notebook = notebooks.read(path)
        try:
            changed = inline_code.sync(notebook)
            changed += glossary.sync(notebook, notebooks.find())
        except ValueError as error:
            raise Refused(f"{path.name}: {error}") from None
        for old, new in changed:
            console.print(Text(difference(old, new, path.name)))
        if changed:
            notebooks.write(path, notebook)
        console.print(f"{path.name}: {_cells(len(changed))} changed")


@app.command()
def exercises(
    chapters: Chapters = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show points and minutes; make nothing.")
    ] = False,
):
    """Make exercises/ from solutions/: without the answers and the hidden tests."""
    if show:
        return _list_exercises(notebooks.find(chapters or (), ("exercises",)))
    try:
        from . import exercises as made
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {INSTRUCTOR}") from None
    for path in notebooks.find(chapters or (), ("solutions",), notebooks.repository):
        state = "written" if made.generate(path) else "unchanged"
        print(f"exercises/{path.name}: {state}")


def _writable(chapters):
    """Notebooks of this folder or of the clone, never those of the package."""

    def where():
        here = notebooks.course()
        return notebooks.repository() if here == notebooks.installed() else here

    return notebooks.find(chapters or (), ("chapters", "solutions"), where)


def _list_exercises(paths):
    from . import catalogue

    table = Table("exercise", "title", "kind", "points", "minutes")
    for cells in catalogue.rows([(p.stem, notebooks.read(p)) for p in paths]):
        ends = cells[1].startswith("all of ")
        table.add_row(*cells, style="bold" if ends else "", end_section=ends)
    Console().print(table)


@app.command()
def assign(
    chapters: Annotated[list[str], typer.Argument(help="Such as 05 06.")],
    to: Annotated[Path, typer.Option(help="Folder for release/ and solutions/.")],
    seed: Annotated[
        int, typer.Option(min=0, help="Varies the exercises; 0: as in public.")
    ] = 0,
):
    """Make an assignment: what students get, and what you grade with."""
    try:
        from . import assign as made
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {INSTRUCTOR}") from None
    table = Table("exercise", "what is varied", title=f"Only for you: seed {seed}")
    for path in notebooks.find(chapters, ("solutions",), notebooks.originals):
        for name, varied in made.assign(path, seed, to):
            table.add_row(name, varied)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"Students get {to}/release. Grade with --solutions {to}/solutions.")


def _path(help):
    """The kind of an option that is a path, or is left out."""
    return Annotated[Path | None, typer.Option(help=help)]


@app.command()
def grade(
    folder: Annotated[
        Path, typer.Argument(help="Notebooks, such as alice/05_scatter.ipynb.")
    ],
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a row per notebook there.")
    ] = None,
    feedback: _path("Write a text per notebook into this folder.") = None,
    roster: _path("CSV of the class, as Canvas or Moodle exports it.") = None,
    canvas: _path("Write a CSV there that Canvas imports.") = None,
    moodle: _path("Write a CSV there that Moodle imports.") = None,
    assignment: Annotated[
        str | None, typer.Option(help="One column of this name for all notebooks.")
    ] = None,
    solutions: _path("Your notebooks; those of the course otherwise.") = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one notebook.")] = 900.0,
    memory: Annotated[float, typer.Option(help="GB for one notebook.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Other numbers in the hidden tests.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at the same time.")] = 1,
):
    """Grade a folder of notebooks, each in processes of its own."""
    _ready()
    masters = _masters(solutions)
    paths = csv_file, feedback, canvas, moodle
    grading, todo, files = _class_of(folder, roster, paths, assignment)
    options = timeout, memory * 1e9, seed
    one = lambda each: grading.grade(each, masters, *options)
    _grade_all(todo, one, jobs, files)


def _class_of(folder, roster, paths, assignment):
    """(the module that grades, what is to be graded, the files to write)."""
    try:
        from .grading import class_files, grade, gradebook, handins
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {INSTRUCTOR}") from None
    try:
        todo = handins.submissions(folder)
        known = gradebook.read_roster(roster) if roster else None
        return grade, todo, class_files.Files(*paths, known, assignment)
    except (ValueError, OSError) as error:
        raise Refused(error) from None


def _masters(solutions):
    """The notebooks to grade with."""
    where = solutions or notebooks.originals() / "solutions"
    masters = sorted(where.glob("*.ipynb"))
    if not masters:
        raise Refused(f"There are no notebooks in {where} to grade with.")
    return masters


def _grade_all(todo, one, jobs, files):
    """What is done so far is in the files, whenever this is stopped."""
    from concurrent.futures import ThreadPoolExecutor

    from .grading import class_files, sandbox

    console, table = Console(highlight=False), Table(*class_files.COLUMNS)
    for line in [sandbox.in_force(), *files.notes]:
        console.print(Text(line), soft_wrap=True)
    with ThreadPoolExecutor(jobs) as pool, _progress("notebooks", console) as bar:
        task = bar.add_task("", total=len(todo))
        for done in _as_long_as_wanted(pool.map(one, todo)):
            files.add(done)
            *texts, remarks = class_files.cells_of(done)
            table.add_row(*map(Text, [*texts, remarks[:120]]))
            bar.advance(task)
    console.print(table)
    for line in files.ending():
        console.print(Text(line), soft_wrap=True)


def _as_long_as_wanted(results):
    """What is under way ends at once where this is interrupted."""
    from .grading.process import STOPPED

    try:
        yield from results
    except BaseException:
        STOPPED.set()
        raise


@app.command()
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
    if not to.absolute().parent.is_dir():
        raise Refused(f"There is no folder {to.parent} for {to.name}.")
    notebook = notebooks.read(path)
    text = scripts.script(notebook, path.stem)
    to.write_text(text, encoding="utf-8", newline="\n")
    print(f"torchrun --nproc-per-node {scripts.ranks(notebook)} {to}")


@app.command()
def badges(
    repo: Annotated[
        str | None,
        typer.Option(
            help="OWNER/NAME on GitHub, the address of any Git repository or of a "
            "wheel, or pypi:VERSION."
        ),
    ] = None,
    branch: Annotated[str, typer.Option(help="The branch that is opened.")] = "main",
    digest: Annotated[
        str | None,
        typer.Option("--hash", help="A commit, or the SHA-256 of the wheel."),
    ] = None,
    remove: Annotated[bool, typer.Option(help="Take address and badges away.")] = False,
):
    """Write the address of your course, and badges, into this clone's notebooks."""
    from . import badges as stamps

    if remove == bool(repo):
        raise Refused("Give either --repo and an address, or --remove.")
    try:
        changed = stamps.stamp(repo, branch, digest)
    except ValueError as error:
        raise Refused(error) from None
    print(f"{len(changed)} files changed. Commit them and push.")


@app.command()
def wheelhouse(
    to: Annotated[Path, typer.Option(help="The folder.")] = Path("wheelhouse"),
    torch: Annotated[
        str | None, typer.Option(help="Torch as well, such as torch==2.13.0.")
    ] = None,
):
    """Fill a folder of wheels, to install the course where there is no network."""
    from . import wheelhouse as house

    try:
        wheels = house.fill(to, notebooks.repository(), torch)
    except RuntimeError as error:
        raise Refused(error) from None
    size = sum(path.stat().st_size for path in wheels) / 1e6
    print(f"{to}: {len(wheels)} wheels, {size:.0f} MB. Copy it into the other clone,")
    print("and type there: make run OFFLINE=1")


Copy = Annotated[
    Path | None,
    typer.Option("--to", help="The folder; in a clone work/, else d2lpar-course/."),
]


@app.command()
def course(to: Copy = None):
    """Lay out a copy of the course to work on, or bring it up to date."""
    _lay_out(to)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def lab(context: typer.Context, to: Copy = None):
    """Open a copy of the course in JupyterLab, whose options may follow."""
    _ready()
    if importlib.util.find_spec("jupyterlab") is None:
        raise Refused(f"JupyterLab is not installed. {LAB}")
    folder = _lay_out(to).resolve()
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
        laid = working_copy.lay_out(to)
    except ValueError as error:
        raise Refused(error) from None
    except OSError as error:
        raise Refused(f"The course cannot be laid out in {to}: {error}.") from None
    print(laid, flush=True)
    return to


@app.command()
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
    _ready()
    from . import prove as proving

    if out is not None and not out.absolute().parent.is_dir():
        raise Refused(f"There is no folder {out.parent} for {out.name}.")
    rehearse = backend if backend in (Backend.sim, Backend.gloo) else None
    try:
        plan = proving.plan(rehearse, ranks)
    except ValueError as error:
        raise Refused(error) from None
    if not plan:
        raise Refused(proving.NOTHING)
    proofs, console = [], Console(highlight=False, soft_wrap=True)
    with _progress("paths", console) as bar:
        task = bar.add_task("", total=len(plan))
        for name, prove in plan:
            bar.update(task, description=name)
            proofs.append(prove())
            bar.advance(task)
    report = proving.report(proofs, rehearse)
    console.print(Text(report))
    if out is not None:
        out.write_text(report, encoding="utf-8")
    if any(proof.state == proving.FAILED for proof in proofs):
        raise typer.Exit(1)


@app.command()
def bench(
    sizes: Annotated[
        str | None, typer.Option(help="Sizes of tensors, such as 64K,1M,16M.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Numbers of processes, such as 2,4.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Less of all, in half a minute.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures there, too.")
    ] = None,
):
    """Measure all-reduces, start-up, simulator and training on this machine."""
    _ready()
    measuring, *training = _benches()
    try:
        plan = measuring.plan(sizes, ranks, quick)
        plan += [step for bench in training for step in bench.plan(ranks, quick)]
    except ValueError as error:
        raise Refused(error) from None
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise Refused(f"There is no folder {json_file.parent} for {json_file.name}.")
    results = {"machine": measuring.machine()}
    os.environ["D2LPAR_PROGRESS"] = "0"  # one bar at a time
    console = Console(highlight=False)
    with _progress("steps", console) as bar:
        task = bar.add_task("", total=len(plan))
        for name, measure in plan:
            bar.update(task, description=name)
            measuring.add(results, measure())
            bar.advance(task)
    for each in (measuring, *training):
        for table in each.tables(results):
            console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _benches():
    from .bench import bench as all_reduces
    from .bench import overlap as bench_overlap
    from .bench import pipeline as bench_pipeline
    from .bench import sharding as bench_sharding
    from .bench import tensor_parallel as bench_tensor_parallel

    training = bench_overlap, bench_sharding, bench_tensor_parallel, bench_pipeline
    return all_reduces, *training


def difference(old, new, name):
    """A unified diff of two sources."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), name, "d2lpar", lineterm=""
    )
    return "\n".join(lines)


def row(outcome):
    """One line about one executed chapter: time, world, how it ended."""
    text = Text(f"{outcome.path.stem:<22}{outcome.seconds:6.1f} s  ")
    text.append(f"{outcome.world:<16}")
    if outcome.failure is None:
        return text.append("pass", style="green")
    return text.append(f"FAIL in {outcome.failure}", style="red")


def _each(paths, one):
    """`one(path, on_cell)` is done for every path; exit 1 if a chapter failed."""
    if not paths:
        raise Refused("There are no notebooks in chapters/.")
    console = Console(highlight=False, soft_wrap=True)
    failed = 0
    with _progress("cells", console) as bar:
        for path in paths:
            task = bar.add_task(path.stem, total=_code_cells(path))
            outcome = one(path, lambda task=task: bar.advance(task))
            bar.remove_task(task)
            console.print(row(outcome))
            failed += outcome.failure is not None
    if failed:
        raise typer.Exit(1)


def _progress(of, console):
    """A bar that counts cells or steps; where there is no terminal, none."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(of),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _code_cells(path):
    return sum(c["cell_type"] == "code" for c in notebooks.read(path)["cells"])


def _cells(count):
    return "1 cell" if count == 1 else f"{count} cells"


def _ready():
    """Refused, in a sentence, where the course cannot run."""
    from .doctor import obstacle

    text = obstacle()
    if text:
        raise Refused(text)


def _execution():
    _ready()
    try:
        from . import execution
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {LAB}") from None
    return execution
