"""A folder of notebooks, graded: a row each, whatever they do."""

import csv
import functools
import json
import math
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from filelock import FileLock
from torch import nn
from typer.testing import CliRunner

from conftest import CHAPTERS, FURTHER, ROOT, WATCHDOG, completed, eventually
from d2lpar.checks import checker, equality, exercise, judging, report
from d2lpar.cli import main as cli
from d2lpar.grade import class_files, exchange, handins, limits, process, sandbox
from d2lpar.grade import grade as grading
from d2lpar.pipeline import schedule
from d2lpar.report.errors import RankError
from d2lpar.shared import notebooks

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
# It goes through all frames and all that is in them, and calls whatever tells.
TELLS = """
def told():
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    while frame is not None:
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if callable(value) and name in ("tell", "_judge", "check"):
                for words in ({"score": 1.0}, {"score": 1.0, "report": ""}):
                    try:
                        value(exercise="10.3", **words)
                    except Exception:
                        pass
        frame = frame.f_back


def choose(units, n, card):
    told()


told()
"""
OWN = "its own folder only"
# What cells of a submission try, and what they are told; {out} lies outside.
TRIES = {
    "import d2lpar, pathlib\nopen(pathlib.Path(d2lpar.__file__).parent.parent"
    " / 'solutions' / 'variations.toml')": "does not read solutions",
    "import subprocess\nsubprocess.run(['true'])": "starts no programs",
    "import os, shutil\nos.kill(os.getppid(), 9)": "ends no other process",
    "open(f'/proc/{os.getppid()}/environ')": "looks at no other process",
    "open({out!r}, 'w')": OWN, "open('/proc/self/root' + {out!r}, 'w')": OWN,
    "os.remove({out!r})": OWN, "os.mkdir({out!r} + '1')": OWN,
    "open('mine', 'w').write('x')": None, "torch.save([1], 'model.pt')": None,
    "os.rename('mine', {out!r})": OWN, "os.replace('mine', {out!r})": OWN,
    "shutil.move('mine', {out!r})": OWN, "os.symlink('mine', {out!r})": OWN,
    "torch.save([1], {out!r})": OWN,  # C code writes it
    "from concurrent.futures import ThreadPoolExecutor\n"
    "ThreadPoolExecutor().submit(open, {out!r}, 'w').result()": OWN,
    "def outside():\n    open({out!r}, 'w')\n"
    "d2lpar.run(outside, world_size=1, backend='gloo')": OWN,
    "def starts():\n    subprocess.run(['true'])\n"
    "d2lpar.run(starts, world_size=1, backend='gloo')": "starts no programs",
    "from d2lpar.allreduce.fastest import allreduce\n"  # through memory of another rank
    "def add():\n    x = torch.ones(1000)\n    allreduce(x)\n    return x[0].item()\n"
    "assert d2lpar.run(add, world_size=2, backend='gloo').results == [2.0, 2.0]": None,
}  # fmt: skip
ANSWERS = {  # of 10.3; 08.2 is answered rightly
    "right": None,
    "wrong": "def choose(units, n, card):\n    return None",
    "stuck": ENDLESS,
    "crash": "import os\nos._exit(7)",
    "forger": FORGES,
    "teller": TELLS,
}
START = ROOT / "solutions" / "00_start.ipynb"
RIGHT = [f"student{number:02}" for number in range(2)]
LOST = [f"other{number:02}" for number in range(8)]  # they hand in another notebook
STRANGE = [{"cell_type": "code", "source": "1"}]
pytestmark = pytest.mark.timeout(900)  # twenty notebooks run, on a busy machine too


def identity(cell):
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def two_exercises():
    """An instructor's notebook of two exercises that need no ranks."""
    names = "10_sharding.ipynb", "08_overlap.ipynb"
    book, other = (notebooks.read(ROOT / "solutions" / name) for name in names)
    wanted = {"10-3-answer", "10-3-check", "08-2-answer", "08-2-check"}
    cells = [c for c in book["cells"] + other["cells"] if identity(c) in wanted]
    return book | {"cells": [book["cells"][2], *cells]}


def hand_in(folder, student, cells):
    """The path of a student's notebook, which is there."""
    (folder / student).mkdir(parents=True)
    path = folder / student / "10_sharding.ipynb"
    notebooks.write(path, two_exercises() | {"cells": cells})
    return path


def broken(folder):
    """{student: what the remark says} of files that are no notebooks, written there."""
    texts = {
        "deep": (b"[" * 200_000, "its brackets are nested too deeply"),
        "broken": (b"{", "it is no JSON"),
        "latin": ('{"cells": "é"}'.encode("latin-1"), "its text is not UTF-8"),
        "number": (b"NaN", "it is no notebook: it has no list of cells"),
    }
    for name, (data, _) in texts.items():
        (folder / f"{name}.ipynb").write_bytes(data)
    (folder / "folder.ipynb").mkdir()
    (folder / "link.ipynb").symlink_to(ROOT / "solutions" / "10_sharding.ipynb")
    os.mkfifo(folder / "pipe.ipynb")
    with open(folder / "huge.ipynb", "wb") as file:
        file.truncate(10**10)  # a hole: nothing is stored
    told = {kind: f"it is a {kind}, not a file" for kind in ("folder", "link", "pipe")}
    told |= {"huge": "it has 10000 MB, and 20 are allowed"}
    return told | {name: words for name, (_, words) in texts.items()}


# Answers of 08.2 that look elsewhere for what they return, or hide how they come to it.
CHEATS = {
    "looker": (
        "def exposed(*given):\n    try:\n        1 / 0\n"
        "    except ZeroDivisionError as error:\n        trace = error.__traceback__\n"
        "    try:\n        getattr(trace, 'tb_' + 'frame')\n    except OSError:\n"
        "        pass\n    return exposed_well(*given)",
        "08.2: a submission does not look at its callers",
    ),
    "leaver": (
        "def exposed(*given):\n    import colorsys\n"
        "    colorsys.left = {0: torch.ones(1)}\n    return exposed_well(*given)",
        "08.2: an answer leaves nothing behind, and this one left colorsys.left",
    ),
    "pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "torch.pool = ThreadPoolExecutor(1)\ntorch.pool.submit(int).result()\n"
        "def exposed(*given):\n"
        "    return torch.pool.submit(exposed_well, *given).result()",
        "08.2: a thread of a cell still runs: ThreadPoolExecutor-0_0",
    ),
    "spy": (
        "def exposed(*given):\n    import gc\n    gc.get_objects()\n"
        "    return exposed_well(*given)",
        "08.2: code cell 4 uses get_objects, which looks at who calls",
    ),
}


def odd():
    """Cells whose metadata and source have any form, and a right answer."""
    cells = two_exercises()["cells"]
    forms = [[], None, {"nbgrader": []}, {"nbgrader": {"grade_id": []}}]
    cells += [{"cell_type": "code", "metadata": m, "source": None} for m in forms]
    return [None, 1, {"cell_type": []}, *cells]


@pytest.fixture(scope="module")
def graded(tmp_path_factory, worker_id):
    """{student: row of the CSV file}, the folder, {student: remark} of what is broken,
    and what was said.  The class is graded once, whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "grading"
    with FileLock(f"{folder}.lock"):
        if not Path(f"{folder}.said").exists():
            grade_the_class(folder)
        files, output = pickle.loads(Path(f"{folder}.said").read_bytes())
    with open(folder / "out.csv", newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    return rows, folder, files, output


def impatiently(run, job, *limits):
    """Run the job; where a cell has no end, twenty seconds are enough to see that."""
    if any(step["source"] == ENDLESS for step in job["steps"]):
        job = job | {"cell": 20.0}
    return run(job, *limits)


def grade_the_class(folder):
    whole = two_exercises()["cells"]
    hand_in(folder, "mine", whole)
    [right] = [c["source"] for c in whole if identity(c) == "08-2-answer"]
    right = right.replace("exposed(", "exposed_well(", 1)
    answers = {student: ("10-3-answer", answer) for student, answer in ANSWERS.items()}
    answers |= {s: ("08-2-answer", f"{right}\n{a}") for s, (a, _) in CHEATS.items()}
    tries = [t.replace("{out!r}", repr(str(folder / "outside"))) for t in TRIES]
    for student, (name, answer) in answers.items():
        cells = two_exercises()["cells"]
        for cell in cells:
            if identity(cell) == name and answer is not None:
                cell["source"] = answer
            if str(identity(cell)).endswith("-check"):
                cell["source"] = "print('passed')"  # the instructor's cell counts
        more = {"crash": [HUNGRY], "teller": [TELLS], "wrong": tries}.get(student, [])
        cells += [{"cell_type": "code", "source": source} for source in more]
        hand_in(folder / "in", student, cells)
    for student in [*RIGHT, "L" * 250, "=cmd()", *LOST]:
        hand_in(folder / "in", student, STRANGE if student in LOST else whole)
    (folder / "in" / "odd").mkdir()
    text = json.dumps({"cells": odd(), "metadata": None})
    (folder / "in" / "odd" / "x.ipynb").write_text(text)
    files = broken(folder / "in")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grading, "CELL", 60.0)  # a busy machine starts ranks slowly
        patch.setattr(process, "run", functools.partial(impatiently, process.run))
        patch.setattr(tempfile, "tempdir", str(folder))
        arguments = [folder / "in", "--jobs", 3, "--memory", 4]
        arguments += ["--csv", folder / "out.csv", "--solutions", folder / "mine"]
        arguments += ["--feedback", folder / "told"]
        result = CliRunner().invoke(cli.app, ["grade", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    Path(f"{folder}.said").write_bytes(pickle.dumps((files, result.output)))


@pytest.mark.night
def test_a_row_for_each_with_points_and_a_remark(graded):
    rows, _, files, _ = graded
    points = {student: float(row["points"]) for student, row in rows.items()}
    wanted = dict.fromkeys(["right", *RIGHT, "L" * 250, "'=cmd()", "odd"], 7)
    wanted |= dict.fromkeys(["wrong", "stuck", "crash", "teller"], 4)
    wanted |= dict.fromkeys(CHEATS, 3) | dict.fromkeys(["forger", *LOST, *files], 0)
    assert points == wanted and len(rows) == 31
    apart = {"wrong": ("0", "4")} | dict.fromkeys(CHEATS, ("3", "0"))
    for student, each in apart.items():
        assert (rows[student]["10.3 of 3"], rows[student]["08.2 of 4"]) == each
    assert {rows[student]["remarks"] for student in ["right", *RIGHT]} == {""}
    files = files | dict.fromkeys(LOST, "it has no cell of an exercise")
    for student, words in files.items():
        assert rows[student]["remarks"].startswith(f"not graded: {words}")


@pytest.mark.night
@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("stuck", "it took too long"), ("crash", "memory"),
        ("crash", "the process ended early (exit 7)"),
        ("forger", "something else than the grader"),
        *((student, words) for student, (_, words) in CHEATS.items()),
    ],
)  # fmt: skip
def test_the_remark_says_why(graded, student, words):
    assert words in graded[0][student]["remarks"]


@pytest.mark.night
def test_cells_are_refused_what_is_not_theirs(graded):
    remarks = graded[0]["wrong"]["remarks"].split("; ")
    for number, words in enumerate(TRIES.values(), start=6):  # behind five others
        mine = [text for text in remarks if text.startswith(f"code cell {number}:")]
        assert len(mine) == (words is not None)
        assert words is None or words in mine[0]


INSIDE = """
import os, socket, sys
seen = [os.path.exists(path) for path in sys.argv[1:]]
written = []
for folder in ("/", "/tmp", "/usr", os.path.dirname(os.getcwd()), os.getcwd()):
    try:
        open(os.path.join(folder, "x"), "w")
        written.append(folder)
    except OSError:
        pass
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
    net = "a network"
except OSError as error:
    net = os.strerror(error.errno)
others = len([name for name in os.listdir("/proc") if name.isdigit()]) - 2
print([seen, written == [os.getcwd()], net, os.environ.get("SECRET"), others])
"""


@pytest.mark.skipif(bool(sandbox.problem()), reason=sandbox.problem())
def test_bubblewrap_shows_the_course_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "1234")
    (tmp_path / "work").mkdir()
    (tmp_path / "roster.csv").write_text("x")
    hidden = [ROOT / "solutions", ROOT / "tests", tmp_path / "roster.csv"]
    secret = Path(checker.__file__).parent  # it lies where Python looks
    paths = [grading.__file__, *hidden, secret / "guard.py"]
    inside = sandbox.wrapped(tmp_path / "work", [secret])
    words = [*inside, sys.executable, "-c", INSIDE, *paths]
    done = completed(words, env=sandbox.environ(tmp_path / "work"))
    # beside itself and bubblewrap there is no process
    wanted = [[True, *[False] * 4], True, "Network is unreachable", None, 0]
    assert done.stdout == f"{wanted}\n", done.stderr


def test_without_bubblewrap_the_line_says_why(monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    monkeypatch.setattr(sandbox, "problem", sandbox.problem.__wrapped__)  # no cache
    guard = "Protection: Python's audit hook, limits on time and memory"
    assert sandbox.in_force().startswith(f"{guard}, and nothing else: bubblewrap is")


@pytest.mark.night
def test_the_protection_and_the_reports_are_told(graded):
    assert sandbox.in_force() in graded[3]
    text = (graded[1] / "told" / "wrong_10_sharding.md").read_text(encoding="utf-8")
    assert text.startswith("# wrong, 10_sharding: 4 of 7 points")
    assert re.search(r"right in (\d+) of \1 calls", text)
    assert len(list((graded[1] / "told").iterdir())) == 31


@pytest.mark.night
def test_nothing_is_left_or_written_outside(graded):
    folder = graded[1]
    assert {path.name for path in folder.iterdir()} == {"mine", "in", "out.csv", "told"}

    def alive():
        return [p for p in psutil.process_iter(["cwd"]) if str(folder) in str(p.info)]

    assert eventually(lambda: not alive())


def test_who_has_left_the_session_is_ended_too(tmp_path):
    worker = subprocess.Popen(["sleep", "60"], start_new_session=True)
    environ = os.environ | {"D2LPAR_GRADED": str(tmp_path)}
    stray = subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True)
    process._kill(worker, {}, tmp_path)
    assert worker.poll() is not None
    assert stray.wait(WATCHDOG) is not None  # long before it ends by itself


def test_a_line_that_is_forged_repeated_or_left_out_is_seen():
    key = b"k" * process.KEY
    lines = [process.sealed(json.dumps([i, {"step": i}]), key) + "\n" for i in range(3)]
    opened = lambda *texts: process._opened("".join(texts), key)
    told = [{"step": i} for i in range(3)]
    assert opened(*lines) == (told, True)
    assert opened(*lines[:2], lines[2][:-5]) == (told[:2], True)  # it ended too early
    forged = process.sealed(json.dumps([1, {"score": 1.0}]), b"another") + "\n"
    for wrong in (forged, lines[0], lines[2]):
        assert opened(lines[0], wrong) == (told[:1], False)


# What the runner tells the judge


class Evil:
    """Loaded as Python does it, it runs a program."""

    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps(torch.ones(1)),  # torch loads its storage with all of pickle
        b"cbuiltins\neval\n.", b"cd2lpar.grade.exchange\npickle.loads\n.",
        b"cd2lpar.grade.process\nrun\n.", b"cd2lpar.checks.judging\non_ranks\n.",
        # parts for a class, for a function, and a call of what a class has made
        b"cd2lpar.checks.judging\nExercise\n(N(Vweight\ncbuiltins\nslice\ndtb.",
        b"cd2lpar.grade.exchange\n_foreign\n(N(Vmine\nI1\ndtb.",
        b"ctorch.nn.modules.linear\nIdentity\n)R(I1\ntR.", b"", b"\xff" * 100,
    ],
    ids=lambda _: "data",  # the bytes of a tensor differ from process to process
)  # fmt: skip
def test_the_judge_loads_nothing_that_runs(data):
    with pytest.raises(exchange.Forbidden):
        exchange.decode(data)
    assert not hasattr(exercise.Exercise, "weight")
    assert not hasattr(exchange._foreign, "mine")


def there(value):
    """What the judge gets of a value that the runner sends."""
    return exchange.decode(exchange.encode(value))


def test_values_reach_the_judge_as_they_are():
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    values = [1, 2.5, "x", None, [1, (2,)], {"a": {1}}, np.float64(2), np.int32(3)]
    assert [type(there(v)) for v in values] == [type(v) for v in values]
    assert there(values) == values
    tensors = [torch.ones(3, 1).expand(3, 4), torch.zeros(0, 2), torch.tensor([True])]
    tensors += [torch.ones(2, dtype=torch.bfloat16), torch.tensor([1j]).conj()]
    assert all(map(torch.equal, there(tensors), tensors))
    assert torch.equal(there(net).weight.grad, net.weight.grad)
    assert there(defaultdict(lambda: 1, a=2)) == {"a": 2}
    assert there(torch.ones(3, device="meta")).shape == (3,)
    made = schedule.make("1f1b", 2, 3)
    here = made, schedule.simulate(made)
    assert list(map(str, there(here))) == list(map(str, here))


def test_what_a_submission_made_reaches_the_judge_as_foreign():
    for value in (Number(1), [Number(1)], {"a": (Number(1),)}, [len], [Evil]):
        assert not equality.ordinary(there(value))
        assert not equality.same(there(value), 0)
    foreign = there(Number(1))
    assert repr(foreign) == "<a Number>" and foreign != 0
    assert foreign not in (0, there(Number(1)))
    pair = there([NamedTuple("Pair", [("who", int), ("whom", int)])(1, 2)])
    assert pair == [(1, 2)] and type(pair[0]) is tuple


def test_an_error_reaches_the_judge_with_its_cause():
    error = RankError("text", rank=2, call="send", line="x:1")
    error.__cause__ = type("Mine", (KeyError,), {})("a")
    came = there(error)
    assert (type(came), str(came)) == (RankError, "text")
    assert (came.rank, came.call, came.line) == (2, "send", "x:1")
    cause = type(came.__cause__)
    assert issubclass(cause, KeyError) and cause is not type(error.__cause__)
    assert cause.__name__ == "Mine"


# What an answer may not do while it is checked

DISGUISED = """
import inspect
box = {}
exec(compile("import gc\\ndef look(): gc.get_objects()", inspect.__file__, "exec"), box)
box["look"]()
"""
POOLED = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    pool.submit(__import__("gc").get_objects).result()
"""
FAILS = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    "
FORBIDDEN = {  # what an answer is told: what it tries
    "an answer writes no files": [
        "torch.save([1], 'mine.pt')", "torch.save([1], '/dev/shm/mine.pt')",
        "open('/dev/shm/mine', 'w')", "open('mine', 'w')",
        "torch.from_file('mine', shared=True, size=1)",
        POOLED.replace('__import__("gc").get_objects', "open, 'mine', 'w'"),
    ],
    "look at its callers": [
        "gc.get_objects()", "sys._getframe()", "sys._current_exceptions()",
        "sys.settrace(print)", "sys.setprofile(print)", "inspect.currentframe()",
        "inspect.stack()", "list(traceback.walk_stack(None))", "logging.currentframe()",
        FAILS + "return error.__traceback__.tb_frame",
        FAILS + "return list(traceback.walk_tb(error.__traceback__))",
        "return getattr((0 for _ in [0]), 'gi_' + 'frame')",
        "import ctypes, _ctypes\n_ctypes.PyObj_FromPtr(id(ctypes))",
        "from d2lpar.shared.played import Device\n"
        "Device(1, 1, 0, [1]).launch.__self__._do.__self__.gi_frame",
        POOLED, POOLED.replace('"gc").get_objects', '"sys")._current_frames'),
    ],
    "under its own name": [DISGUISED],
    "does not read solutions": [
        "from d2lpar.checks import checker\nchecker.find('20.2')",
        "import d2lpar.checks.solutions.ex_06_2",
    ],
    "": [
        FAILS + "import traceback\n    assert traceback.format_exc()",
        "sys.addaudithook(print)",  # it is not added: Python is silent
        "import io\ntorch.save([1], io.BytesIO())",
        "import collections, dataclasses\ncollections.namedtuple('A', 'a')\n"
        "dataclasses.make_dataclass('B', ['b'])",
        "assert not d2lpar.check('08.2', print).done",
    ],
}  # fmt: skip
# It runs in a process of its own, as the guard stays for a process's life.
TRY = """
import json, os, sys
from IPython.core.interactiveshell import InteractiveShell
from d2lpar.checks.solutions import FOLDER
from d2lpar.grade import runner
there = runner.Runner({"memory": 8e9, "secret": [str(FOLDER)]})
there.cell("import gc, inspect, logging, sys, traceback, torch, d2lpar", 60)
there.watch.checking = True
told = []
for source in json.loads(sys.argv[1]):
    there.shell.run_cell("def answer():\\n" + source)
    try:
        told.append(there.shell.user_ns["answer"]() or "")
    except BaseException as error:
        told.append(str(error))
there.watch.checking = False
os.write(1, json.dumps(told).encode())
"""


def test_an_answer_is_refused_what_is_no_answer(tmp_path):
    tried = [(text, words) for words, texts in FORBIDDEN.items() for text in texts]
    sources = json.dumps(["    " + text.replace("\n", "\n    ") for text, _ in tried])
    words = [sys.executable, "-W", "ignore", "-c", TRY, sources]
    done = completed(words, cwd=tmp_path, env=sandbox.environ(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for (source, words), came in zip(tried, told, strict=True):
        assert words in came if words else came == "", (source, came)
    assert not (tmp_path / "mine").exists() and not (tmp_path / "mine.pt").exists()


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("from d2lpar.checks.solutions.ex_08_2 import timing", "d2lpar.checks"),
        ("from d2lpar import checks", "d2lpar.checks"),
        ("import d2lpar as d\ndef f():\n    return d.checks.checker", "d2lpar.checks"),
        ("import importlib as i\ni.import_module('d2lpar.checks.x')", "d2lpar.checks"),
        ("%pwd\nimport d2lpar.checks", "d2lpar.checks"),
        ("import d2lpar.checks.report as r", "d2lpar.checks"),
        ("import ctypes as c", "ctypes"), ("S = dist.TCPStore('::', 1)", "TCPStore"),
        ("import cloudpickle\ncloudpickle.dumps(print)", "cloudpickle"),
        ("from d2lpar.grade import guard", "d2lpar.grade"),
        ("def f(error):\n    return error.__traceback__.tb_frame.f_back", "f_back"),
        ("def f(e):\n    return getattr(e.__traceback__, 'tb_frame')", "tb_frame"),
        ("from sys import _getframe as g", "_getframe"),
        ("import threading\nthreading.setprofile(print)", "setprofile"),
        ("def judge(f):\n    return f.__closure__", "__closure__"),
        ("dist.group.WORLD.engine.meter.peak = 0", "engine"),
        ("c10d._get_default_store().set('a', 'b')", "_get_default_store"),
        ("from torch.utils import _disable_current_modes", "_disable_current_modes"),
        ("import d2lpar\nd2lpar.check('08.2', print)", ""),
        ("x = 'See d2lpar.checks for more: it has an engine'", ""),
        ("engine = 'engine'\nframe = torch.stack([x])", ""), ("def broken(", ""),
    ],
)  # fmt: skip
def test_a_cell_that_reaches_behind_its_check_is_seen(source, uses):
    assert grading.uses(source) == uses


def test_no_cell_of_the_course_reaches_behind_its_check():
    for path in [*CHAPTERS, *FURTHER, *ROOT.glob("solutions/*.ipynb")]:
        for cell in notebooks.read(path)["cells"]:
            if cell["cell_type"] == "code":
                assert grading.uses("".join(cell["source"])) == "", path


def test_who_asks_the_checks_gets_nothing_for_that_exercise(monkeypatch, jobs):
    path, asks = ROOT / "solutions" / "08_overlap.ipynb", "import d2lpar.checks"
    cells = handins.read(path).cells
    cells = [(name, asks if name == "08-2-answer" else text) for name, text in cells]
    monkeypatch.setattr(handins, "read", lambda path: handins.Book(cells, {}))
    grade = grading.grade(mine(path), [path])
    asked = [s["exercise"] for s in jobs[0]["steps"] if s["kind"] == "check"]
    assert "08.2" not in asked and "08.1" in asked
    assert grade.points["08.2"] == (0.0, 4) and "08.2" in grade.reports
    assert any("uses d2lpar.checks" in remark for remark in grade.remarks)


# What a submission may not replace

TAMPERINGS = {
    "math.isclose": (math, "isclose", lambda *a, **k: True),
    "torch.distributed.send": (torch.distributed, "send", functools.partial(print)),
    "d2lpar.checks.checker.check": (checker, "check", lambda *a, **k: None),
    "d2lpar.checks.report.Report.score": (report.Report, "score", property(hash)),
    "d2lpar.checks.judging.PATIENCE": (judging, "PATIENCE", 1.0),
    "d2lpar.checks.equality.LIBRARIES": None,  # the list is emptied
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_what_is_replaced_is_named(name, monkeypatch):
    monkeypatch.setattr(limits, "replaced", lambda: [])
    monkeypatch.setattr(equality, "LIBRARIES", ["torch"])
    snapshot = limits.Snapshot()
    assert snapshot.changed() is None
    if TAMPERINGS[name]:
        monkeypatch.setattr(*TAMPERINGS[name])
    else:
        equality.LIBRARIES.clear()
    assert snapshot.changed() == name


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
        Number(1), [Number(1)], (1, Number()), {"a": Number(1)},
        type("float", (float,), {"__module__": "builtins"})(1),
        type("Mine", (float,), {"__module__": None})(1),
        type("Pair", (NamedTuple("Pair", [("a", int)]),), {})(1),
        type("Pair", (tuple,), {"__iter__": lambda self: iter(())})((1,)),
    ],
)  # fmt: skip
def test_a_value_of_ones_own_kind_is_no_answer(value):
    assert not equality.ordinary(value)


def test_usual_values_are_answers():
    values = [1, 1.0, True, None, "x", torch.ones(1), nn.Parameter(torch.ones(1))]
    values += [torch.ones(2, 2).max(1), {"a": (1, [np.int64(1)])}]
    values += [nn.Linear(1, 1).state_dict(), NamedTuple("Pair", [("who", int)])(1)]
    assert all(map(equality.ordinary, [*values, values]))


@pytest.fixture
def jobs(monkeypatch):
    """Nothing is run; the jobs that would have been."""
    found, told = [], ([{"end": True}], None)
    monkeypatch.setattr(process, "run", lambda job, *a: found.append(job) or told)
    return found


def mine(path):
    return handins.Submission(path, "me")


def test_right_answers_have_all_points(tmp_path):
    """One whole grading by day, with a judge and its runner."""
    path = hand_in(tmp_path, "me", two_exercises()["cells"])
    grade = grading.grade(mine(path), [path])
    assert grade.points == {"10.3": (3.0, 3), "08.2": (4.0, 4)} and not grade.remarks


def test_another_assignment_gets_a_remark(jobs, tmp_path):
    book = notebooks.read(START)
    book["metadata"]["d2lpar"] = {"variations": {"00.1": "00.1b"}}
    notebooks.write(tmp_path / "theirs.ipynb", book)
    grade = grading.grade(mine(tmp_path / "theirs.ipynb"), [START])
    assert grading.OTHER in grade.remarks


def test_other_numbers_with_another_seed(jobs):
    grade = grading.grade(mine(START), [START], seed=7)
    assert jobs[0]["seed"] == 7
    assert grade.earned == 0 and grade.most > 0 and grade.remarks == []


@pytest.mark.parametrize(
    ("where", "name", "error", "remark"),
    [
        (process, "run", ZeroDivisionError("x"), "not graded: ZeroDivisionError: x"),
        (os, "open", PermissionError(13, "No"), "not graded: [Errno 13] No"),
    ],
)
def test_whatever_raises_costs_one_row(monkeypatch, where, name, error, remark):
    monkeypatch.setattr(where, name, Mock(side_effect=error))
    assert grading.grade(mine(START), [START]).remarks == [remark]


def test_checks_that_were_deleted_are_still_asked():
    book = handins.read(START)
    cells = [c for c in book.cells if not str(c[0]).endswith("-check")]
    _, steps = grading.steps_of(handins.Book(cells, {}), [START])
    _, whole = grading.steps_of(book, [START])
    asked = [[s["exercise"] for s in x if s["kind"] == "check"] for x in (steps, whole)]
    assert asked[0] == asked[1] != []


def test_a_notebook_of_another_course_is_not_graded(tmp_path):
    grade = grading.grade(mine(hand_in(tmp_path, "me", STRANGE)), [START])
    assert "no cell of an exercise" in grade.remarks[0]


def test_a_folder_without_notebooks_gets_one_sentence(tmp_path):
    result = CliRunner().invoke(cli.app, ["grade", str(tmp_path)])
    assert result.exit_code != 0
    assert "There is no notebook under" in str(result.exception or result.output)


def test_a_submission_has_a_users_name(tmp_path):
    """torch asks for it; in the sandbox there is no list of users."""
    code = "import getpass, os; os.getuid = lambda: 987654; print(getpass.getuser())"
    done = completed([sys.executable, "-c", code], env=sandbox.environ(tmp_path))
    assert done.stdout == "student\n", done.stderr


def test_a_feedback_that_cannot_be_written_is_a_remark(tmp_path, monkeypatch):
    monkeypatch.setattr(class_files, "feedback", lambda grade: 1 / 0)
    files = class_files.Files(feedback=tmp_path / "told")
    files.add(grading.Grade(mine(tmp_path / "x.ipynb")))
    assert files.grades[0].remarks == ["no feedback: division by zero"]
