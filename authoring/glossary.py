"""What each function is called elsewhere, collected from the chapters' own tables.

A chapter ends with a table, one row per function, one column per library.  Nowhere
else are these names written down: the appendix of chapter 00 and the page of the site
are made from the tables.
"""

import re
from pathlib import Path
from typing import NamedTuple

from d2lpar.shared import notebooks

LIBRARIES = ("torch", "TensorFlow", "MXNet", "MPI", "JAX", "Chinese")
START = "00_start"
HEADING = "## Appendix: what it is called elsewhere"
SUMMARY = "One row per function, with the chapter that builds it"


class Row(NamedTuple):
    """One function: its name here, in the libraries and in Chinese, its chapters."""

    here: str
    torch: str
    tensorflow: str
    mxnet: str
    mpi: str
    jax: str
    chinese: str
    chapters: tuple


def tables(markdown):
    """The tables of a text, each a list of rows of cells, the heading first."""
    for block in re.findall(r"(?:^\|.*\|[ ]*\n?)+", markdown, re.MULTILINE):
        rows = [_cells(line) for line in block.splitlines()]
        if len(rows) > 1 and set("".join(rows[1])) <= set("-: "):
            yield [rows[0], *rows[2:]]


def _cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(paths):
    """The glossary of these chapters: a Row per function, in the order of the course.

    The same function in two chapters is one Row with both.  Raises ValueError where
    a chapter has no table, or one that lacks a library.
    """
    found = {}
    for path in sorted(map(Path, paths)):
        if path.stem != START:
            for cells in _of_chapter(path):
                row = found.setdefault((cells[1], cells[6]), Row(*cells, ()))
                chapters = (*row.chapters, path.stem)
                found[cells[1], cells[6]] = row._replace(chapters=chapters)
    return list(found.values())


def _of_chapter(path):
    cells = notebooks.read(path)["cells"]
    texts = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
    for head, *body in (found for text in texts for found in tables(text)):
        if "Chinese" in head:
            where = [_column(head, name, path) for name in LIBRARIES]
            said = lambda text: "none" if text in ("–", "-", "") else text
            return [[row[0], *(said(row[i]) for i in where)] for row in body]
    raise ValueError(f"{path.stem} has no table with a column 'Chinese'.")


def _column(head, name, path):
    plain = [text.replace("`", "").replace("PyTorch", "torch") for text in head]
    found = [i for i, text in enumerate(plain) if re.match(rf"{name}\b", text)]
    if not found:
        raise ValueError(f"The glossary of {path.stem} has no column '{name}'.")
    return found[0]


def table(found, folder=""):
    """The rows as a table in Markdown; chapters are linked as they lie in `folder`."""
    lines = [["here", *LIBRARIES, "chapter"], ["---"] * (len(LIBRARIES) + 2)]
    for row in found:
        links = [f"[{name[:2]}]({folder}{name}.ipynb)" for name in row.chapters]
        torch = "the same name" if row.torch == row.here else row.torch
        lines.append([row.here, torch, *row[2:-1], ", ".join(links)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def appendix(found):
    """The last cell of chapter 00: the whole table, folded."""
    return (
        f"{HEADING}\n\n<details><summary>{SUMMARY}</summary>\n\n"
        f"{table(found)}\n\n</details>"
    )


def sync(notebook, paths):
    """The appendix in `notebook`, where it has one, is that of `paths`, in place.

    Returns one pair where it changed: the old text and the new one.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and cell["source"].startswith(HEADING):
            old, cell["source"] = cell["source"], appendix(rows(paths))
            return [(old, cell["source"])] if old != cell["source"] else []
    return []
