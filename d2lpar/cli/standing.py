"""How far a learner has come, read from the notebooks of a working copy.

A check's report is among the outputs of its cell, so nothing else has to be kept.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..report.runs import text_table
from ..report.units import counted
from ..shared import notebooks
from . import catalogue, working_copy

PASSED = re.compile(r"^(\d\d\.\d) .*: passed")  # how the text of a report begins


@dataclass
class Chapter:
    """`opened`: the chapter was saved since it was laid out; its exercises."""

    title: str
    opened: bool
    passed: list = field(default_factory=list)
    left: list = field(default_factory=list)

    @property
    def cells(self):
        """The texts of its row in a table."""
        minutes = sum(each.minutes for each in self.left)
        short = ", ".join(each.name for each in self.left if each.short)
        done, every = len(self.passed), len(self.passed) + len(self.left)
        told = f"{done} of {every}" if every else ""
        return self.title, "yes" * self.opened, told, str(minutes or ""), short


def chapters(folder):
    """A Chapter for each one of the working copy in `folder`, as saved."""
    known, found = working_copy.manifest(folder), []
    for path in sorted((folder / "chapters").glob("*.ipynb")):
        if notebooks.NEWER.search(path.stem):
            continue
        opened = working_copy.changed(folder, f"chapters/{path.name}", known)
        found.append(chapter := Chapter(path.stem, opened))
        mine, tasks = folder / "exercises" / path.name, Path("exercises", path.name)
        if mine.is_file() and (notebooks.originals() / tasks).is_file():
            done = passed(notebooks.read(mine))
            for each in catalogue.listed(notebooks.read(notebooks.originals() / tasks)):
                (chapter.passed if each.name in done else chapter.left).append(each)
    return found


def show(folder=None):
    """Print a row for each chapter, and what is left of the short path.

    Without a folder it is the working copy that this notebook is in, or the course.
    """
    folder = folder or working_copy.around() or notebooks.originals()
    found = chapters(folder)
    head = ["chapter", "opened", "passed", "minutes left", "short path left"]
    rows = [head, *(list(chapter.cells) for chapter in found)]
    print(f"{text_table(rows)}\n\n{sentence(found)}")


def sentence(found):
    """What is left of the short path."""
    left = [each for chapter in found for each in chapter.left if each.short]
    done = sum(each.short for chapter in found for each in chapter.passed)
    hours = sum(each.minutes for each in left) / 60
    return (
        f"{done} of {counted(done + len(left), 'exercise')} of the short path passed; "
        f"{hours:.1f} hours are left."
    )


def passed(notebook):
    """The numbers of the exercises whose last check in the notebook has passed."""
    texts = (
        "".join(output.get("data", {}).get("text/plain", ""))
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    )
    return {match[1] for text in texts if (match := PASSED.match(text))}


def reset(folder):
    """Take the reports out of the exercise notebooks; the answers stay."""
    for path in sorted((folder / "exercises").glob("*.ipynb")):
        notebook = notebooks.read(path)
        for cell in notebook["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade"):
                cell["outputs"], cell["execution_count"] = [], None
        notebooks.write(path, notebook)
