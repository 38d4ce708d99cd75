"""Assignments from `solutions/`: exercises that a public answer does not pass.

`solutions/variations.toml` says what the cells of a varied exercise say instead.  The
same seed makes the same assignment, and seed 0 the public one, to the byte.
"""

import random
import re
import tomllib
from pathlib import Path

from ..shared import notebooks
from . import exercises

TABLE = "variations.toml"  # beside the solutions
NOTE = """

**An assignment.** Some exercises ask for something else than the public ones of that
name. Read each specification anew."""


def assign(solution, seed, folder, only=()):
    """Write folder/release/NN_name.ipynb and folder/solutions/NN_name.ipynb.

    `only` names exercises, such as "05.1"; without it all of the notebook are in both.
    Returns [(exercise, what is varied, or "as in public")].  With seed 0 nothing is.
    Raises ValueError where the table does not fit the notebook.
    """
    solution, folder = Path(solution), Path(folder)
    made = notebooks.read(solution)
    if only:
        made = chosen_of(made, only)
    if seed:
        made, summary = varied(made, seed, table(solution.parent))
    else:
        summary = [(name, "as in public") for name in exercises_in(made)]
    released = exercises.stub(made)
    if seed:
        chosen = made["metadata"]["d2lpar"]["variations"]
        released["metadata"]["d2lpar"] = {"variations": chosen}
    for kind, notebook in {"release": released, "solutions": made}.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        notebooks.write(folder / kind / solution.name, notebook)
    return summary


def table(folder):
    """{name of a variation: [(old text, new text), ...]}."""
    with open(Path(folder) / TABLE, "rb") as file:
        found = tomllib.load(file)
    return {n: [(pair["old"], pair["new"]) for pair in found[n]] for n in found}


def exercises_in(notebook):
    """Names of the exercises of a notebook, in its order: ["05.1", ...]."""
    headings = (
        re.findall(r"^## (\d\d\.\d)\b", c["source"], re.M) for c in notebook["cells"]
    )
    return [name for found in headings for name in found]


def chosen_of(notebook, names):
    """Return the notebook without the exercises that are not among the names."""
    known = exercises_in(notebook)
    if strange := sorted(set(names) - set(known)):
        raise ValueError(
            f"There is no exercise {strange[0]}: there are {', '.join(known)}."
        )
    drop = [c for name in known if name not in names for c in cells_of(notebook, name)]
    kept = [c for c in notebook["cells"] if not any(c is other for other in drop)]
    return notebook | {"cells": kept}


def varied(notebook, seed, words):
    """(the notebook with other exercises and hidden seeds, what is varied in each)."""
    from ..checks import checker

    notebook, chosen, summary = _without_outputs(notebook), {}, []
    for name in exercises_in(notebook):
        draw = random.Random(f"{seed} {name}")
        cells = cells_of(notebook, name)
        if there := checker.find(name).variations:
            chosen[name] = draw.choice(list(there))
            rewrite(cells, chosen[name], words[chosen[name]])
        asked = chosen.get(name, name)
        what = there[asked].varied if there else "as in public"
        summary.append((asked, what))
        _hide(cells, name, asked, draw.randrange(1, 10**6))
    notebook["metadata"]["d2lpar"] = {"variations": chosen}
    if chosen:
        notebook["cells"][0]["source"] += NOTE
    return notebook, summary


def _without_outputs(notebook):
    """They would be those of the public exercises."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return notebook


def cells_of(notebook, name):
    """The cells from the heading of an exercise to that of the next one."""
    inside, found = False, []
    for cell in notebook["cells"]:
        headings = re.findall(r"^## (\d\d\.\d)\b", cell["source"], re.M)
        inside = name in headings or (inside and not headings)
        if inside:
            found.append(cell)
    return found


def rewrite(cells, name, words):
    """Each old text is the new one; ValueError where it is not there just once."""
    for old, new in words:
        places = [cell for cell in cells if old in cell["source"]]
        if sum(cell["source"].count(old) for cell in places) != 1:
            many = "more than once" if places else "not"
            raise ValueError(f"{name}: {many} in the exercise's cells: {old!r}")
        places[0]["source"] = places[0]["source"].replace(old, new)


def _hide(cells, name, chosen, seed):
    """The checks ask for the variation, the hidden one with numbers of its own."""
    for cell in cells:
        source = cell["source"].replace(
            f'd2lpar.check("{name}"', f'd2lpar.check("{chosen}"'
        )
        cell["source"] = re.sub(
            rf'(d2lpar\.check\("{re.escape(chosen)}", \w+, seed=)\d+',
            rf"\g<1>{seed}",
            source,
        )
