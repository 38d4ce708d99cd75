"""Exercises: made from the solutions, gradable by nbgrader, harmless when untouched."""

import copy
import inspect
import json
import os
import re
import shutil
import sys

import pytest

from conftest import ROOT, completed
from d2lpar import check
from d2lpar.checks import solutions
from d2lpar.checks.solutions import ex_05_1
from d2lpar.grade import exercises, handins
from d2lpar.grade import grade as grading
from d2lpar.shared import notebooks

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


@pytest.mark.parametrize("name", [x for x in solutions.known() if "01" <= x < "20"])
def test_a_chapter_lists_its_exercises(name):
    [path] = (ROOT / "chapters").glob(f"{name[:2]}_*.ipynb")
    cells = notebooks.read(path)["cells"]
    assert any(f"- **{name} {solutions.of(name).title}" in c["source"] for c in cells)


@BOTH
def test_every_exercise_of_the_chapter_is_graded_once(path):
    cells = graded(notebooks.read(path), "grade")
    names = [re.match(r'display\(d2lpar.check\("(.*?)"', c["source"])[1] for c in cells]
    assert names == [name for name in solutions.known() if name[:2] == path.stem[:2]]
    assert all(2 <= c["metadata"]["nbgrader"]["points"] <= 5 for c in cells)


@BOTH
def test_solution_earns_all_points(path):
    for cell in graded(notebooks.read(path), "grade"):
        points = float(cell["metadata"]["nbgrader"]["points"])
        assert float(cell["outputs"][-1]["data"]["text/plain"]) == points


# What a kernel does, without the seconds that one takes to start for every file.
EXECUTED = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, verdicts = InteractiveShell.instance(), {}
for path in sys.argv[1:]:
    shell.reset()
    said = verdicts[path] = []
    for cell in json.load(open(path, encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            with capture_output() as caught:
                result = shell.run_cell("".join(cell["source"]))
            if "raises-exception" not in cell["metadata"].get("tags", []):
                result.raise_error()
            if cell["metadata"].get("nbgrader", {}).get("grade"):
                said.append(caught.outputs[0].data["text/plain"].rpartition(": ")[2])
print(json.dumps(verdicts))
"""


@pytest.mark.night
def test_untouched_exercises_run_to_their_end():
    paths = [str(ROOT / "exercises" / path.name) for path in SOLUTIONS]
    command = [sys.executable, "-c", EXECUTED, *paths]
    done = completed(command)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert verdicts == {
        path: ["not done yet"] * len(graded(notebooks.read(path), "grade"))
        for path in paths
    }


# nbgrader itself, on one exercise

CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "course"
c.ExecutePreprocessor.timeout = 300  # as INSTRUCTORS.md says
"""


def nbgrader(folder, *arguments):
    """The command, as one types it; the folder of this Python is in the path."""
    here = os.path.dirname(sys.executable)
    environ = os.environ | {"PATH": here + os.pathsep + os.environ["PATH"]}
    command = [sys.executable, "-m", "nbgrader", *arguments]
    done = completed(command, cwd=folder, env=environ)
    assert done.returncode == 0, done.stderr
    return done


# An answer to 05.1, or edits of the official one, and the part of its points that it
# earns: half for the outcome, a quarter for the requirements met.
ANSWERS = {
    "right": ({}, 1.0),
    "forbidden": (ex_05_1.native, 0.5),
    "too_many_bytes": (ex_05_1.whole, 0.5 + 0.25 * 3 / 5),
    "too_many_messages": (ex_05_1.each, 0.5 + 0.25 * 4 / 5),
    "half_right": ({ex_05_1.ROOT: "if r == 0:"}, 0.0),
    "constant": (ex_05_1.zeros, 0.0),
    "deadlock": (
        """
def deal(x, root, rows, features):
    if dist.get_world_size() == 1:
        return x.clone()
    dist.recv(torch.empty(1), (dist.get_rank() + 1) % dist.get_world_size())
""",
        0.0,
    ),
    "endless": (
        """
def deal(x, root, rows, features):
    import time

    while True:
        time.sleep(0.01)
""",
        0.0,
    ),
    "raises": ("def deal(x, root, rows, features):\n    return x[rows]", 0.0),
    "silent": ("def deal(x, root, rows, features):\n    pass", 0.0),
    "untouched": (
        "def deal(x, root, rows, features):\n    raise NotImplementedError",
        0.0,
    ),
}


def source_of(answer, name):
    """An answer as a student of that name hands it in, with what it needs."""
    if callable(answer):
        source = inspect.getsource(answer)
        answer = source.replace(f"def {answer.__name__}(", "def deal(")
    elif isinstance(answer, dict):
        answer = solutions.of("05.1").edited(answer)
    marks = "@", "    ### "
    lines = [line for line in answer.splitlines() if not line.startswith(marks)]
    return "\n".join(lines).replace("def deal(", f"def {name}(")


def marked(book):
    """The notebook of 05.1 with all ANSWERS, and a hidden test for each."""
    imports, test = book["cells"][2], graded(book, "grade")[0]
    cells = [imports]
    for name, (answer, _) in ANSWERS.items():
        cells.append(imports | {"id": name, "source": source_of(answer, name)})
        asked = copy.deepcopy(test) | {"id": f"{name}-check"}
        asked["metadata"]["nbgrader"]["grade_id"] = f"05-{name}-check"
        asked["source"] = (
            f"### BEGIN HIDDEN TESTS\nd2lpar.check('05.1', {name}, seed=51).score * 3\n"
            "### END HIDDEN TESTS"
        )
        cells.append(asked)
    return book | {"cells": cells}


@pytest.fixture(scope="module")
def nbgrader_course(tmp_path_factory):
    """nbgrader has released exercise 05.1, and the notebook of ANSWERS."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "nbgrader_config.py").write_text(CONFIG)
    source = folder / "source" / "talk"
    source.mkdir(parents=True)
    book = notebooks.read(ROOT / "solutions" / "05_scatter.ipynb")
    ids = [c["metadata"].get("nbgrader", {}).get("grade_id") for c in book["cells"]]
    del book["cells"][ids.index("05-1-check") + 1 :]
    notebooks.write(source / "05_scatter.ipynb", book)
    notebooks.write(source / "marks.ipynb", marked(book))
    nbgrader(folder, "generate_assignment", "talk")
    return folder


@pytest.mark.night
def test_nbgrader_releases_the_same_exercise(nbgrader_course):
    released = notebooks.read(nbgrader_course / "release" / "talk" / "05_scatter.ipynb")
    ours = notebooks.read(ROOT / "exercises" / "05_scatter.ipynb")["cells"]
    theirs = [cell["source"].rstrip() for cell in released["cells"]]
    assert theirs == [cell["source"] for cell in ours[: len(theirs)]]


def by_check():
    """{name: the part of its points}, asked as the hidden tests ask."""
    space = {}
    exec("import torch\nimport torch.distributed as dist", space)
    for name, (answer, _) in ANSWERS.items():
        exec(source_of(answer, name), space)
    return {name: check("05.1", space[name], seed=51).score for name in ANSWERS}


def by_grade(nbgrader_course, submission):
    """The same from `d2lpar grade`."""
    mine = handins.Submission(submission, "somebody")
    grade = grading.grade(mine, [nbgrader_course / "source/talk/marks.ipynb"])
    assert grade.remarks == []
    return {name.split(".")[1]: got / of for name, (got, of) in grade.points.items()}


def by_nbgrader(nbgrader_course):
    """The same from `nbgrader autograde`, as its gradebook has them."""
    gradebook = pytest.importorskip("nbgrader.api").Gradebook
    nbgrader(nbgrader_course, "autograde", "talk", "--notebook=marks")
    with gradebook(f"sqlite:///{nbgrader_course / 'gradebook.db'}") as book:
        found = book.find_submission_notebook("marks", "talk", "somebody").grades
        return {g.name.split("-")[1]: g.auto_score / g.max_score for g in found}


@pytest.mark.night
@pytest.mark.timeout(900)
def test_marks_are_as_promised_in_check_and_grade_and_nbgrader(nbgrader_course):
    target = nbgrader_course / "submitted" / "somebody" / "talk" / "marks.ipynb"
    target.parent.mkdir(parents=True)
    shutil.copy(nbgrader_course / "release" / "talk" / "marks.ipynb", target)
    promised = pytest.approx({name: mark for name, (_, mark) in ANSWERS.items()})
    assert by_check() == promised
    assert by_grade(nbgrader_course, target) == promised
    assert by_nbgrader(nbgrader_course) == promised
