"""Lines of code as a reader knows them."""

import contextlib
import linecache
import os
import re
import sys

from .texts import short

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def place(where):
    """A (file, line) as a learner knows it: the cell, or a path from here."""
    file, line = where
    if not file:
        return "?"
    cell = _cell_number(file)
    if cell is not None:
        return f"cell [{cell}]:{line}"
    if file.startswith(os.path.dirname(_PACKAGE) + os.sep):
        inside = os.path.relpath(file, os.path.dirname(_PACKAGE))
        if inside.startswith(os.path.basename(_PACKAGE) + os.sep):
            return f"{inside}:{line}"
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted
        file = file.removeprefix(os.getcwd() + os.sep)
    return f"{file}:{line}"


def _cell_number(file):
    """The execution count of the notebook cell in `file`, or None."""
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        names = getattr(getattr(shell, "compile", None), "_filename_map", {})
        if file in names:
            return names[file]
    return "?" if re.search(r"ipykernel_\d+", file) else None


def source(where):
    """The text of the line, or nothing."""
    return short(linecache.getline(*where).strip()) if where[0] else ""
