"""The official answers, from the notebooks of `solutions/`, and edits of them."""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

from ..shared import notebooks

_PACKAGE = Path(__file__).resolve().parents[1]
_INSIDE = _PACKAGE / "course" / "solutions"  # in a wheel
FOLDER = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "solutions"
_KINDS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
GIVEN = {}  # {exercise: its Answer} where there is no folder to read


class Answer(NamedTuple):
    """The official answer to an exercise: its cells, and what they find in others."""

    exercise: str
    function: str
    title: str
    given: str
    source: str

    def edited(self, edits):
        """Return the source with the new texts of {old: new} in place of the old ones.

        ValueError where an old text is not in the source exactly once.
        """
        source = self.source
        for old, new in edits.items():
            if (times := self.source.count(old)) != 1:
                raise ValueError(f"{self.exercise}: {times} times in it: {old!r}")
            source = source.replace(old, new)
        return source

    def make(self, source=None):
        """Return the function that this source defines, or the official one."""
        space = {"__name__": "__main__"}
        exec(self.given, space)
        exec(compile(source or self.source, "<answer>", "exec"), space)
        return space[self.function]

    def reference(self, name=None):
        """Return the serial truth in the notebook, `NAME_reference` or of this name."""
        space = {"__name__": "__main__"}
        exec(self.given, space)
        return space[name or f"{self.function}_reference"]


def of(name):
    """Return the official Answer to the exercise of this name."""
    if name in GIVEN:
        return GIVEN[name]
    return next(read(path)[name] for path in FOLDER.glob(f"{name[:2]}_*.ipynb"))


@functools.cache
def read(path):
    """Return {exercise: its Answer} of a notebook with solutions, in its order."""
    found, given, mine, title = {}, [], [], ""
    for cell in notebooks.read(path)["cells"]:
        role, source = cell["metadata"].get("nbgrader", {}), cell["source"]
        if role.get("grade"):
            called = re.search(r'd2lpar\.check\("(.+?)", (\w+)\)', source)
            parts = title, "\n".join(given), "\n".join(mine)
            found[called[1]] = Answer(*called.groups(), *parts)
            mine = []
        elif role.get("solution"):
            mine.append(source)
        elif cell["cell_type"] == "markdown":
            title = (re.findall(r"(?m)^## \d\d\.\d (.*)", source) or [title])[-1]
        elif cell["cell_type"] == "code":
            nodes = ast.parse(source).body
            given += [ast.unparse(node) for node in nodes if isinstance(node, _KINDS)]
    return found
