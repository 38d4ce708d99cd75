"""What the commands share: refusals in a sentence, tables, bars."""

import contextlib
import difflib
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ..shared import notebooks

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


class Output(StrEnum):
    """The ranks whose printed lines `simulate` shows."""

    all = "all"
    first = "first"
    none = "none"


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


def row(outcome, place="", left=""):
    """A line about an executed chapter, and one per number that changed in its text."""
    name = notebooks.label(outcome.path)
    text = Text(f"{place}{name:<22}{outcome.seconds:6.1f} s  ")
    text.append(f"{outcome.world:<16}")
    if outcome.failure is None:
        text.append("pass", style="green").append(left, style="dim")
        return text.append("".join(f"\n    {line}" for line in outcome.news))
    return text.append(f"FAIL in {outcome.failure}", style="red").append(left)


def minutes(seconds):
    """`45 s`, `6 min 54 s`."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"


def each(paths, one):
    """`one(path, on_cell)` is done for every path; exit 1 if a chapter failed.

    Each row says how long the rest will take, if its cells take as long as these.
    """
    if not paths:
        raise Refused("There are no notebooks in chapters/.")
    console = Console(highlight=False, soft_wrap=True)
    failed, total, start = 0, len(paths), time.monotonic()
    counts = [_code_cells(path) for path in paths]
    with progress("cells", console) as bar:
        for number, path in enumerate(paths, start=1):
            task = bar.add_task(notebooks.label(path), total=counts[number - 1])
            outcome = one(path, lambda task=task: bar.advance(task))
            bar.remove_task(task)
            failed += outcome.failure is not None
            passed = time.monotonic() - start
            rest = passed * sum(counts[number:]) / max(sum(counts[:number]), 1)
            left = f"  about {minutes(rest)} left" if number < total else ""
            place = f"{number:>2} of {total:>2}  " if total > 1 else ""
            console.print(row(outcome, place, left))
    if total > 1:
        console.print(f"{total - failed} of {total} passed in {minutes(passed)}")
    if failed:
        raise typer.Exit(1)


def _code_cells(path):
    return sum(cell["cell_type"] == "code" for cell in notebooks.read(path)["cells"])


def progress(of, console):
    """A bar that counts cells or steps; where there is no terminal, none."""
    name, count = TextColumn("{task.description}"), MofNCompleteColumn()
    columns = name, BarColumn(), count, TextColumn(of)
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden)


def ready():
    """Refused, in a sentence, where the course cannot run."""
    from .doctor import obstacle

    if text := obstacle():
        raise Refused(text)


def check_folder(path):
    """Refused where a file is to be written into a folder that is not there."""
    if path is not None and not path.absolute().parent.is_dir():
        raise Refused(f"There is no folder {path.parent} for {path.name}.")


@contextlib.contextmanager
def refusing(*kinds):
    """Inside, errors of these kinds are Refused: they are sentences for the user."""
    try:
        yield
    except kinds as error:
        raise Refused(error) from None


@contextlib.contextmanager
def needing(hint):
    """Inside, a package that is not installed is Refused; `hint` says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed. {hint}") from None


def execution_tools():
    """Return what executes notebooks; Refused where that is not installed."""
    ready()
    with needing(LAB):
        from . import execution
    return execution
