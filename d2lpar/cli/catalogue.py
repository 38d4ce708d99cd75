"""What exercises there are: kind, points, and minutes that they take.

They stand in the notebooks of `exercises/`: the points in the metadata of a check's
cell as nbgrader wants them, the minutes beside them as `{"d2lpar": {"minutes": 15}}`,
with `"short": true` where the short path asks for the exercise.
"""

import re
from dataclasses import dataclass

HEADING = re.compile(r"^## (\d\d\.\d) (.+)\n\n\*([^,*]+?)[,.*]", re.M)


@dataclass(frozen=True)
class Listed:
    """One exercise: `kind` is Write, Repair, Predict or Be the checker."""

    name: str
    title: str
    kind: str
    points: int
    minutes: int
    short: bool

    @property
    def effort(self):
        """What a student sees: "15 minutes, short path"."""
        return f"{self.minutes} minutes" + ", short path" * self.short


def listed(notebook):
    """The exercises of a notebook, in its order.

    Raises ValueError where one has no heading, no check, no points or no minutes.
    """
    headings = [HEADING.findall(cell["source"]) for cell in notebook["cells"]]
    heads = {name: (title, kind) for found in headings for name, title, kind in found}
    marks = {}
    for cell in notebook["cells"]:
        grading = cell["metadata"].get("nbgrader", {})
        if grading.get("grade"):
            name = "{}.{}".format(*grading["grade_id"].split("-")[:2])
            ours = cell["metadata"].get("d2lpar", {})
            if not grading["points"] or not ours.get("minutes"):
                raise ValueError(f"{name} has no points or no minutes in its metadata.")
            marks[name] = grading["points"], ours["minutes"], ours.get("short", False)
    if list(heads) != list(marks):
        raise ValueError(f"headings {list(heads)}, but checks {list(marks)}.")
    return [Listed(name, *heads[name], *marks[name]) for name in heads]


def rows(notebooks):
    """Texts for a table, with the sums of every notebook behind its exercises."""
    for title, notebook in notebooks:
        every = listed(notebook)
        for each in every:
            figures = str(each.points), str(each.minutes)
            yield each.name, each.title, each.kind, *figures
        sums = sum(e.points for e in every), sum(e.minutes for e in every)
        yield title[:2], f"all of {title}", "", *map(str, sums)
