"""The commands of those who teach with the course."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..shared import notebooks
from .console import (
    INSTRUCTOR,
    Chapters,
    Refused,
    needing,
    path_option,
    progress,
    ready,
    refusing,
)

commands = typer.Typer()


@commands.command()
def exercises(
    chapters: Chapters = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show points and minutes; make nothing.")
    ] = False,
):
    """Make exercises/ from solutions/: without the answers and the hidden tests."""
    if show:
        return _list_exercises(notebooks.find(chapters or (), ("exercises",)))
    from ..grade import exercises as made

    for path in notebooks.find(chapters or (), ("solutions",), notebooks.repository):
        with needing(INSTRUCTOR):
            state = "written" if made.generate(path) else "unchanged"
        print(f"exercises/{path.name}: {state}")


def _list_exercises(paths):
    from . import catalogue

    table = Table("exercise", "title", "kind", "points", "minutes")
    for cells in catalogue.rows([(p.stem, notebooks.read(p)) for p in paths]):
        ends = cells[1].startswith("all of ")
        table.add_row(*cells, style="bold" if ends else "", end_section=ends)
    Console().print(table)


@commands.command()
def assign(
    chapters: Annotated[list[str], typer.Argument(help="Such as 05 06, or 05.1.")],
    to: Annotated[Path, typer.Option(help="Folder for release/ and solutions/.")],
    seed: Annotated[
        int, typer.Option(min=0, help="Varies the exercises; 0: as in public.")
    ] = 0,
):
    """Make an assignment: what students get, and what you grade with."""
    from ..grade import assign as made

    table = Table("exercise", "what is varied", title=f"Only for you: seed {seed}")
    single = [name for name in chapters if re.fullmatch(r"\d\d\.\d+", name)]
    whole = [name for name in chapters if name not in single]
    asked = list(dict.fromkeys([*whole, *(name[:2] for name in single)]))
    for path in notebooks.find(asked, ("solutions",), notebooks.originals):
        only = [name for name in single if path.name.startswith(name[:2])]
        only = [] if any(path.name.startswith(name) for name in whole) else only
        with needing(INSTRUCTOR), refusing(ValueError):
            for name, varied in made.assign(path, seed, to, only):
                table.add_row(name, varied)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"Students get {to}/release. Grade with --solutions {to}/solutions.")


@commands.command()
def grade(
    folder: Annotated[
        Path, typer.Argument(help="Notebooks, such as alice/05_scatter.ipynb.")
    ],
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a row per notebook there.")
    ] = None,
    feedback: path_option("Write a text per notebook into this folder.") = None,
    roster: path_option("CSV of the class, as Canvas or Moodle exports it.") = None,
    canvas: path_option("Write a CSV there that Canvas imports.") = None,
    moodle: path_option("Write a CSV there that Moodle imports.") = None,
    assignment: Annotated[
        str | None, typer.Option(help="One column of this name for all notebooks.")
    ] = None,
    solutions: path_option("Your notebooks; those of the course otherwise.") = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one notebook.")] = 900.0,
    memory: Annotated[float, typer.Option(help="GB for one notebook.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Other numbers in the hidden tests.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at the same time.")] = 1,
):
    """Grade a folder of notebooks, each in processes of its own."""
    ready()
    masters = _masters(solutions)
    paths = csv_file, feedback, canvas, moodle
    grading, todo, files = _class_of(folder, roster, paths, assignment)
    options = timeout, memory * 1e9, seed
    one = lambda each: grading.grade(each, masters, *options)
    _grade_all(todo, one, jobs, files)


def _class_of(folder, roster, paths, assignment):
    """(the module that grades, what is to be graded, the files to write)."""
    with needing(INSTRUCTOR):
        from ..grade import class_files, grade, gradebook, handins
    with refusing(ValueError, OSError):
        todo = handins.submissions(folder)
        known = gradebook.read_roster(roster) if roster else None
        return grade, todo, class_files.Files(*paths, known, assignment)


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

    from ..grade import class_files, sandbox

    console, table = Console(highlight=False), Table(*class_files.COLUMNS)
    for line in [sandbox.in_force(), *files.notes]:
        console.print(Text(line), soft_wrap=True)
    with ThreadPoolExecutor(jobs) as pool, progress("notebooks", console) as bar:
        task = bar.add_task("", total=len(todo))
        for done in _as_long_as_wanted(pool.map(one, todo)):
            files.add(done)
            *texts, remarks = class_files.cells_of(done)
            table.add_row(*map(Text, [*texts, remarks[:120]]))
            bar.advance(task)
    console.print(table)
    for line in [*class_files.commonest(files.grades), *files.ending()]:
        console.print(Text(line), soft_wrap=True)


def _as_long_as_wanted(results):
    """What is under way ends at once where this is interrupted."""
    from ..grade.process import STOPPED

    try:
        yield from results
    except BaseException:
        STOPPED.set()
        raise
