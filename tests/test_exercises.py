"""Exercises: made from the solutions, gradable by nbgrader, harmless when untouched."""

import csv
import inspect
import json
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from d2lpar import checks, execution, exercises, notebooks
from zoo import ex_05_1

SOLUTIONS = sorted(ROOT.glob("solutions/*.ipynb"))
BOTH = pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)


def graded(notebook, role):
    """The cells of a role of nbgrader's: "grade" or "solution"."""
    cells = notebook["cells"]
    return [c for c in cells if c["metadata"].get("nbgrader", {}).get(role)]


@BOTH
def test_exercise_is_up_to_date(path):
    committed = ROOT / "exercises" / path.name
    made = exercises.stub(notebooks.read(path))
    assert notebooks.read(committed) == made, "run `make exercises`"


@BOTH
def test_solution_and_exercise_have_a_chapter(path):
    assert (ROOT / "chapters" / path.name).is_file()


@BOTH
def test_nothing_of_the_answer_is_in_the_exercise(path):
    text = (ROOT / "exercises" / path.name).read_text()
    for word in ("BEGIN", "HIDDEN", "SOLUTION", "seed="):
        assert word not in text
    solution = notebooks.read(path)
    answers = graded(solution, "solution")
    given = {line.strip() for cell in solution["cells"] if cell not in answers
             for line in cell["source"].splitlines()}  # fmt: skip
    assert answers
    for cell in answers:
        inside = re.search(r"BEGIN SOLUTION\n(.*?)\n *### END", cell["source"], re.S)[1]
        lines = {line.strip() for line in inside.splitlines()} - given
        found = [x for x in lines if len(x) > 30 and json.dumps(x)[1:-1] in text]
        assert found == []


@BOTH
def test_every_exercise_of_the_chapter_is_graded_once(path):
    cells = graded(notebooks.read(path), "grade")
    names = [re.match(r'display\(d2lpar.check\("(.*?)"', c["source"])[1] for c in cells]
    assert names == [e.name for e in checks.exercises_of(path.stem[:2])]
    assert all(2 <= c["metadata"]["nbgrader"]["points"] <= 5 for c in cells)


@BOTH
def test_solution_earns_all_points(path):
    for cell in graded(notebooks.read(path), "grade"):
        points = float(cell["metadata"]["nbgrader"]["points"])
        assert float(cell["outputs"][-1]["data"]["text/plain"]) == points


@BOTH
def test_untouched_exercise_runs_to_its_end(path):
    outcome = execution.execute(ROOT / "exercises" / path.name)
    assert outcome.failure is None
    for cell in graded(outcome.notebook, "grade"):
        shown = cell["outputs"][0]["data"]["text/plain"]
        assert shown.endswith("not done yet")


# nbgrader itself, on one exercise

CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "course"
"""


def nbgrader(folder, *arguments):
    """The command, as one types it; the folder of this Python is in the path."""
    here = os.path.dirname(sys.executable)
    environ = os.environ | {"PATH": here + os.pathsep + os.environ["PATH"]}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done


def submit(folder, student, answer):
    """The released notebook with another answer; None hands it in untouched."""
    book = notebooks.read(folder / "release" / "talk" / "05_scatter.ipynb")
    if answer is not None:
        graded(book, "solution")[0]["source"] = answer
    target = folder / "submitted" / student / "talk"
    target.mkdir(parents=True)
    notebooks.write(target / "05_scatter.ipynb", book)


def answer_of(function):
    """An answer from the zoo, with what it needs, under the name that is asked for."""
    source = inspect.getsource(ex_05_1.counts) + "\n\n" + inspect.getsource(function)
    lines = [line for line in source.splitlines() if not line.startswith("@")]
    return "\n".join(lines).replace(f"def {function.__name__}(", "def deal(")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """nbgrader has released exercise 05.1."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "nbgrader_config.py").write_text(CONFIG)
    source = folder / "source" / "talk"
    source.mkdir(parents=True)
    book = notebooks.read(ROOT / "solutions" / "05_scatter.ipynb")
    ids = [c["metadata"].get("nbgrader", {}).get("grade_id") for c in book["cells"]]
    del book["cells"][ids.index("05-1-check") + 1 :]
    notebooks.write(source / "05_scatter.ipynb", book)
    nbgrader(folder, "generate_assignment", "talk")
    return folder


def test_nbgrader_releases_the_same_exercise(course):
    released = notebooks.read(course / "release" / "talk" / "05_scatter.ipynb")
    ours = notebooks.read(ROOT / "exercises" / "05_scatter.ipynb")["cells"]
    theirs = [cell["source"].rstrip() for cell in released["cells"]]
    assert theirs == [cell["source"] for cell in ours[: len(theirs)]]


def test_nbgrader_grades_in_full_in_part_and_with_nothing(course):
    submit(course, "full", answer_of(ex_05_1.in_turn))
    submit(course, "part", answer_of(ex_05_1.broadcast_and_slice))
    submit(course, "hangs", answer_of(ex_05_1.waits_for_no_row))
    submit(course, "untouched", None)
    nbgrader(course, "autograde", "talk")
    nbgrader(course, "export")
    with open(course / "grades.csv") as file:
        rows = list(csv.DictReader(file))
    scores = {row["student_id"]: float(row["score"]) for row in rows}
    assert scores["full"] == 3 and 0 < scores["part"] < 3
    assert scores["hangs"] == scores["untouched"] == 0
