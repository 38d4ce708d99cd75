"""A folder of notebooks, graded: a row each, whatever they do."""

import csv
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from conftest import ROOT
from d2lpar import cli, grading, notebooks

ENDLESS = (
    "while True:\n    try:\n        time.sleep(1)\n    except Exception:\n        pass"
)
TAMPERS = """
import d2lpar.checks, d2lpar.rubrics.guard
from d2lpar.report import Report
def deal(*arguments):
    return 1
"""
ANSWERS = {
    "right": None,
    "wrong": "def deal(x, root, rows, features):\n    return torch.zeros(1)",
    "endless": "import time\n" + ENDLESS,
    "crash": "import os\nos._exit(7)",
    "hungry": "x = []\nwhile True:\n    x.append(torch.ones(10**8))",
    "score": TAMPERS + "Report.score = property(lambda report: 1.0)",
    "check": TAMPERS + "d2lpar.check = d2lpar.checks.check = lambda *a, **k: Report()",
    "guard": TAMPERS + "d2lpar.checks.replaced = lambda: []",
}


def identity(cell):
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def two_exercises():
    """The instructor's notebook, cut after its second exercise."""
    book = notebooks.read(ROOT / "solutions" / "05_scatter.ipynb")
    ids = [identity(cell) for cell in book["cells"]]
    del book["cells"][ids.index("05-2-check") + 1 :]
    return book


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{student: row of the CSV file}, and what is left in the system's folder."""
    folder = tmp_path_factory.mktemp("grading")
    (folder / "mine").mkdir()
    notebooks.write(folder / "mine" / "05_scatter.ipynb", two_exercises())
    for student, answer in ANSWERS.items():
        book = two_exercises()
        for cell in book["cells"]:
            if identity(cell) == "05-1-answer" and answer is not None:
                cell["source"] = answer
            if str(identity(cell)).endswith("-check"):
                cell["source"] = "print('passed')"  # the instructor's cell counts
        (folder / "in" / student).mkdir(parents=True)
        notebooks.write(folder / "in" / student / "05_scatter.ipynb", book)
    untouched = notebooks.read(ROOT / "exercises" / "05_scatter.ipynb")
    notebooks.write(folder / "in" / "untouched.ipynb", untouched)
    (folder / "in" / "broken.ipynb").write_text("{")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "CELL", 20.0)
        patch.setattr(tempfile, "tempdir", str(folder))
        arguments = [folder / "in", "--csv", folder / "out.csv", "--feedback"]
        arguments += [folder / "told", "--solutions", folder / "mine", "--memory", 4]
        arguments += ["--jobs", 2]
        result = CliRunner().invoke(cli.app, ["grade", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    with open(folder / "out.csv", newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    return rows, folder


def test_a_row_for_each_and_the_points(graded):
    rows, _ = graded
    assert set(rows) == {*ANSWERS, "untouched", "broken"}
    points = {student: float(row["points"]) for student, row in rows.items()}
    assert points.pop("right") == 8
    for student in ("wrong", "endless", "crash"):  # the other exercise still counts
        assert points.pop(student) == 5
    assert points.pop("hungry") in (0, 5)
    assert set(points.values()) == {0}
    assert rows["right"]["exercises"] == "05.1: 3/3; 05.2: 5/5"


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("endless", "it took too long"),
        ("crash", "the process ended early (exit 7)"),
        ("hungry", "memory"),
        ("score", "Report.score is not the course's own any more"),
        ("check", "check is not the course's own any more"),
        ("guard", "d2lpar.checks.replaced is not the course's own any more"),
        ("broken", "not graded"),
    ],
)
def test_the_remark_says_why(graded, student, words):
    assert words in graded[0][student]["remarks"]


def test_who_is_right_wrong_or_has_not_begun_gets_no_remark(graded):
    for student in ("right", "wrong", "untouched"):
        assert graded[0][student]["remarks"] == ""


def test_feedback_holds_the_report(graded):
    text = (graded[1] / "told" / "wrong_05_scatter.md").read_text(encoding="utf-8")
    assert text.startswith("# wrong, 05_scatter: 5 of 8 points")
    assert "right in 0 of 45 calls" in text


def test_nothing_is_left(graded):
    folder = graded[1]
    assert not list(folder.glob("grading-*"))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [p for p in psutil.process_iter(["cwd"]) if str(folder) in str(p.info)]
        if not alive:
            break
        time.sleep(0.2)
    assert not alive


def test_other_numbers_with_another_seed(monkeypatch):
    jobs = []
    told = [{"end": True}], None
    monkeypatch.setattr(grading, "_run", lambda job, *a: jobs.append(job) or told)
    path = ROOT / "solutions" / "00_start.ipynb"
    grade = grading.grade(path, "me", [path], seed=7)
    assert jobs[0]["seed"] == 7
    assert grade.earned == 0 and grade.most > 0 and grade.remarks == []


def test_checks_that_were_deleted_are_still_asked():
    path = ROOT / "solutions" / "00_start.ipynb"
    book = notebooks.read(path)
    cells = [c for c in book["cells"] if not str(identity(c)).endswith("-check")]
    _, steps = grading.steps_of(book | {"cells": cells}, [path])
    _, whole = grading.steps_of(book, [path])
    asked = [[s["exercise"] for s in x if s["kind"] == "check"] for x in (steps, whole)]
    assert asked[0] == asked[1] != []


def test_a_notebook_of_another_course_is_not_graded(tmp_path):
    path = tmp_path / "x.ipynb"
    cell = {"cell_type": "code", "metadata": {}, "source": "1", "outputs": []}
    notebooks.write(path, {"cells": [cell], "metadata": {}})
    grade = grading.grade(path, "me", [ROOT / "solutions" / "00_start.ipynb"])
    assert "no cell of an exercise" in grade.remarks[0]


def test_a_folder_without_notebooks_gets_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no notebook under"):
        grading.submissions(tmp_path)


def test_the_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    path.write_text("before")
    monkeypatch.setattr(grading, "cells_of", lambda grade: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        grading.write_csv(path, [grading.Grade(Path("x"), "me")])
    assert path.read_text() == "before"
