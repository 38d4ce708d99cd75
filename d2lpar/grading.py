"""Grade a folder of notebooks: each in a process of its own, with limits.

The graded cells are the instructor's, from `solutions/`, with their hidden tests; what
a submission has in their place is not looked at.  Everything else of a submission is
run as it is, cell by cell.  A cell that fails or does not end costs its own exercise.
This is no sandbox: grade the notebooks of strangers on a machine that may be thrown
away.
"""

import contextlib
import csv
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from . import notebooks

STOPPED = threading.Event()  # nothing more is to be graded
LOOK = 0.1  # seconds between two looks at a submission's memory
CELL = 120.0  # seconds that one cell may take
OTHER = "it is of another assignment than the solutions: see --solutions"
FORGED = "something else than the grader wrote into the grader's file"


@dataclass
class Grade:
    """What one submission earned.

    points     {exercise, such as "05.1": (points, points at most)}
    remarks    why points are missing, in sentences
    reports    {exercise: its report as text}
    """

    path: Path
    student: str
    notebook: str = ""
    points: dict = field(default_factory=dict)
    remarks: list = field(default_factory=list)
    reports: dict = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def earned(self):
        return sum(points for points, _ in self.points.values())

    @property
    def most(self):
        return sum(most for _, most in self.points.values())


def submissions(folder):
    """[(path, student)] of all notebooks under `folder`.

    The student is the folder's first folder, as in `alice/05_scatter.ipynb`, else the
    file's name.  Raises FileNotFoundError where there is no notebook.
    """
    folder = Path(folder)
    hidden = lambda path: any(part.startswith(".") for part in path.parts)
    found = sorted(folder.rglob("*.ipynb")) if folder.is_dir() else []
    inside = [path.relative_to(folder) for path in found]
    names = [path for path in inside if not hidden(path)]
    if not names:
        raise FileNotFoundError(f"There is no notebook under {folder}.")
    return [(folder / p, p.parts[0] if len(p.parts) > 1 else p.stem) for p in names]


def grade(path, student, solutions, timeout=900.0, memory=8e9, seed=0):
    """The Grade of one submission.

    `solutions` are paths of the instructor's notebooks; `timeout` are seconds for the
    whole notebook, `memory` bytes of its processes together; `seed` changes the hidden
    tests' numbers.
    """
    result = Grade(Path(path), student)
    start = time.monotonic()
    try:
        submitted = notebooks.read(path)
        result.notebook, steps = steps_of(submitted, solutions)
        if _varied(submitted) != _varied(notebooks.read(_master(submitted, solutions))):
            _add(result, OTHER)
    except (ValueError, KeyError, TypeError, OSError) as error:
        result.remarks.append(f"not graded: {error}")
        return result
    for step in steps:
        if step["kind"] == "check":
            result.points[step["exercise"]] = 0.0, step["points"]
    secret = {str(Path(path).resolve().parent) for path in solutions} | _answers()
    job = {"steps": steps, "seed": seed, "cell": min(CELL, timeout), "memory": memory}
    job["secret"] = sorted(secret)
    _until_the_end(result, job, start + timeout)
    result.seconds = time.monotonic() - start
    return result


def _until_the_end(result, job, deadline):
    """The steps have been run; a cell that ends its process is left out then."""
    while True:
        left = deadline - time.monotonic()
        lines, problem = _run(job, left, job["memory"])
        for line in lines:
            _note(line, result)
        if problem is None:
            return
        if problem == FORGED:
            result.points = {name: (0.0, of) for name, (_, of) in result.points.items()}
        cells = _cells_before(lines, job["steps"])
        if problem == FORGED or not cells or time.monotonic() >= deadline:
            return _add(result, problem)
        _add(result, f"code cell {cells[-1]['cell']}: {problem}")
        cells[-1]["source"] = ""  # once more, without the cell that ended it


def _answers():
    """Folders of this clone, or of the installed package, that hold answers."""
    root = Path(__file__).resolve().parent.parent
    folders = ("solutions", "tests", "work/solutions", "d2lpar/course/solutions")
    return {str(root / name) for name in folders}


def _cells_before(lines, steps):
    """The cells of the submission that were run, up to the end of its process."""
    begun = [line["step"] for line in lines if "step" in line]
    return [
        step for step in steps[: len(begun)] if step.get("source") and "cell" in step
    ]


def _note(line, result):
    """What the worker told is in the result."""
    if line.get("remark"):
        _add(result, line["remark"])
    if "score" in line:
        most = result.points[line["exercise"]][1]
        result.points[line["exercise"]] = line["score"] * most, most
        result.reports[line["exercise"]] = line["report"]


def _add(result, remark):
    if remark not in result.remarks:
        result.remarks.append(remark)


def steps_of(submitted, solutions):
    """(name of the notebook, what to run in order, with the instructor's checks).

    Checks that a submission lacks come last.  Raises ValueError where no exercise
    of `solutions` is in it.
    """
    master = _master(submitted, solutions)
    mine = _checks(master)
    checks, steps = dict(mine), []
    code = [cell for cell in submitted["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        if _grade_id(cell) in mine:
            if check := checks.pop(_grade_id(cell), None):
                steps.append(check)
        elif cell["source"].strip():
            steps.append({"kind": "run", "cell": number, "source": cell["source"]})
    return master.stem, steps + list(checks.values())


def _master(submitted, solutions):
    """The path of the instructor's notebook with most of its cells."""
    mine = {_grade_id(cell) for cell in submitted["cells"]} - {None}
    known = {path: len(mine & _grade_ids(path)) for path in map(Path, solutions)}
    master = max(known, key=known.get, default=None)
    if master is None or known[master] == 0:
        raise ValueError("it has no cell of an exercise of this course.")
    return master


def _varied(notebook):
    return notebook["metadata"].get("d2lpar", {}).get("variations", {})


def _grade_id(cell):
    return cell.get("metadata", {}).get("nbgrader", {}).get("grade_id")


def _grade_ids(path):
    """Those of answers and of checks."""
    return {_grade_id(cell) for cell in notebooks.read(path)["cells"]} - {None}


def _checks(path):
    """{grade id: the check} of an instructor's notebook, in its order."""
    checks = {}
    for cell in notebooks.read(path)["cells"]:
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("grade") and cell["cell_type"] == "code":
            chapter, number, *_ = marks["grade_id"].split("-")
            checks[marks["grade_id"]] = {
                "kind": "check",
                "exercise": f"{chapter}.{number}",
                "points": marks["points"],
                "source": _hidden(cell["source"]),
            }
    return checks


def _hidden(source):
    """The hidden tests of a cell; the whole cell where it has none."""
    _, begin, rest = source.partition("### BEGIN HIDDEN TESTS\n")
    return rest.partition("### END HIDDEN TESTS")[0] if begin else source


def _run(job, timeout, memory):
    """(the worker's lines, what went wrong or None); all that it started has ended."""
    with tempfile.TemporaryDirectory(prefix="grading-") as folder:
        told, work = Path(folder) / "told", Path(folder) / "work"
        work.mkdir()
        (Path(folder) / "job").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "d2lpar.grading_worker"]
        key = os.urandom(KEY)
        quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        family = {}
        with subprocess.Popen(
            [*command, str(Path(folder) / "job"), str(told)],
            cwd=work, env=_environ(work), start_new_session=True,
            stdin=subprocess.PIPE, **quiet,
        ) as worker:  # fmt: skip
            try:
                worker.stdin.write(key)
                worker.stdin.flush()  # it stays open: the worker ends when it closes
                problem = _watch(psutil.Process(worker.pid), timeout, memory, family)
            finally:
                _kill(worker, family, work)
        text = told.read_text(encoding="utf-8") if told.exists() else ""
    lines, whole = _opened(text, key)
    if not whole:
        return lines, FORGED
    if problem is None and {"end": True} not in lines:
        problem = f"the process ended early ({_exit(worker.returncode)})"
    return lines, problem


KEY = 32  # bytes


def sealed(text, key):
    """The text behind its seal, which only who has the key can make."""
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest() + " " + text


def _opened(text, key):
    """(the lines that the worker wrote, whether there are no others)."""
    lines = []
    for line in text.split("\n")[:-1]:  # behind the last line break: one half written
        _, _, body = line.partition(" ")
        if not hmac.compare_digest(sealed(body, key).encode(), line.encode()):
            return lines, False
        number, told = json.loads(body)
        if number != len(lines):
            return lines, False
        lines.append(told)
    return lines, True


def _environ(work):
    """The worker finds this package, and the worlds that notebooks name hold."""
    environ = os.environ | {"MPLBACKEND": "Agg", "D2LPAR_PROGRESS": "0"}
    environ |= {"TMPDIR": str(work), "D2LPAR_GRADED": str(work)}
    roots = [str(Path(__file__).parent.parent), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
    for name in ("D2LPAR_BACKEND", "D2LPAR_RANKS"):
        environ.pop(name, None)
    return environ


def _watch(process, timeout, memory, family):
    """Return when the process has ended, or with a remark when it must be.

    `family` is {process id: process} of all that it is seen to have started.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end and not STOPPED.is_set():
        try:
            now = [process, *process.children(recursive=True)]
            family.update((each.pid, each) for each in now[1:])
            used = sum(_memory(each) for each in now)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        if used > memory:
            return f"more than {memory / 1e9:g} GB of memory"
        time.sleep(LOOK)
    return "the notebook's time was over"


def _memory(process):
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _kill(worker, family, work):
    """The worker, its session and all that it has started have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(worker.pid).children(recursive=True)
        family.update((each.pid, each) for each in children)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    family.update((each.pid, each) for each in _marked(work))
    for process in family.values():
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(family.values()), timeout=5)


def _marked(work):
    """Processes that have this grading in their environment, wherever they went."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("D2LPAR_GRADED") == str(work):
                yield process


def _exit(code):
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit {code}"


COLUMNS = ["student", "notebook", "points", "of", "exercises", "seconds", "remarks"]


def cells_of(grade):
    """The row of a grade, as texts under COLUMNS."""
    each = [f"{name}: {got:g}/{of:g}" for name, (got, of) in grade.points.items()]
    return [
        grade.student,
        grade.notebook or grade.path.name,
        f"{grade.earned:g}",
        f"{grade.most:g}",
        "; ".join(each),
        f"{grade.seconds:.0f}",
        "; ".join(grade.remarks),
    ]


def write_csv(path, grades):
    """A row per grade under COLUMNS; the file is whole or as it was."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *map(cells_of, grades)])
    os.replace(part, path)


def write_feedback(folder, grade):
    """A text for the student: points, remarks, and the reports of all checks."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = grade.notebook or grade.path.stem
    lines = [f"# {grade.student}, {name}: {grade.earned:g} of {grade.most:g} points"]
    lines += [f"- {remark}" for remark in grade.remarks]
    for exercise, (got, of) in grade.points.items():
        report = grade.reports.get(exercise, "not checked")
        lines.append(f"\n## {exercise}: {got:g} of {of:g}\n\n```text\n{report}\n```")
    path = folder / f"{grade.student}_{name}.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
