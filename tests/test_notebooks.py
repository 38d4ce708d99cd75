"""Committed notebooks keep the rules, the rules work, and execution is repeatable."""

import base64
import io
import json
import os
import re
import sys
import time

import notebook_rules
import pytest
import torch
from PIL import Image

from authoring import outputs
from conftest import CHAPTERS, FURTHER, ROOT, completed
from d2lpar.cli import execution
from d2lpar.launch import progress
from d2lpar.shared import notebooks

COMMITTED = CHAPTERS + FURTHER + sorted(ROOT.glob("solutions/*.ipynb"))


def names(paths):
    return [notebooks.label(path) for path in paths]


def code(source, *outputs, tags=(), count=1, **metadata):
    """A code cell as `notebooks.read` returns it."""
    metadata |= {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "execution_count": count,
        "id": f"cell-{count}",
        "metadata": metadata,
        "outputs": list(outputs),
        "source": source,
    }


def book(*cells):
    """A notebook in normal form, but for its cells."""
    recorded = {"torch": execution.torch_version()}
    metadata = {"kernelspec": notebooks.KERNEL, "d2lpar": recorded}
    top = {"metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return top | {"cells": list(cells)}


def with_nbval(folder):
    """What pytest says of the notebooks in the folder."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    options = "-q -rA --nbval --nbval-current-env -p tests.portless_kernels"
    words = [sys.executable, "-m", "pytest", *options.split(), "."]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return completed(words, cwd=folder, env=environ).stdout


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def error(evalue="no"):
    traceback = ["ValueError: no"]
    return {
        "output_type": "error",
        "ename": "ValueError",
        "evalue": evalue,
        "traceback": traceback,
    }


def display(data, **metadata):
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def png(colour="red", compress=6, wide=8):
    file = io.BytesIO()
    Image.new("RGB", (wide, 8), colour).save(file, "PNG", compress_level=compress)
    return base64.b64encode(file.getvalue()).decode()


# The committed notebooks


@pytest.mark.parametrize("path", COMMITTED, ids=names(COMMITTED))
def test_committed_notebook_keeps_the_rules(path):
    assert notebook_rules.problems(notebooks.read(path)) == []


@pytest.mark.parametrize("path", COMMITTED, ids=names(COMMITTED))
def test_committed_notebook_is_in_normal_form_and_small(path):
    notebook = notebooks.read(path)
    before = json.dumps(notebook, sort_keys=True)
    assert json.dumps(notebooks.normalise(notebook), sort_keys=True) == before
    assert path.stat().st_size < notebook_rules.MAX_BYTES


@pytest.mark.parametrize("path", CHAPTERS + FURTHER, ids=names(CHAPTERS + FURTHER))
def test_chapter_names_its_world_in_its_first_cell(path):
    sources = [
        c["source"] for c in notebooks.read(path)["cells"] if c["cell_type"] == "code"
    ]
    assert sources[0].strip() == notebooks.INSTALL_CELL.strip()
    assert "import" in sources[1]
    assert "defaults(" in sources[1]


# Each rule finds what it is there to find


PICTURE = display({"image/png": png()}, **{"image/png": {"alt": "red"}})
IGNORE, RAISES = notebook_rules.IGNORE, notebook_rules.RAISES
BAD = {
    "execution count is None": code("1", count=None),
    "execution count is 7": code("1", count=7),
    "it is empty": code(""),
    "failed and has no tag": code("f()", error()),
    "did not fail": code("f()", tags=[RAISES]),
    "'/tmp/'": code("f()", stream("/tmp/x.py")),
    "'/home/'": code("f()", error("in /home/me/x.py"), tags=[RAISES]),
    "'/root/'": code("f()", display({"text/plain": "/root/x"})),
    "'ipykernel_'": code("f()", stream("ipykernel_123/4.py: UserWarning", "stderr")),
    "'pid 1": code("f()", stream("rank 0 is pid 1234")),
    "'0x7f": code("f()", stream("<object at 0x7f0123456789>")),
    "an output contains": code("f()", stream(f"{ROOT}/d2lpar/x.py")),
    "it has 16 lines": code("x = 1\n" * 16),
    "f has 26 lines": code("# in d2lpar/x.py\ndef f():" + "\n    x = 1" * 25),
    "more than 79": code("# in d2lpar/x.py\nX = '" + "x" * 80 + "'"),
    "ends with a semicolon": code("plot();\n"),
    "a shell command": code("x = 1\n!false"),
    "shell command or a cell magic": code("%%bash\nfalse"),
    "clear_output in": code("clear_output()"),
    "interact in": code("interact(draw, n=4)"),
    "a widget in": code("w", display({notebooks.WIDGET: {"model_id": "1"}})),
    "is image/svg+xml": code(
        "x", display({"image/svg+xml": "<svg/>"}, **{"image/svg+xml": {"alt": "x"}})
    ),
    "no alternative text": code("plot()", display({"image/png": png()}), tags=[IGNORE]),
    "shows a picture and has no tag": code("plot()", PICTURE),
    "a picture is 761 pixels wide": code(
        "plot()", display({"image/png": png(wide=761)}), tags=[IGNORE]
    ),
    "it shows rounding, 2e-16": code("f()", stream("a 2e-16 apart\n")),
    "it shows rounding, 7.1e-15": code("f()", stream("off by -7.1e-15", "stderr")),
    "it shows rounding, 4.17e-11": code("f()", display({"text/html": "b 4.17e-11"})),
    "it shows rounding, 3e-12": code("f()", error("3e-12 too much"), tags=[RAISES]),
    "every digit of a float, 0.6000000238418579": code(
        "x", display({"text/plain": "[0.6000000238418579, nan]"})
    ),
    "a tensor of floats": code("x", display({"text/plain": "tensor([7., 7.])"})),
    "it shows a tensor": code("x", stream("[tensor([[1],\n        [1e5]])]")),
    "hides an output": code("print(1)", stream("1\n"), tags=[IGNORE]),
    "unknown tags: nbval-skip": code("f()", tags=["nbval-skip"]),
    "a comment steers": code("# NBVAL_IGNORE_OUTPUT\nf()"),
    "it is not Python": code("for"),
}


@pytest.mark.parametrize("complaint", BAD)
def test_rule_finds_a_bad_cell(complaint):
    found = notebook_rules.problems(book(BAD[complaint]))
    assert len(found) >= 1
    assert any(complaint in text for text in found)


def test_rules_accept_good_cells():
    good = [
        code("import d2lpar\nd2lpar.defaults(world_size=4)"),
        code("print(1)", stream("1\n"), count=2),
        code("plot()", PICTURE, tags=[IGNORE], count=3),
        code("f()", error(), tags=[RAISES], count=4),
        code("%matplotlib inline\nrun(f, backend='gloo')", tags=[IGNORE], count=5),
        code("interact(f)", stream("measured"), tags=[IGNORE], count=6),
        code("print('wow!')", stream("wow!\n"), count=7),
        code(
            "f()", stream("within 1e-10: True, 0, 0.0, 2e-9, equal to 1e-12"), count=8
        ),
        code("x", display({"text/plain": "tensor([[1], [5]]), [0.25]"}), count=9),
        code("f()", stream("123456789012 B, 12345.678, 3e+38, v1e-3"), count=10),
        code("f()", stream("measured: 2e-16 s"), tags=[IGNORE], count=11),
    ]
    assert notebook_rules.problems(book(*good)) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"nbformat_minor": 4}, "format"),
        ({"metadata": {"d2lpar": {"torch": "2"}}}, "kernel"),
        ({"metadata": book()["metadata"] | {"widgets": {}}}, "widget state"),
        ({"metadata": {"kernelspec": notebooks.KERNEL}}, "which torch"),
    ],
)
def test_rules_find_a_bad_file(change, complaint):
    found = notebook_rules.problems(book() | change)
    assert len(found) == 1
    assert complaint in found[0]


def test_rules_find_equal_ids():
    assert "id" in notebook_rules.problems(book(code("1"), code("1")))[0]


# Normal form


def test_normal_form_counts_and_keeps_ids():
    raw = book(code("1", count=9), {"cell_type": "markdown", "source": "x\n"})
    raw["cells"][1]["metadata"] = {"collapsed": True}
    raw["metadata"]["widgets"] = {"state": 1}
    done = notebooks.normalise(raw)
    first, second = done["cells"]
    assert (first["execution_count"], first["id"]) == (1, "cell-9")
    assert (second["source"], second["metadata"]) == ("x", {})
    assert len(second["id"]) == 8
    assert "widgets" not in done["metadata"]


def test_new_ids_depend_on_the_text_only_and_differ():
    def ids(*sources):
        cells = [{"cell_type": "markdown", "source": s} for s in sources]
        notebooks.give_ids({"cells": cells})
        return [cell["id"] for cell in cells]

    a, b, a_again = ids("a", "b", "a")
    assert len({a, b, a_again}) == 3
    assert ids("b", "a") == [b, a]


def test_streams_that_touch_are_one():
    outputs = [stream("a\n"), stream("b\n"), stream("10%\r20%\rdone\n"), stream("")]
    done = notebooks.normalise(book(code("f()", *outputs)))
    assert done["cells"][0]["outputs"] == [stream("a\nb\ndone\n")]


def test_the_progress_of_a_run_is_not_kept():
    empty = {"text/plain": ""}
    shown = {"output_type": "display_data", "data": empty, "metadata": progress.MARK}
    done = notebooks.normalise(book(code("f()", stream("a\n"), shown)))
    assert done["cells"][0]["outputs"] == [stream("a\n")]


def test_tracebacks_have_no_files_and_no_colours():
    entries = [
        "\x1b[31mValueError\x1b[0m  Traceback (most recent call last)",
        "Cell \x1b[32mIn[1], line 1\x1b[0m\n----> 1 f()\n",
        "File \x1b[32m~/somewhere/launch.py:3\x1b[0m, in run()\n",
        "\x1b[31mValueError\x1b[0m: no",
    ]
    short = notebooks.short_traceback(entries)
    assert len(short) == 3
    assert short[-1] == "ValueError: no"
    assert "launch.py" not in "".join(short)
    assert "\x1b" not in "".join(short)


def test_alternative_text_comes_from_the_cell_where_the_picture_has_none():
    own = display({"image/png": png()}, **{"image/png": {"alt": "own"}})
    cell = code("f()", display({"image/png": png()}), own, alt="from the cell")
    outputs = notebooks.normalise(book(cell))["cells"][0]["outputs"]
    alts = [output["metadata"]["image/png"]["alt"] for output in outputs]
    assert alts == ["from the cell", "own"]


def test_a_picture_with_equal_pixels_stays():
    before = book(code("f()", display({"image/png": png(compress=0)})))
    same = book(code("f()", display({"image/png": png(compress=9)})))
    other = book(code("f()", display({"image/png": png("blue")})))

    def picture(notebook):
        return notebook["cells"][0]["outputs"][0]["data"]["image/png"]

    assert picture(notebooks.normalise(same, before)) == png(compress=0)
    assert picture(notebooks.normalise(other, before)) == png("blue")


def test_a_widget_becomes_a_sentence():
    cell = code("w", display({notebooks.WIDGET: {"model_id": "1"}}))
    data = notebooks.normalise(book(cell))["cells"][0]["outputs"][0]["data"]
    assert data == {"text/plain": notebooks.WIDGET_TEXT}


def test_written_and_read_again_is_equal(tmp_path):
    path = tmp_path / "x.ipynb"
    notebook = notebooks.normalise(book(code("a = 1\nä", stream("1\n2\n"), PICTURE)))
    notebooks.write(path, notebook)
    assert notebooks.read(path) == notebook
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert [p.name for p in tmp_path.iterdir()] == ["x.ipynb"]


# Finding


def test_find_by_number_name_and_path(tmp_path, monkeypatch):
    (tmp_path / "chapters").mkdir()
    for name in ("00_start", "04_messages"):
        notebooks.write(tmp_path / "chapters" / f"{name}.ipynb", book())
    monkeypatch.chdir(tmp_path)
    assert names(notebooks.find()) == ["00_start", "04_messages"]
    assert names(notebooks.find(["04"])) == ["04_messages"]
    assert names(notebooks.find(["messages", "00_start"])) == [
        "04_messages",
        "00_start",
    ]
    assert names(notebooks.find(["chapters/00_start.ipynb"])) == ["00_start"]
    with pytest.raises(FileNotFoundError, match="No chapter '07'.*00_start"):
        notebooks.find(["07"])


# Execution, with real kernels


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with a bit of everything, and its bytes after one and two rewrites."""
    folder = tmp_path_factory.mktemp("executed")
    path = folder / "x.ipynb"
    cells = [
        code("import os, sys\nfrom pathlib import Path", count=None),
        code("print('a')\nprint('b', file=sys.stderr)\nprint('c')"),
        code("print([p.name for p in Path().glob('*.ipynb')])", count=3),
        code("def f():\n    raise ValueError('no')\n\n\nf()", tags=[RAISES], count=4),
        code("os.environ.get('D2LPAR_BACKEND')", count=5),
    ]
    notebooks.write(path, book(*cells))
    patch = pytest.MonkeyPatch()
    patch.setenv("D2LPAR_BACKEND", "gloo")
    outcomes, texts = [], []
    for _ in range(2):
        outcomes.append(outputs.rewrite(path))
        texts.append(path.read_bytes())
    patch.undo()
    return path, outcomes, texts


def test_executing_twice_gives_identical_bytes(executed):
    _, outcomes, texts = executed
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert texts[0] == texts[1]


def test_what_execution_writes_keeps_the_rules(executed):
    notebook = notebooks.read(executed[0])
    assert notebook_rules.problems(notebook) == []
    about = notebook["metadata"]["d2lpar"]
    assert about["torch"] == execution.torch_version()
    assert about["processor"].endswith(torch.backends.cpu.get_cpu_capability())


def test_kernels_that_start_at_once_do_not_choose_the_same_address():
    chosen = [execution.without_ports()["ip"] for _ in range(2)]
    assert chosen[0] != chosen[1]
    assert max(map(len, chosen)) < 90  # with a number, a socket's name has 103 at most


def test_execution_happens_in_the_notebooks_folder_without_overrides(executed):
    cells = notebooks.read(executed[0])["cells"]
    assert cells[2]["outputs"][0]["text"] == "['x.ipynb']\n"
    assert cells[4]["outputs"] == []  # None: the override did not reach the kernel


@pytest.mark.parametrize(
    ("source", "tags", "expected"),
    [
        ("x = 1\n1 / 0", (), "cell 2: `x = 1`: ZeroDivisionError: division by zero"),
        ("x = 2", [RAISES], "cell 2: `x = 2`: should raise, but did not"),
        ("import time\ntime.sleep(60)", (), "took longer than 2 s"),
        ("import os\nos._exit(3)", (), "cell 2: `import os`: the kernel died"),
    ],
)
def test_a_failing_notebook_is_not_overwritten(tmp_path, source, tags, expected):
    path = tmp_path / "x.ipynb"
    notebooks.write(path, book(code("y = 1"), code(source, tags=tags, count=2)))
    before = path.read_bytes()
    outcome = outputs.rewrite(path, timeout=2)
    assert expected in str(outcome.failure)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.ipynb"]


WIDGET = """print(1)
widget = interact(lambda n: print(n) or time.sleep(0.002), n=IntSlider(max=9))"""


def test_no_reply_is_missed_beside_widgets(tmp_path):
    """A message to a widget can hide the reply; then each such cell waits 20 s."""
    path = tmp_path / "x.ipynb"
    first = code("import time\nfrom ipywidgets import interact, IntSlider")
    notebooks.write(path, book(first, *[code(WIDGET) for _ in range(80)]))
    waits, last = [], time.monotonic()

    def note():
        nonlocal last
        waits.append(time.monotonic() - last)
        last = time.monotonic()

    assert execution.execute(path, timeout=20, on_cell=note).failure is None
    assert len(waits) == 81 and max(waits) < 19


def test_world_is_the_one_that_defaults_names():
    notebook = book(code("%time"), code("d2lpar.defaults(world_size=4, backend='sim')"))
    assert execution.world(notebook, {}) == "sim, 4 ranks"
    assert execution.world(notebook, {"D2LPAR_BACKEND": "gloo"}) == "gloo, 4 ranks"
    assert execution.world(notebook, {"D2LPAR_RANKS": "8"}) == "sim, 8 ranks"
    assert execution.world(notebook, {"D2LPAR_RANKS": "1"}) == "sim, 1 rank"
    assert execution.world(book(), {}) == "auto"


# nbval, as `make test` calls it


@pytest.fixture(scope="module")
def nbval(tmp_path_factory):
    """What `pytest --nbval` says of four notebooks: outcomes of cells, and its text."""
    folder = tmp_path_factory.mktemp("nbval")
    now = execution.torch_version()
    recorded = {"right": (now, "2"), "wrong": (now, "3"), "other": ("1.0.0", "3")}
    for name, (version, printed) in recorded.items():
        notebook = book(code("print(1 + 1)", stream(printed + "\n")))
        notebook["metadata"]["d2lpar"] = {"torch": version, "processor": "i486, AVX9"}
        notebooks.write(folder / f"{name}.ipynb", notebook)
    number = "len(In) - 1"
    cells = [code(f"print({number})", stream(f"{i}\n"), count=i) for i in (1, 2, 3)]
    notebooks.write(folder / "counts.ipynb", book(*cells))
    said = with_nbval(folder)
    lines = re.findall(r"^(PASSED|FAILED) (\w+)\.ipynb::", said, re.M)
    return [(name, outcome) for outcome, name in lines], said


@pytest.mark.parametrize(
    ("name", "outcome"), [("right", "PASSED"), ("wrong", "FAILED"), ("other", "PASSED")]
)
def test_nbval_compares_on_the_torch_that_recorded(nbval, name, outcome):
    outcomes, text = nbval
    assert [how for which, how in outcomes if which == name] == [outcome]
    told = f"{name}.ipynb" in text.partition("outputs not compared")[0].splitlines()[-1]
    assert told == (name == "other")


def test_the_message_begins_with_where_the_output_was_recorded(nbval):
    message = nbval[1].partition("Cell 0: ")[2]
    said = f"These outputs were recorded with torch {execution.torch_version()} on i486"
    assert message.startswith(said)
    assert message.index("compared as text") < message.index("Cell outputs differ")


def test_nbval_counts_the_cells(nbval):
    assert nbval[0].count(("counts", "PASSED")) == 3
