"""The commands of those who write chapters."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from d2lpar.cli.console import (
    Chapters,
    Refused,
    Timeout,
    difference,
    each,
    execution_tools,
    refusing,
)
from d2lpar.shared import notebooks

commands = typer.Typer()


@commands.command()
def execute(chapters: Chapters = None, timeout: Timeout = 120.0):
    """Execute notebooks and write their outputs into them, in normal form."""
    execution_tools()
    from . import outputs

    def one(path, on_cell):
        return outputs.rewrite(path, timeout, on_cell)

    each(_writable(chapters), one)


@commands.command()
def sync(chapters: Chapters = None):
    """Bring code, glossary and minutes into the cells and tables that show them."""
    from . import glossary, inline_code, minutes

    console = Console(highlight=False, soft_wrap=True)
    for path in _writable(chapters):
        notebook, name = notebooks.read(path), f"{notebooks.label(path)}.ipynb"
        try:
            changed = inline_code.sync(notebook)
            changed += glossary.sync(notebook, notebooks.find())
            exercises = path.parent.parent / "exercises" / path.name
            if path.parent.name == "chapters" and exercises.is_file():
                further = notebooks.further(path)
                changed += minutes.sync(notebook, notebooks.read(exercises), further)
            elif path.parent.name == "solutions":
                changed += minutes.heads(notebook)
        except ValueError as error:
            raise Refused(f"{name}: {error}") from None
        for old, new in changed:
            console.print(Text(difference(old, new, name)))
        if changed:
            notebooks.write(path, notebook)
        cells = "1 cell" if len(changed) == 1 else f"{len(changed)} cells"
        console.print(f"{name}: {cells} changed")
    for path in minutes.tables(notebooks.repository()):
        console.print(f"{path.name}: minutes changed")


def _writable(chapters):
    """Notebooks of this folder or of the clone, never those of the package."""

    def where():
        here = notebooks.course()
        return notebooks.repository() if here == notebooks.installed() else here

    folders = notebooks.CORE, notebooks.FURTHER, "solutions"
    return notebooks.find(chapters or (), folders, where)


@commands.command()
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
    with refusing(ValueError):
        changed = stamps.stamp(repo, branch, digest)
    print(f"{len(changed)} files changed. Commit them and push.")


@commands.command()
def new_exercise(
    name: Annotated[str, typer.Argument(help="Chapter and number, as in 06.2.")],
    title: Annotated[str, typer.Argument(help="What the exercise is called.")],
    function: Annotated[str, typer.Argument(help="The function that learners write.")],
):
    """Lay out an exercise that works, to be filled: notebook cells and its check."""
    from . import new_exercise as layout

    notebook, path = layout.lay_out(name, title, function)
    chapter = notebook.stem[:2]
    print(
        f"Four cells are at the end of solutions/{notebook.name}, and the check is in"
    )
    print(f"solutions/{path.name}. Write your exercise in their place, and then run")
    print(f"make execute CHAPTERS={chapter} && make exercises CHAPTERS={chapter}")
