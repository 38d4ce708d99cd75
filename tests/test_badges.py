"""`d2lpar badges`: a fork's address in README and notebooks, and nothing else."""

import re
import shutil

import pytest
from typer.testing import CliRunner

from conftest import ROOT
from d2lpar import badges, cli, notebooks


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The files that are stamped, of two chapters."""
    names = [f"{folder}/{name}.ipynb" for folder in ("chapters", "exercises",
             "solutions") for name in ("00_start", "05_scatter")]  # fmt: skip
    for name in ("README.md", "d2lpar/notebooks.py", *names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
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
        assert sum('"git+https://github.com/ada/course"' in s for s in sources) == 1
        for i in differ:
            old["cells"][i].pop("source")
        assert len(differ) == 2 and new == old


def test_the_guard_of_the_install_cell_still_holds(clone):
    badges.stamp("ada/course", "v2")
    library = {}
    exec((clone / "d2lpar" / "notebooks.py").read_text(), library)
    cell = library["INSTALL_CELL"]
    assert library["ADDRESS"] == "git+https://github.com/ada/course@v2"
    assert cell in (clone / "README.md").read_text()
    for path in clone.glob("*/*.ipynb"):
        sources = [c["source"] + "\n" for c in notebooks.read(path)["cells"]]
        assert cell in sources


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x"], "--repo is OWNER/NAME, such as ada/d2lpar, not 'x'"),
        (["a/b/c"], "--repo is OWNER/NAME"),
        (["a/.."], "--repo is OWNER/NAME"),
        (["-a/b"], "--repo is OWNER/NAME"),
        (["https://github.com/a/b"], "--repo is OWNER/NAME"),
        (["a/b.git"], "--repo is OWNER/NAME"),
        (['a/b"c'], "--repo is OWNER/NAME"),
        (["a/b", "--branch", "x y"], "--branch is a name"),
    ],
)
def test_a_name_that_cannot_be_gets_a_sentence(clone, words, sentence):
    before = texts(clone)
    with pytest.raises(cli.Refused, match=re.escape(sentence)):
        CliRunner().invoke(
            cli.app, ["badges", "--repo", *words], catch_exceptions=False
        )
    assert texts(clone) == before


def test_a_page_that_asks_no_other_host_has_the_words(clone):
    badges.stamp("ada/course")
    text = (clone / "README.md").read_text()
    line = next(x for x in text.splitlines() if x.startswith("[![Open"))
    assert re.fullmatch(
        r"\[Open in Colab\]\(\S+\) \[Open in Kaggle\]\(\S+\)", badges.in_words(line)
    )


def test_nothing_is_stamped_here():
    if notebooks.ADDRESS != "d2lpar":
        pytest.skip(f"this clone is stamped: {notebooks.ADDRESS}")
    names = [ROOT / "README.md", *ROOT.glob("*/*.ipynb")]
    found = [p.name for p in names if "Open in Colab" in p.read_text(encoding="utf-8")]
    assert found == []
