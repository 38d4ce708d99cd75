"""`d2lpar`: the commands of learners, of instructors and of authors."""

import sys

import typer

from . import authoring, instructing, learning
from .console import Refused

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A course on multi-GPU deep learning.",
)
for panel, group in {
    "To learn": learning,
    "To teach": instructing,
    "To write chapters": authoring,
}.items():
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
