"""`d2lpar`: the commands of learners, of instructors and of authors."""

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import typer

from . import instructing, learning
from .console import Refused

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A course on multi-GPU deep learning.",
)
groups = {"To learn": learning, "To teach": instructing}
_authors = find_spec("authoring")
if _authors and Path(_authors.origin).parents[1] == Path(__file__).parents[2]:
    groups["To write chapters"] = importlib.import_module("authoring.commands")
for panel, group in groups.items():
    for command in group.commands.registered_commands:
        command.rich_help_panel = panel
        app.registered_commands.append(command)


def main():
    """The process ends with 0, or with 1 and a sentence or report that says why."""
    try:
        app()
    except (Refused, FileNotFoundError) as error:
        print(f"d2lpar: {error}", file=sys.stderr)
        sys.exit(1)
