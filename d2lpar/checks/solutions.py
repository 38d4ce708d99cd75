"""The folder `solutions/`: official answers, and the exercises' own files.

The answers are in its notebooks.  The files, `ex_NN_K.py`, are modules below this one.
In a clone the folder is beside the package, in a wheel inside of it.  The judge of a
submission, which may not see it, is given the texts instead.
"""

import ast
import functools
import importlib
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

from ..shared import notebooks

_PACKAGE = Path(__file__).resolve().parents[1]
_INSIDE = _PACKAGE / "course" / "solutions"  # in a wheel
FOLDER = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "solutions"
_KINDS = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
GIVEN = {}  # {exercise: its Answer} where there is no folder to read
__path__ = [str(FOLDER)]  # so that `import d2lpar.checks.solutions.ex_06_2` finds it


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


def known():
    """Return the names of the exercises that have a file: ["00.1", "02.2", ...]."""
    loaded = [name.removeprefix(f"{__name__}.") for name in sys.modules]
    stems = [*loaded, *(path.stem for path in FOLDER.glob("ex_*.py"))]
    found = [re.fullmatch(r"ex_(\d\d)_(\d+)", stem) for stem in stems]
    return sorted({f"{stem[1]}.{stem[2]}" for stem in found if stem})


def load(name):
    """Return the Exercise that the file of this name describes, and import no other."""
    return importlib.import_module(f"{__name__}.{_stem(name)}").ex.complete()


def texts(names):
    """Return what a judge needs for these exercises, as texts: see `given`."""
    mine = set(names) & set(known())
    chapters = {name[:2] for name in mine}
    helpers = [p.stem for c in chapters for p in FOLDER.glob(f"chapter_{c}*.py")]
    stems = sorted(helpers) + sorted(map(_stem, mine))
    files = {stem: (FOLDER / f"{stem}.py").read_text("utf-8") for stem in stems}
    return {"files": files, "answers": {name: [*of(name)] for name in mine}}


def given(found):
    """Take files and answers from these texts, and not from the folder."""
    GIVEN.update({n: Answer(*a) for n, a in found["answers"].items()})
    for stem, text in found["files"].items():
        name = f"{__name__}.{stem}"
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(Path(__file__).with_suffix("") / f"{stem}.py")
        exec(compile(text, module.__file__, "exec"), vars(module))


def _stem(name):
    return f"ex_{name.replace('.', '_')}"
