"""What the commands share: refusals in a sentence, tables, bars."""

import difflib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from . import notebooks

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


def path_option(help):
    """The kind of an option that is a path, or is left out."""
    return Annotated[Path | None, typer.Option(help=help)]


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


def each(paths, one):
    """`one(path, on_cell)` is done for every path; exit 1 if a chapter failed."""
    if not paths:
        raise Refused("There are no notebooks in chapters/.")
    console = Console(highlight=False, soft_wrap=True)
    failed = 0
    with progress("cells", console) as bar:
        for path in paths:
            task = bar.add_task(path.stem, total=_code_cells(path))
            outcome = one(path, lambda task=task: bar.advance(task))
            bar.remove_task(task)
            console.print(row(outcome))
            failed += outcome.failure is not None
    if failed:
        raise typer.Exit(1)


def progress(of, console):
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


def ready():
    """Refused, in a sentence, where the course cannot run."""
    from .doctor import obstacle

    text = obstacle()
    if text:
        raise Refused(text)


def execution_tools():
    """Return what executes notebooks; Refused where that is not installed."""
    ready()
    try:
        from . import execution
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {LAB}") from None
    return execution
