"""Grade a folder of notebooks: each in processes of its own, with limits.

The graded cells are the instructor's, from `solutions/`, with their hidden tests; what
a submission has in their place is not looked at.  Everything else of a submission is
run as it is, cell by cell.  A cell that fails or does not end costs its own exercise,
and a file that cannot be read costs its own row.
"""

import ast
import re
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from ..checks import solutions as files
from ..shared import notebooks
from . import handins, process
from .handins import Submission, shown
from .process import FORGED

CELL = 120.0  # seconds that one cell may take
ASKED = "{}: code cell {} uses {}, which {}: nothing is given for that"
# What no answer needs: in words why not.
KNOWS = "knows what is right; d2lpar.check is for everybody"
MEASURES = "measures answers, or holds what does"
LOOKS = "looks at who calls the answer, or at what is in memory"
MODULES = {"d2lpar.checks": KNOWS, "d2lpar.grade": MEASURES}
SIMULATOR = "torch_private simulator simulated matching network native streams"
for _part in f"{SIMULATOR} offspring process_state".split():
    MODULES[f"d2lpar.sim.{_part}"] = MEASURES
MODULES |= dict.fromkeys(["ctypes", "_ctypes", "cloudpickle"], LOOKS)
WORDS = {"engine", "cloudpickle"}  # texts that mean no harm
CARRIES = "carries values past the messages that are counted"
NAMES = dict.fromkeys(["tb_frame", "gi_frame", "cr_frame", "ag_frame"], LOOKS)
NAMES |= dict.fromkeys(["f_back", "f_locals", "_getframe", "currentframe"], LOOKS)
NAMES |= dict.fromkeys(["_current_frames", "_current_exceptions"], LOOKS)
NAMES |= dict.fromkeys(["get_objects", "get_referrers", "get_referents"], LOOKS)
NAMES |= dict.fromkeys(["settrace", "setprofile", "addaudithook"], LOOKS)
NAMES |= dict.fromkeys(["__closure__", "cell_contents", "getclosurevars"], LOOKS)
NAMES |= dict.fromkeys(["_disable_current_modes", "_DisableTorchDispatch"], MEASURES)
NAMES |= dict.fromkeys(["current_engine", "engine"], MEASURES)
NAMES |= dict.fromkeys(["_get_default_store", "pg_map", "TCPStore"], CARRIES)
NAMES |= dict.fromkeys(["HashStore", "FileStore", "SharedMemory"], CARRIES)
OTHER = "it is of another assignment than the solutions: see --solutions"


@dataclass
class Grade:
    """What one submission earned.

    points     {exercise, such as "05.1": (points, points at most)}
    remarks    why points are missing, in sentences
    reports    {exercise: its report as text}
    likely     {exercise: the sentence that names its mistake, or ""}
    """

    submission: Submission
    notebook: str = ""
    points: dict = field(default_factory=dict)
    remarks: list = field(default_factory=list)
    reports: dict = field(default_factory=dict)
    likely: dict = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def student(self):
        return self.submission.student

    @property
    def earned(self):
        return sum(points for points, _ in self.points.values())

    @property
    def most(self):
        return sum(most for _, most in self.points.values())


def grade(submission, solutions, timeout=900.0, memory=8e9, seed=0):
    """The Grade of one submission; whatever happens costs only this one.

    `solutions` are paths of the instructor's notebooks; `timeout` are seconds for the
    whole notebook, `memory` bytes of its processes together; `seed` changes the hidden
    tests' numbers.
    """
    result, start = Grade(submission), time.monotonic()
    if submission.late:
        result.remarks.append("handed in late")
    try:
        if submission.problem:
            raise ValueError(submission.problem)
        _graded(result, solutions, start + timeout, memory, seed)
    except Exception as error:
        usual = isinstance(error, ValueError | OSError)
        text = error if usual else f"{type(error).__name__}: {error}"
        result.remarks.append(shown(f"not graded: {text}"))
    result.seconds = time.monotonic() - start
    return result


def _graded(result, solutions, deadline, memory, seed):
    submitted = handins.read(result.submission.path)
    master = _master(submitted, solutions)
    result.notebook, steps = steps_of(submitted, solutions)
    if submitted.variations != _book(master).variations:
        _add(result, OTHER)
    for step in steps:
        if step["kind"] == "check":
            result.points[step["exercise"]] = 0.0, step["points"]
    for exercise, why in _reached_behind(steps).items():
        _add(result, why)
        result.reports[exercise] = why
        steps = [step for step in steps if step.get("exercise") != exercise]
    secret = {str(Path(path).resolve().parent) for path in solutions} | _answers()
    left = deadline - time.monotonic()
    asked = {s["exercise"][:4] for s in steps if s["kind"] == "check"}
    job = {"steps": steps, "seed": seed, "cell": min(CELL, left), "memory": memory}
    job |= {"secret": sorted(secret), "checks": files.texts(asked)}
    _until_the_end(result, job, deadline)


def _until_the_end(result, job, deadline):
    """The steps have been run; a cell that ends its process is left out then."""
    while True:
        left = deadline - time.monotonic()
        lines, problem = process.run(job, left, job["memory"])
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
    root = Path(__file__).resolve().parents[2]
    folders = ("solutions", "tests", "work/solutions", "d2lpar/course/solutions")
    return {str(root / name) for name in folders}


def _cells_before(lines, steps):
    """The cells of the submission that were run, up to the end of its process."""
    begun = [line["step"] for line in lines if "step" in line]
    return [s for s in steps[: len(begun)] if s.get("source") and "cell" in s]


def _note(line, result):
    """What the judge told is in the result."""
    if line.get("remark"):
        _add(result, shown(line["remark"]))
    if "score" in line:
        most = result.points[line["exercise"]][1]
        result.points[line["exercise"]] = line["score"] * most, most
        result.reports[line["exercise"]] = line["report"]
        result.likely[line["exercise"]] = line.get("likely", "")


def _add(result, remark):
    if remark not in result.remarks:
        result.remarks.append(remark)


def steps_of(submitted, solutions):
    """(name of the notebook, what to run in order, with the instructor's checks).

    Checks that a submission, a Book, lacks come last.  Raises ValueError where no
    exercise of `solutions` is in it.
    """
    master = _master(submitted, solutions)
    mine = _checks(master)
    checks, steps = dict(mine), []
    for number, (name, source) in enumerate(submitted.cells, start=1):
        if name in mine:
            if check := checks.pop(name, None):
                steps.append(check)
        elif source.strip():
            steps.append({"kind": "run", "cell": number, "source": source})
    return master.stem, steps + list(checks.values())


def _reached_behind(steps):
    """{exercise: why it gets nothing}: a cell before it uses what no answer needs."""
    refused, why = {}, ""
    for step in steps:
        if step["kind"] == "run":
            if not why and (name := uses(step["source"])):
                why = step["cell"], name, MODULES.get(name) or NAMES[name]
        elif step["kind"] == "check" and why:
            refused[step["exercise"]] = ASKED.format(step["exercise"], *why)
            why = ""
    return refused


def uses(source):
    """Which of MODULES and NAMES the cell uses, also as a text; "" for none of them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in a text
            tree = ast.parse(TransformerManager().transform_cell(source))
            nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # it does not run either
    for name in _mentioned(nodes):
        if name in NAMES:
            return name
        for module in MODULES:
            if name == module or name.startswith(f"{module}."):
                return module
    return ""


def _mentioned(nodes):
    """Names of modules, attributes, and texts that could be either."""
    ours = {"d2lpar": "d2lpar"}
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            ours |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (alias.name for alias in node.names if alias.name in NAMES)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"[\w.]+", node.value) and node.value not in WORDS:
                yield node.value
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
            yield _dotted(node, ours)


def _dotted(node, ours):
    """The attribute as a text, `checks` of `d` after `import d2lpar as d` in full."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([ours.get(node.id, node.id), *reversed(parts)])


def _book(path):
    """The Book of an instructor's notebook."""
    return handins.book(notebooks.read(path))


def _master(submitted, solutions):
    """The path of the instructor's notebook with most of its cells."""
    mine = {name for name, _ in submitted.cells} - {None}
    shared = lambda path: len(mine & {name for name, _ in _book(path).cells})
    known = {path: shared(path) for path in map(Path, solutions)}
    master = max(known, key=known.get, default=None)
    if master is None or known[master] == 0:
        raise ValueError("it has no cell of an exercise of this course.")
    return master


def _checks(path):
    """{grade id: the check} of an instructor's notebook, in its order."""
    checks = {}
    for cell in notebooks.read(path)["cells"]:
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("grade") and cell["cell_type"] == "code":
            chapter, number, *_ = marks["grade_id"].split("-")
            about = {"kind": "check", "exercise": f"{chapter}.{number}"}
            about |= {"points": marks["points"], "source": _hidden(cell["source"])}
            checks[marks["grade_id"]] = about
    return checks


def _hidden(source):
    """The hidden tests of a cell; the whole cell where it has none."""
    _, begin, rest = source.partition("### BEGIN HIDDEN TESTS\n")
    return rest.partition("### END HIDDEN TESTS")[0] if begin else source


def feedback(grade):
    """A text for the student: points, remarks, and the reports of all checks."""
    name = grade.notebook or shown(grade.submission.path.stem)
    lines = [f"# {grade.student}, {name}: {grade.earned:g} of {grade.most:g} points"]
    lines += [f"- {remark}" for remark in grade.remarks]
    for exercise, (got, of) in grade.points.items():
        report = grade.reports.get(exercise, "not checked")
        lines.append(f"\n## {exercise}: {got:g} of {of:g}\n\n```text\n{report}\n```")
    return "\n".join(lines) + "\n"
