"""The exercises' own files, `solutions/ex_NN_K.py`, as modules below this one.

In a clone they are beside the package, in a wheel inside of it.  The judge of a
submission, which may not see that folder, is given their texts instead.
"""

import importlib
import re
import sys
import types
from pathlib import Path

from . import answers
from .answers import FOLDER

__path__ = [str(FOLDER)]  # so that `import d2lpar.checks.solutions.ex_06_2` finds it


def known():
    """Return the names of the exercises that have a file: ["00.1", "02.2", ...]."""
    loaded = [name.removeprefix(f"{__name__}.") for name in sys.modules]
    stems = [*loaded, *(path.stem for path in FOLDER.glob("ex_*.py"))]
    found = [re.fullmatch(r"ex_(\d\d)_(\d+)", stem) for stem in stems]
    return sorted({f"{stem[1]}.{stem[2]}" for stem in found if stem})


def load(name):
    """Return the Exercise that the file of this name describes, and import no other."""
    return importlib.import_module(f"{__name__}.{_stem(name)}").ex.judged


def texts(names):
    """Return what a judge needs for these exercises, as texts: see `given`."""
    mine = set(names) & set(known())
    chapters = {name[:2] for name in mine}
    helpers = [p.stem for c in chapters for p in FOLDER.glob(f"chapter_{c}*.py")]
    stems = sorted(helpers) + sorted(map(_stem, mine))
    files = {stem: (FOLDER / f"{stem}.py").read_text("utf-8") for stem in stems}
    return {"files": files, "answers": {name: [*answers.of(name)] for name in mine}}


def given(found):
    """Take files and answers from these texts, and not from the folder."""
    answers.GIVEN.update({n: answers.Answer(*a) for n, a in found["answers"].items()})
    for stem, text in found["files"].items():
        name = f"{__name__}.{stem}"
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = str(Path(__file__).with_suffix("") / f"{stem}.py")
        exec(compile(text, module.__file__, "exec"), vars(module))


def _stem(name):
    return f"ex_{name.replace('.', '_')}"
