"""The commands of those who write chapters."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from . import notebooks
from .console import Chapters, Refused, Timeout, difference, each, execution_tools

commands = typer.Typer()


@commands.command()
def execute(chapters: Chapters = None, timeout: Timeout = 120.0):
    """Execute notebooks and write their outputs into them, in normal form."""
    execution = execution_tools()

    def one(path, on_cell):
        return execution.rewrite(path, timeout, on_cell)

    each(_writable(chapters), one)


@commands.command()
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


def _writable(chapters):
    """Notebooks of this folder or of the clone, never those of the package."""

    def where():
        here = notebooks.course()
        return notebooks.repository() if here == notebooks.installed() else here

    return notebooks.find(chapters or (), ("chapters", "solutions"), where)


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
    try:
        changed = stamps.stamp(repo, branch, digest)
    except ValueError as error:
        raise Refused(error) from None
    print(f"{len(changed)} files changed. Commit them and push.")


@commands.command()
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


def _cells(count):
    return "1 cell" if count == 1 else f"{count} cells"
