"""`d2lpar badges`: a course's address in README and notebooks, and nothing else."""

import re
import shutil

import pytest
from typer.testing import CliRunner

from authoring import badges
from conftest import ROOT
from d2lpar.cli import main as cli
from d2lpar.shared import notebooks


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The files that are stamped, of two chapters."""
    names = [f"{folder}/{name}.ipynb" for folder in ("chapters", "exercises",
             "solutions") for name in ("00_start", "05_scatter")]  # fmt: skip
    for name in ("README.md", "d2lpar/shared/first_cell.py", *names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    badges.stamp(None)  # whoever tests a stamped clone tests the same
    return tmp_path


def texts(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*.*")) if p.is_file()}


def test_twice_is_once_and_another_name_replaces(clone):
    first = badges.stamp("ada/course")
    once = texts(clone)
    assert len(first) == 8 and badges.stamp("ada/course") == []
    assert texts(clone) == once
    assert badges.stamp("b/c", "v2") == first
    assert not any(b"ada/course" in text for text in texts(clone).values())
    assert badges.stamp("ada/course") == first
    assert texts(clone) == once


def test_a_badge_opens_its_own_notebook_and_outputs_stay(clone):
    files = sorted(clone.glob("*/*.ipynb"))
    before = [notebooks.read(path) for path in files]
    badges.stamp("ada/course")
    for path, old in zip(files, before, strict=True):
        new = notebooks.read(path)
        lines = new["cells"][0]["source"].splitlines()
        assert lines[0] == old["cells"][0]["source"].splitlines()[0]
        folder = "chapters" if path.parent.name == "chapters" else "exercises"
        where = f"ada/course/blob/main/{folder}/{path.name})"
        assert f"(https://colab.research.google.com/github/{where}" in lines[2]
        assert f"welcome?src=https://github.com/{where}" in lines[2]
        differ = [i for i, (a, b) in enumerate(zip(old["cells"], new["cells"],
                  strict=True)) if a != b]  # fmt: skip
        sources = [new["cells"][i].pop("source") for i in differ]
        assert sum('"git+https://github.com/ada/course"  #' in s for s in sources) == 1
        for i in differ:
            old["cells"][i].pop("source")
        assert len(differ) == 2 and new == old


def test_every_notebook_has_the_same_cell(clone):
    badges.stamp("ada/course", "v2")
    cell = (clone / "d2lpar/shared/first_cell.py").read_text(encoding="utf-8")
    assert 'address = "git+https://github.com/ada/course@v2"  # @param' in cell
    for path in clone.glob("*/*.ipynb"):
        [first, *_] = [c for c in notebooks.read(path)["cells"] if "outputs" in c]
        assert first["source"] + "\n" == cell
        assert first["metadata"] == badges.HIDDEN


def test_what_is_removed_leaves_no_trace(clone):
    before = texts(clone)
    badges.stamp("ada/course")
    assert len(badges.stamp(None)) == 8
    assert texts(clone) == before


def test_elsewhere_than_on_github_there_are_no_badges(clone):
    badges.stamp("ada/course")
    badges.stamp("https://gitlab.com/school/courses/d2lpar")
    for path, text in texts(clone).items():
        assert b"![Open in Colab]" not in text and b"ada/course" not in text, path
        if path.suffix == ".ipynb":
            address = rb"address = \"git+https://gitlab.com/school/courses/d2lpar\""
            assert address in text


HASH, COMMIT = "0a" * 32, "1b" * 20
WHEEL = "https://example.com/d2lpar-0.1.0-py3-none-any.whl"
ADA = "git+https://github.com/ada/course"
PLACES = {  # the words: what pip installs, whether there are badges
    ("ada/course",): (ADA, True),
    ("https://github.com/ada/course.git",): (ADA, True),
    (f"{ADA}/",): (ADA, True),
    ("ada/course", "v2"): (f"{ADA}@v2", True),
    ("ada/course", "v2", COMMIT): (f"{ADA}@{COMMIT}", True),
    ("https://gitlab.com/a/b/c", "v2"): ("git+https://gitlab.com/a/b/c@v2", False),
    ("git@example.com:a/b.git",): ("git+ssh://git@example.com/a/b.git", False),
    ("ssh://git@example.com:2222/a",): ("git+ssh://git@example.com:2222/a", False),
    ("/srv/courses/d2lpar.git",): ("git+file:///srv/courses/d2lpar.git", False),
    (WHEEL,): (WHEEL, False),
    (WHEEL, "main", HASH): (f"{WHEEL}#sha256={HASH}", False),
    (f"{WHEEL}#sha256={HASH}",): (f"{WHEEL}#sha256={HASH}", False),
    (f"/x y/d2lpar-1.whl#sha256={HASH}",): (
        f"file:///x%20y/d2lpar-1.whl#sha256={HASH}", False),
    ("pypi:0.1.0",): ("d2lpar==0.1.0", False),
}  # fmt: skip


@pytest.mark.parametrize("words", PLACES)
def test_what_pip_installs(words):
    address, github = badges.place(*words)
    assert (address, bool(github)) == PLACES[words]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--repo", "x"], "--repo is OWNER/NAME on GitHub, the address of a Git"),
        (["--repo", "a/b/c"], "--repo is OWNER/NAME"),
        (["--repo", "a/.."], "--repo is OWNER/NAME"),
        (["--repo=-a/b"], "--repo is OWNER/NAME"),
        (["--repo", 'a/b"c'], "--repo is OWNER/NAME"),
        (["--repo", "http://example.com/a"], "--repo is OWNER/NAME"),
        (["--repo", "https://me:secret@example.com/a"], "--repo is OWNER/NAME"),
        (["--repo", 'https://example.com/"+x+"'], "--repo is OWNER/NAME"),
        (["--repo", f"https://example.com/a#sha256={HASH}"], "--repo is OWNER/NAME"),
        (["--repo", "pypi:latest"], "--repo is OWNER/NAME"),
        (["--repo", "a/b", "--branch", "x y"], "--branch is a name"),
        (["--repo", "a/b", "--hash", "1b1b1b1"], "--hash is a whole commit, 40"),
        (["--repo", WHEEL, "--hash", COMMIT], "--hash is the SHA-256 of the wheel, 64"),
        (["--repo", "pypi:1", "--hash", HASH], "--hash cannot be given with pypi:"),
        ([], "Give either --repo and an address, or --remove"),
        (["--repo", "a/b", "--remove"], "Give either --repo and an address"),
    ],
)
def test_a_name_that_cannot_be_gets_a_sentence(clone, words, sentence):
    before = texts(clone)
    with pytest.raises(cli.Refused, match=re.escape(sentence)):
        CliRunner().invoke(cli.app, ["badges", *words], catch_exceptions=False)
    assert texts(clone) == before


def test_nothing_is_stamped_here():
    if 'address = ""' not in notebooks.INSTALL_CELL:
        pytest.skip("this clone is stamped")
    names = [ROOT / "README.md", *ROOT.glob("*/*.ipynb")]
    found = [
        p.name for p in names if "![Open in Colab]" in p.read_text(encoding="utf-8")
    ]
    assert found == []
