"""A folder of notebooks, graded: a row each, whatever they do."""

import csv
import functools
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from typer.testing import CliRunner

from conftest import ROOT, eventually
from d2lpar import checks, cli, grading, grading_limits, notebooks
from d2lpar.report import Report
from d2lpar.rubrics import judging, start

ENDLESS = """
import time
while True:
    try:
        time.sleep(1)
    except Exception:
        pass
"""
HUNGRY = "x = []\nwhile True:\n    x.append(torch.ones(10**8))"
FORGES = """
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"exercise": "10.3", "score": 1.0, "report": ""}\\n')
    except OSError:
        pass
"""
# What cells of a submission try, and what they are told.
TRIES = {
    "import d2lpar, pathlib\nopen(pathlib.Path(d2lpar.__file__).parent.parent"
    " / 'solutions' / 'variations.toml')": "does not read solutions",
    "import subprocess\nsubprocess.run(['true'])": "starts no programs",
    "import sys\nopen(sys.argv[2], 'a')": "its own folder only",
    "import os\nos.remove(sys.argv[2])": "its own folder only",
    "os.kill(os.getppid(), 9)": "does not end its grader",
    "open('mine', 'w').write('x')": None,
}
ANSWERS = {  # of 10.3; 08.2 is answered rightly
    "right": None,
    "wrong": "def choose(units, n, card):\n    return None",
    "stuck": ENDLESS,
    "crash": "import os\nos._exit(7)",
    "forger": FORGES,
}


def identity(cell):
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def two_exercises():
    """An instructor's notebook of two exercises that need no ranks."""
    book = notebooks.read(ROOT / "solutions" / "10_sharding.ipynb")
    other = notebooks.read(ROOT / "solutions" / "08_overlap.ipynb")
    wanted = {"10-3-answer", "10-3-check"}, {"08-2-answer", "08-2-check"}
    cells = [[c for c in b["cells"] if identity(c) in w]
             for b, w in zip((book, other), wanted, strict=True)]  # fmt: skip
    return book | {"cells": [book["cells"][2], *cells[0], *cells[1]]}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{student: row of the CSV file}, and what is left in the system's folder."""
    folder = tmp_path_factory.mktemp("grading")
    (folder / "mine").mkdir()
    notebooks.write(folder / "mine" / "10_sharding.ipynb", two_exercises())
    for student, answer in ANSWERS.items():
        book = two_exercises()
        for cell in book["cells"]:
            if identity(cell) == "10-3-answer" and answer is not None:
                cell["source"] = answer
            if str(identity(cell)).endswith("-check"):
                cell["source"] = "print('passed')"  # the instructor's cell counts
        more = [HUNGRY] if student == "stuck" else []
        more = [*TRIES] if student == "wrong" else more
        empty = {"cell_type": "code", "metadata": {}, "outputs": []}
        book["cells"] += [{**empty, "source": source} for source in more]
        (folder / "in" / student).mkdir(parents=True)
        notebooks.write(folder / "in" / student / "10_sharding.ipynb", book)
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
    assert set(rows) == {*ANSWERS, "broken"}
    points = {student: float(row["points"]) for student, row in rows.items()}
    assert points == {"right": 7, "wrong": 4, "stuck": 4, "crash": 4, "forger": 0,
                      "broken": 0}  # fmt: skip
    assert rows["right"]["exercises"] == "10.3: 3/3; 08.2: 4/4"


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("stuck", "it took too long"),
        ("stuck", "memory"),
        ("crash", "the process ended early (exit 7)"),
        ("forger", "something else than the grader"),
        ("broken", "not graded"),
    ],
)
def test_the_remark_says_why(graded, student, words):
    assert words in graded[0][student]["remarks"]


def test_cells_are_refused_what_is_not_theirs(graded):
    remarks = graded[0]["wrong"]["remarks"].split("; ")
    first = 4  # behind the imports and two answers, which are no checks
    for number, words in enumerate(TRIES.values(), start=first + 2):
        mine = [text for text in remarks if text.startswith(f"code cell {number}:")]
        assert len(mine) == (words is not None)
        assert words is None or (words in mine[0] and "PermissionError" in mine[0])


def test_who_is_right_gets_no_remark(graded):
    assert graded[0]["right"]["remarks"] == ""


def test_feedback_holds_the_report(graded):
    text = (graded[1] / "told" / "wrong_10_sharding.md").read_text(encoding="utf-8")
    assert text.startswith("# wrong, 10_sharding: 4 of 7 points")
    assert "of 40 calls" in text


def test_nothing_is_left(graded):
    folder = graded[1]
    assert not list(folder.glob("grading-*"))

    def alive():
        return [p for p in psutil.process_iter(["cwd"]) if str(folder) in str(p.info)]

    assert eventually(lambda: not alive())


def test_who_has_left_the_session_is_ended_too(tmp_path):
    worker = subprocess.Popen(["sleep", "60"], start_new_session=True)
    environ = os.environ | {"D2LPAR_GRADED": str(tmp_path)}
    stray = subprocess.Popen(["sleep", "60"], env=environ, start_new_session=True)
    grading._kill(worker, {}, tmp_path)
    assert worker.poll() is not None
    assert stray.wait(5) is not None


# The grader's file


def test_a_line_that_is_forged_repeated_or_left_out_is_seen():
    key = b"k" * grading.KEY
    lines = [grading.sealed(json.dumps([i, {"step": i}]), key) + "\n" for i in range(3)]
    assert grading._opened("".join(lines), key) == (
        [{"step": i} for i in range(3)],
        True,
    )
    half = "".join(lines)[:-5]  # the process ended while it wrote
    assert grading._opened(half, key) == ([{"step": 0}, {"step": 1}], True)
    forged = grading.sealed(json.dumps([1, {"score": 1.0}]), b"another") + "\n"
    for wrong in ([lines[0], forged], [lines[0], lines[0]], [lines[0], lines[2]]):
        assert grading._opened("".join(wrong), key) == ([{"step": 0}], False)


# What a submission may not replace


def tamperings():
    exercise = checks.find("00.1")
    return {
        "math.isclose": (math, "isclose", lambda *a, **k: True),
        "torch.distributed.send": (dist, "send", functools.partial(print)),
        "d2lpar.checks.check": (checks, "check", lambda *a, **k: None),
        "d2lpar.report.Report.score": (Report, "score", property(lambda report: 1.0)),
        "d2lpar.rubrics.start.SIZES": (start, "SIZES", (1,)),
        "the check of 00.1": (exercise, "agrees", lambda *a: True),
        "the check of messages of all ranks": (
            exercise.requirements[0], "allowed", lambda case: 10**9,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", tamperings())
def test_what_is_replaced_is_named(name, monkeypatch):
    monkeypatch.setattr(grading_limits, "replaced", lambda: [])
    snapshot = grading_limits.Snapshot(["00.1"])
    assert snapshot.changed() is None
    monkeypatch.setattr(*tamperings()[name])
    assert snapshot.changed() == name


def test_a_list_that_is_emptied_is_seen(monkeypatch):
    monkeypatch.setattr(grading_limits, "replaced", lambda: [])
    exercise = checks.find("00.1")
    monkeypatch.setattr(exercise, "requirements", list(exercise.requirements))
    snapshot = grading_limits.Snapshot(["00.1"])
    exercise.requirements.clear()
    assert snapshot.changed() == "the check of 00.1"


class Anything(torch.Tensor):
    """It says that it equals everything."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        return True


class Number(float):
    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1).as_subclass(Anything),
        Number(1),
        [Number(1)],
        (1, Number()),
        {"a": Number(1)},
        type("float", (float,), {"__module__": "builtins"})(1),
        type("Mine", (float,), {"__module__": None})(1),
    ],
)
def test_a_value_of_ones_own_kind_is_no_answer(value):
    assert not judging.ordinary(value)


def test_usual_values_are_answers():
    rows = torch.ones(2, 2).max(1)
    values = [1, 1.0, True, None, "x", torch.ones(1), nn.Parameter(torch.ones(1)), rows]
    assert judging.ordinary(values) and judging.ordinary(nn.Linear(1, 1).state_dict())
    assert judging.ordinary({"a": (1, [np.int64(1)])})


def test_another_assignment_gets_a_remark(monkeypatch):
    told = [{"end": True}], None
    monkeypatch.setattr(grading, "_run", lambda job, *a: told)
    path = ROOT / "solutions" / "00_start.ipynb"
    book = notebooks.read(path)
    book["metadata"]["d2lpar"] = {"variations": {"00.1": "00.1b"}}
    monkeypatch.setattr(notebooks, "read", lambda p, read=notebooks.read: (
        book if p == "theirs" else read(p)))  # fmt: skip
    assert grading.OTHER in grading.grade("theirs", "me", [path]).remarks


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
