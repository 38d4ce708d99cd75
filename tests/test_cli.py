"""The commands, called as a user calls them."""

import importlib.util
import os
import re
import sys

import pytest
from typer.testing import CliRunner

from conftest import ROOT, completed
from d2lpar.cli import console
from d2lpar.cli import main as cli
from d2lpar.shared import notebooks


def invoke(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def code(source, *tags):
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "source": source,
        "metadata": metadata,
        "outputs": [],
        "execution_count": None,
    }


def save(path, *cells):
    path.parent.mkdir(exist_ok=True)
    book = {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    notebooks.write(path, notebooks.normalise(book))


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A folder with two chapters: 00 prints its world, 01 fails in its second cell."""
    save(
        tmp_path / "chapters" / "00_good.ipynb",
        code("import os\nos.environ.get('D2LPAR_BACKEND')"),
        code("def defaults(**k): ...\n\n\ndefaults(world_size=4, backend='sim')"),
    )
    save(tmp_path / "chapters" / "01_bad.ipynb", code("x = 1"), code("x / 0\nx"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_prints_a_row_per_chapter_and_fails_if_one_does(course):
    before = [path.read_bytes() for path in notebooks.find()]
    result = invoke("run")
    good, bad, total = filter(None, result.stdout.splitlines())
    assert good.startswith(" 1 of  2  00_good")
    assert re.search(r"s  sim, 4 ranks    pass  about \d+ s left$", good)
    assert re.fullmatch(r"1 of 2 passed in \d+ s", total)
    assert bad.startswith(" 2 of  2  01_bad") and "left" not in bad
    assert "FAIL in cell 2: `x / 0`: ZeroDivisionError: division by zero" in bad
    assert result.exit_code == 1
    assert [path.read_bytes() for path in notebooks.find()] == before


def test_the_time_that_is_left_is_told_in_minutes():
    assert [console.minutes(s) for s in (0.4, 59.6, 414)] == [
        "0 s",
        "1 min 0 s",
        "6 min 54 s",
    ]


def test_run_of_one_chapter_in_another_world(course):
    result = invoke("run", "good", "--backend", "gloo")
    assert result.exit_code == 0
    assert "gloo, 4 ranks" in result.stdout


def test_run_leaves_further_parts_out_unless_asked(course):
    save(course / "chapters" / "further" / "00_good.ipynb", code("1"))
    assert "further" not in invoke("run", "00").stdout
    said = invoke("run", "00", "--further").stdout
    assert " 2 of  2  further/00_good" in said and "2 of 2 passed" in said


def test_execute_writes_outputs_and_leaves_a_failing_chapter(course):
    bad = course / "chapters" / "01_bad.ipynb"
    before = bad.read_bytes()
    result = invoke("execute")
    assert result.exit_code == 1
    assert bad.read_bytes() == before
    good = notebooks.read(course / "chapters" / "00_good.ipynb")
    assert [cell["execution_count"] for cell in good["cells"]] == [1, 2]
    assert set(good["metadata"]) == {"d2lpar", "kernelspec", "language_info"}


def test_sync_repairs_and_prints_what_changed(course):
    library = (ROOT / "d2lpar/cli/catalogue.py").read_text()
    path = course / "chapters" / "02_show.ipynb"
    save(path, code("# in d2lpar/cli/catalogue.py\ndef listed(x):\n    return 1"))
    result = invoke("sync", "02")
    assert result.exit_code == 0
    assert "-def listed(x):" in result.stdout
    assert "02_show.ipynb: 1 cell changed" in result.stdout
    source = notebooks.read(path)["cells"][0]["source"]
    assert source.split("\n", 1)[1] in library
    assert "0 cells changed" in invoke("sync", "02").stdout


def call(*arguments, cwd):
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "d2lpar", *arguments]
    return completed(words, cwd=cwd, env=environ)


def test_a_mistake_gets_one_sentence(course):
    done = call("run", "07", cwd=course)
    assert done.returncode == 1
    assert done.stderr == "d2lpar: No chapter '07'. There are: 00_good, 01_bad.\n"


def test_sync_of_a_cell_that_the_library_does_not_have(course):
    path = course / "chapters" / "02_show.ipynb"
    save(path, code("# in d2lpar/cli/catalogue.py\ndef nothing():\n    return 1"))
    with pytest.raises(cli.Refused, match="02_show.*does not define nothing"):
        CliRunner().invoke(cli.app, ["sync", "02"], catch_exceptions=False)


def test_a_wheel_without_nbclient_says_what_to_install(course, monkeypatch):
    monkeypatch.delitem(sys.modules, "d2lpar.cli.execution", raising=False)
    monkeypatch.setitem(sys.modules, "nbclient", None)
    monkeypatch.delattr("d2lpar.cli.execution", raising=False)
    with pytest.raises(cli.Refused, match=r'pip install "d2lpar\[lab\]"'):
        console.execution_tools()


def test_doctor_exits_with_zero_where_the_course_runs():
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "torch" in result.stdout


def test_doctor_exits_with_one_where_it_does_not(monkeypatch):
    from d2lpar.cli import doctor

    monkeypatch.setattr(doctor, "_torch", lambda: None)
    assert invoke("doctor").exit_code == 1


def test_lab_opens_chapter_00_of_a_copy_and_hands_options_on(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(os, "execv", lambda program, words: called.append(words))
    folder = tmp_path / "mine"
    invoke("lab", "--to", str(folder), "--no-browser", "--port", "8899")
    chapter = folder / "chapters" / "00_start.ipynb"
    words = [f"--ServerApp.root_dir={folder}", "--no-browser", "--port", "8899"]
    assert called == [[sys.executable, "-m", "jupyterlab", *words, str(chapter)]]
    assert chapter.read_bytes() == (ROOT / "chapters/00_start.ipynb").read_bytes()


def test_lab_without_jupyterlab_says_what_to_install(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    hide = lambda name: None if name == "jupyterlab" else found(name)
    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(cli.Refused, match=r'JupyterLab is .* "d2lpar\[lab\]"'):
        CliRunner().invoke(
            cli.app, ["lab", "--to", str(tmp_path / "x")], catch_exceptions=False
        )
    assert not (tmp_path / "x").exists()
