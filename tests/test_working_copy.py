"""A learner's copy of the course: what is laid out, updated, and never touched."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from authoring import commands as authoring
from conftest import ROOT
from d2lpar.checks.report import Report, Row
from d2lpar.cli import main as cli
from d2lpar.cli import working_copy
from d2lpar.shared import notebooks

FIRST, SECOND = "chapters/00_start.ipynb", "exercises/00_start.ipynb"
LOCAL = re.compile(r"\]\((?!https?:|#|attachment:)([^)#]+)\)")  # a link to a file


def save(path, *sources, output=None):
    """A notebook with a code cell per source; the first has an output."""
    cells = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": []}
        | {"execution_count": None, "id": str(i)}
        for i, source in enumerate(sources)
    ]
    if output:
        stream = {"output_type": "stream", "name": "stdout", "text": output}
        cells[0]["outputs"] = [stream]
    path.parent.mkdir(parents=True, exist_ok=True)
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    notebooks.write(path, book)


@pytest.fixture
def course(tmp_path):
    """A course of two notebooks and a picture."""
    source = tmp_path / "course"
    save(source / FIRST, "one", output="1\n")
    save(source / SECOND, "write it")
    (source / "pictures").mkdir()
    (source / "pictures" / "a.png").write_bytes(b"\x89PNG one")
    return source


@pytest.fixture
def copy(tmp_path, course):
    """A copy of that course."""
    working_copy.lay_out(tmp_path / "copy", course)
    return tmp_path / "copy"


def files(folder):
    """Name to bytes of every file below a folder, without the manifest."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name[0] != "."]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def test_a_fresh_copy_has_the_same_bytes(course, tmp_path):
    laid = working_copy.lay_out(tmp_path / "deep" / "copy", course)
    assert files(laid.folder) == files(course)
    assert (sorted(laid.new), laid.updated, laid.beside) == (
        sorted(files(course)),
        [],
        [],
    )


def test_the_whole_course_is_laid_out_with_links_that_lead_somewhere(tmp_path):
    working_copy.lay_out(tmp_path, ROOT)
    for folder in (notebooks.CORE, notebooks.FURTHER, "exercises", "solutions"):
        names = {path.name for path in (ROOT / folder).glob("*.ipynb")}
        laid = (path for path in (tmp_path / folder).iterdir() if path.is_file())
        assert {path.name for path in laid} == names
    targets = set()
    for path in tmp_path.rglob("*.ipynb"):
        for cell in notebooks.read(path)["cells"]:
            if cell["cell_type"] == "markdown":
                links = LOCAL.findall(cell["source"])
                targets |= {path.parent / link for link in links}
    assert len(targets) > 20
    assert [str(target) for target in targets if not target.exists()] == []


def test_nothing_happens_where_nothing_is_newer(copy, course):
    save(copy / FIRST, "mine")
    before = files(copy)
    laid = working_copy.lay_out(copy, course)
    assert (laid.new, laid.updated, laid.beside) == ([], [], [])
    assert files(copy) == before


def test_an_untouched_file_is_updated(copy, course):
    save(course / FIRST, "one, mended", output="2\n")
    (course / "pictures" / "a.png").write_bytes(b"\x89PNG two")
    laid = working_copy.lay_out(copy, course)
    assert laid.updated == [FIRST, "pictures/a.png"]
    assert files(copy) == files(course)
    assert "There was a newer version of 2 files, now updated." in str(laid)


def test_a_chapter_that_was_only_run_is_updated(copy, course):
    save(copy / FIRST, "one", "", output="measured here\n")  # JupyterLab adds a cell
    save(course / FIRST, "one, mended")
    assert working_copy.lay_out(copy, course).updated == [FIRST]
    assert files(copy) == files(course)


def test_outputs_stay_where_only_outputs_are_newer(copy, course):
    save(copy / FIRST, "one", output="measured here\n")
    save(course / FIRST, "one", output="recorded again\n")
    before = files(copy)
    laid = working_copy.lay_out(copy, course)
    assert (laid.updated, laid.beside) == ([], [])
    assert files(copy) == before


def test_a_changed_file_is_kept_and_the_newer_version_is_beside_it(copy, course):
    save(copy / SECOND, "my answer")
    mine = (copy / SECOND).read_bytes()
    save(course / SECOND, "write it, said better")
    laid = working_copy.lay_out(copy, course)
    newer = "exercises/00_start.new.ipynb"
    assert laid.beside == [(SECOND, newer)]
    assert (copy / SECOND).read_bytes() == mine
    assert (copy / newer).read_bytes() == (course / SECOND).read_bytes()
    assert str(laid).splitlines()[1] == (
        f"You changed {SECOND}, so it stays as it is. "
        f"The newer version is beside it: {newer}."
    )
    assert working_copy.lay_out(copy, course).beside == []  # said once


def test_the_newer_version_is_replaced_by_one_newer_still_unless_it_was_changed(
    copy, course
):
    save(copy / SECOND, "my answer")
    for version in ("second", "third"):
        save(course / SECOND, version)
        laid = working_copy.lay_out(copy, course)
        assert laid.beside == [(SECOND, "exercises/00_start.new.ipynb")]
    save(copy / "exercises/00_start.new.ipynb", "my other answer")
    other = (copy / "exercises/00_start.new.ipynb").read_bytes()
    save(course / SECOND, "fourth")
    laid = working_copy.lay_out(copy, course)
    assert laid.beside == [(SECOND, "exercises/00_start.new2.ipynb")]
    assert (copy / "exercises/00_start.new.ipynb").read_bytes() == other


def test_a_deleted_file_comes_back(copy, course):
    (copy / FIRST).unlink()
    assert working_copy.lay_out(copy, course).new == [FIRST]
    assert files(copy) == files(course)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": {"a": 1}}'])
def test_without_a_manifest_nothing_of_the_learner_is_lost(copy, course, text):
    (copy / notebooks.MANIFEST).write_text(text)
    save(copy / SECOND, "my answer")
    mine = (copy / SECOND).read_bytes()
    save(course / SECOND, "newer")
    laid = working_copy.lay_out(copy, course)
    assert (copy / SECOND).read_bytes() == mine
    assert laid.beside == [(SECOND, "exercises/00_start.new.ipynb")]


def test_a_file_that_is_no_longer_a_notebook_counts_as_changed(copy, course):
    (copy / FIRST).write_bytes(b"{broken")
    save(course / FIRST, "newer")
    laid = working_copy.lay_out(copy, course)
    assert laid.beside == [(FIRST, "chapters/00_start.new.ipynb")]
    assert (copy / FIRST).read_bytes() == b"{broken"


def test_the_newer_version_is_no_chapter_of_its_own(copy, course, monkeypatch):
    save(copy / FIRST, "mine")
    save(course / FIRST, "newer")
    working_copy.lay_out(copy, course)
    monkeypatch.chdir(copy)
    assert [path.name for path in notebooks.find()] == ["00_start.ipynb"]
    assert [path.name for path in notebooks.find(["00"])] == ["00_start.ipynb"]


# The commands


def test_a_folder_for_the_copy(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert working_copy.default() == ROOT / "work"
    monkeypatch.setattr(working_copy, "originals", lambda: tmp_path / "course")
    monkeypatch.setattr(working_copy, "installed", lambda: tmp_path / "course")
    assert working_copy.default() == tmp_path / "d2lpar-course"
    monkeypatch.chdir(copy / "chapters")
    assert working_copy.default() == copy


def test_commands_in_a_copy_read_it_and_instructors_get_the_originals(
    copy, monkeypatch
):
    monkeypatch.chdir(copy)
    assert notebooks.course() == copy
    assert notebooks.repository() == notebooks.originals() == ROOT
    assert [path.parent.parent for path in authoring._writable(["00"])] == [copy]


def test_the_command_says_where_the_course_is(tmp_path):
    to = tmp_path / "mine"
    result = CliRunner().invoke(cli.app, ["course", "--to", str(to)])
    assert result.exit_code == 0
    expected = f"The course is in {to}. These copies are yours to change."
    assert result.stdout.replace("\n", "") == expected
    assert (to / FIRST).read_bytes() == (ROOT / FIRST).read_bytes()


def refused(*arguments):
    with pytest.raises(cli.Refused) as caught:
        CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    return str(caught.value)


def test_the_originals_are_no_copy():
    sentence = f"{ROOT} holds the originals. Name another folder."
    assert refused("course", "--to", str(ROOT)) == sentence
    assert not (ROOT / notebooks.MANIFEST).exists()


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    sentence = refused("course", "--to", str(tmp_path / "file"))
    assert sentence.startswith(f"The course cannot be laid out in {tmp_path}/file: ")


def reported(path, rights):
    """The checks of a notebook have reports, of which those of `rights` have passed."""
    notebook = notebooks.read(path)
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            name = re.search(r'check\("(.*?)"', cell["source"])[1]
            row = Row("outcome", "as it is", "all", name in rights)
            data = {"text/plain": str(Report(name, "A title", [row]))}
            cell["outputs"] = [{"output_type": "display_data", "data": data}]
        elif "solution" in cell["metadata"].get("nbgrader", {}):
            cell["source"] = "an answer"
    notebooks.write(path, notebook)


def progress(folder, *words):
    """Each line of the table that the command prints, in words, and what follows."""
    result = CliRunner().invoke(cli.app, ["progress", "--to", str(folder), *words])
    *lines, last = result.stdout.splitlines()
    return [re.findall(r"[^\s│┃,]+", line) for line in lines], last


def test_progress_is_what_the_saved_notebooks_show(tmp_path):
    folder = tmp_path / "copy"
    assert refused("progress", "--to", str(folder)).startswith("No copy of the course")
    working_copy.lay_out(folder)
    rows, before = progress(folder)
    assert ["03_splits", *"0 of 4 50 03.1 03.2 03.4".split()] in rows
    reported(folder / "exercises" / "03_splits.ipynb", {"03.1", "03.3"})
    chapter = folder / "chapters" / "03_splits.ipynb"
    chapter.write_bytes(chapter.read_bytes() + b"\n")
    rows, after = progress(folder)
    assert ["03_splits", *"yes 2 of 4 30 03.2 03.4".split()] in rows
    assert (before.split()[0], after.split()[0]) == ("0", "1")
    rows, last = progress(folder, "--reset")
    assert ["03_splits", *"yes 0 of 4 50 03.1 03.2 03.4".split()] in rows
    assert last == before
    assert "an answer" in (folder / "exercises" / "03_splits.ipynb").read_text()
    (folder / "exercises" / "04_messages.ipynb").write_text("{")
    assert "04_messages.ipynb is no notebook" in refused(
        "progress", "--to", str(folder)
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_chapter_run_in_the_copy_leaves_git_without_changes(tmp_path):
    """A small clone with an edited and executed copy in work/ has nothing to commit."""
    clone = tmp_path / "clone"
    save(clone / FIRST, "print(6 * 7)")
    shutil.copy(ROOT / ".gitignore", clone)
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "the course"]):
        subprocess.run([*git, *words], check=True)
    for words in (["course"], ["execute", "work/chapters/00_start.ipynb"]):
        command = [sys.executable, "-m", "d2lpar", *words]
        subprocess.run(command, cwd=clone, check=True, timeout=120)
    executed = json.loads((clone / "work" / FIRST).read_text())["cells"][0]
    assert executed["outputs"][0]["text"] == ["42\n"]
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True)
    assert status.stdout == b""
