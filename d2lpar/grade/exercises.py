"""`exercises/` from `solutions/`: the same notebooks without answers and hidden tests.

A solution is in nbgrader's format, and nbgrader's own preprocessors make the exercise,
so an instructor's `nbgrader generate_assignment` gives the same cells.
"""

from pathlib import Path

from ..shared import notebooks

STEPS = ("CheckCellMetadata", "LockCells", "ClearSolutions", "ClearHiddenTests")
STEPS += ("ClearMarkScheme", "ClearOutput", "ComputeChecksums")


def stub(solution):
    """The exercise of a solution; both are the dictionaries of notebooks."""
    import nbformat
    from nbgrader import preprocessors  # takes a second, so not at the top

    notebook = nbformat.from_dict(solution)
    for step in STEPS:
        notebook, _ = getattr(preprocessors, step)().preprocess(notebook, {})
    exercise = notebooks.normalise(notebooks.plain(notebook))
    exercise["metadata"].pop("d2lpar", None)  # there are no outputs
    for cell in exercise["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
    return exercise


def generate(solution):
    """Write the exercise beside a solution's folder; True where that changed it."""
    solution = Path(solution).resolve()
    path = solution.parent.parent / "exercises" / solution.name
    path.parent.mkdir(exist_ok=True)
    before = path.read_bytes() if path.is_file() else None
    notebooks.write(path, stub(notebooks.read(solution)))
    return path.read_bytes() != before
