"""Points and minutes: in the cells' metadata, and the same wherever they are told."""

import ast
import re
import shutil

import pytest

from authoring import minutes
from conftest import CHAPTERS, FURTHER, ROOT
from d2lpar.cli import catalogue
from d2lpar.cli import main as cli
from d2lpar.shared import notebooks

EACH = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
GUIDE = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")


@EACH
def test_minutes_are_those_of_the_rule(path):
    exercises = notebooks.read(ROOT / "exercises" / path.name)
    further = notebooks.further(path)
    changed = minutes.sync(notebooks.read(path), exercises, further)
    assert changed == [], f"run `d2lpar sync {path.stem[:2]}`"


@pytest.mark.parametrize("path", FURTHER, ids=lambda path: path.stem)
def test_a_chapter_in_two_parts_can_be_finished(path):
    core, further = notebooks.read(ROOT / "chapters" / path.name), notebooks.read(path)
    assert max(len(part["cells"]) for part in (core, further)) <= 90
    assert minutes.told(core).core <= 75


def prepares(cell):
    """Whether a code cell is plumbing: it imports, or it draws with pyplot."""
    tree = ast.parse(cell["source"]).body
    imports = all(isinstance(line, ast.Import | ast.ImportFrom) for line in tree)
    draws = re.search(r"\bplt\.|^d2lpar\.defaults|@title", cell["source"], re.M)
    return imports or draws is not None


@EACH
def test_at_most_15_percent_of_a_core_is_plumbing(path):
    cells = notebooks.read(path)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert sum(map(prepares, code)) <= 0.15 * len(code)


def lesson(*cells):
    """A chapter of which each cell takes some minutes."""
    notebook = {"cells": [{"cell_type": "markdown", "source": "# 05 X\n\n**Time:** ."}]}
    for source, kind in cells:
        cell = {"cell_type": kind, "source": source, "metadata": {}, "outputs": []}
        notebook["cells"].append(cell)
    return notebook


EXERCISES = notebooks.read(ROOT / "exercises" / "05_scatter.ipynb")
WORDS = "word " * 1500  # ten minutes


@pytest.mark.parametrize(
    ("cells", "core", "further"),
    [
        ([(WORDS, "markdown")], 10, 0),
        ([(WORDS, "markdown"), (f"# Further\n\n{WORDS * 2}", "markdown")], 10, 20),
        ([(f"## What the sources say\n\n{WORDS}", "markdown")], 0, 10),
        ([(f"# Summary\n\n{WORDS}\n## References\n{WORDS}", "markdown")], 10, 0),
        ([(f"# Further\n\n# On processes\n\n{WORDS}", "markdown")], 10, 0),
        ([(f"# On one GPU\n\n{WORDS}", "markdown")], 0, 10),
        ([("x = 1\n\n# comment\n" * 150, "code")], 10, 0),
        ([("# in d2lpar/x.py\n" + "x = 1\n" * 30, "code")], 10, 0),
        ([("# in d2lpar/x.py\ndef f():\n    '''X" + "\n" * 90 + "x'''", "code")], 0, 0),
    ],
)
def test_the_rule(cells, core, further):
    found = minutes.estimate(lesson(*cells), EXERCISES)
    assert found == (core, further, 90)


def test_outputs_count_and_folded_cells_do_not():
    notebook = lesson(*[("x = 1\n" * 75, "code")] * 2)
    first, second = notebook["cells"][1:]
    first["metadata"]["jupyter"] = {"source_hidden": True}
    assert minutes.estimate(notebook, EXERCISES).core == 5
    second["outputs"] = [{}]
    shown = {**first, "metadata": {}, "source": "1", "outputs": [{}]}
    notebook["cells"] += [shown] * 20
    assert minutes.estimate(notebook, EXERCISES).core == 10


def test_sync_writes_the_line_of_the_first_cell():
    notebook = lesson((WORDS, "markdown"), (f"# Further\n\n{WORDS}", "markdown"))
    ((_, new),) = minutes.sync(notebook, EXERCISES)
    line = "10 minutes to read, 10 more for *Further*, GPUs and the sources, 90 for the"
    assert f"**Time:** {line} exercises." in new
    assert minutes.sync(notebook, EXERCISES) == []
    assert minutes.told(notebook) == (10, 10, 90)
    with pytest.raises(ValueError, match="no line"):
        minutes.told(lesson())


def test_tables_plans_and_sums_follow_the_first_cells(tmp_path):
    for folder in ("chapters", "exercises"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("README.md", "INSTRUCTORS.md"):
        shutil.copy(ROOT / name, tmp_path)
    assert minutes.tables(tmp_path) == []
    path = tmp_path / "chapters" / "05_scatter.ipynb"
    chapter = notebooks.read(path)
    first = chapter["cells"][0]
    longer = minutes.line(minutes.Minutes(1115, 15, 45))
    first["source"] = minutes.TOLD.sub(longer, first["source"])
    notebooks.write(path, chapter)
    assert [p.name[:5] for p in minutes.tables(tmp_path)] == ["READM", "INSTR", "00_st"]
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    guide = (tmp_path / "INSTRUCTORS.md").read_text(encoding="utf-8")
    assert "reduce | **1115 + 45** |" in readme
    assert "| 05 scatter | 04 | 1115 | 15 | 45 |" in guide
    assert "| 14 weeks | 5 | 05 | 19.5 |" in guide
    start = notebooks.read(path.parent / "00_start.ipynb")
    assert "relatives | 1115 + 45 | here" in str(start)
    assert minutes.tables(tmp_path) == []


@EACH
def test_points_sum_up_and_the_hidden_tests_give_them(path):
    solution = notebooks.read(ROOT / "solutions" / path.name)
    for each in catalogue.listed(solution):
        assert each.points > 0 and each.minutes > 0
        hidden = rf'check\("{each.name}", \w+, seed=\d+\).score \* {each.points}\n'
        sources = "\n".join(cell["source"] for cell in solution["cells"])
        assert len(re.findall(hidden, sources)) == 1


def plans():
    """(weeks in all, week, chapters, hours) of every row."""
    row = r"^\| (\d+) weeks \| (\d+) \| ([\d, ]+) \| ([\d.]+) \|$"
    return re.findall(row, GUIDE, re.M)


def needs_table():
    """{chapter: chapters that it needs}."""
    table = GUIDE.split("## Plans")[0]
    rows = re.findall(r"^\| (\d\d) [^|]*\| ([\d, ]+) \|", table, re.M)
    return {name: needs.split(", ") for name, needs in rows}


def test_no_plan_has_a_chapter_before_those_that_it_needs():
    read = {}
    for plan, _, chapters, _ in plans():
        for name in chapters.split(", "):
            before = read.setdefault(plan, set())
            assert set(needs_table().get(name, ())) <= before, (plan, name)
            before.add(name)


def test_the_hours_of_the_plans():
    known = {p.stem[:2]: minutes.told(notebooks.read(p)) for p in CHAPTERS}
    weeks = {}
    for plan, week, chapters, hours in plans():
        needs = [known[name] for name in chapters.split(", ")]
        whole = sum(each.core + each.exercises for each in needs)
        assert float(hours) == round(whole / 30) / 2
        weeks.setdefault(plan, []).append(int(week))
    found = {int(plan): len(found) for plan, found in weeks.items()}
    assert found == {4: 4, 7: 7, 14: 13}


def test_the_graph_says_what_the_table_says():
    graph = GUIDE[GUIDE.index("```mermaid") : GUIDE.index("| chapter | needs |")]
    arrows = set()
    for line in re.findall(r"^  (\d\d --> .*)$", graph, re.M):
        names = line.split(" --> ")
        arrows |= set(zip(names, names[1:], strict=False))
    needed = needs_table().items()
    assert arrows == {(need, name) for name, needs in needed for need in needs}


def test_the_command_lists_them(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["d2lpar", "exercises", "05", "--list"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().out
    assert "05.1" in shown and "all of 05_scatter" in shown


def test_what_lacks_its_minutes_is_named():
    book = notebooks.read(ROOT / "exercises" / "05_scatter.ipynb")
    for cell in book["cells"]:
        cell["metadata"].pop("d2lpar", None)
    with pytest.raises(ValueError, match="05.1 has no points or no minutes"):
        catalogue.listed(book)


@EACH
def test_the_short_path_takes_at_most_45_minutes_of_a_chapters_exercises(path):
    exercises = notebooks.read(ROOT / "exercises" / path.name)
    short = [each for each in catalogue.listed(exercises) if each.short]
    assert bool(short) == (path.stem[:2] in minutes.SHORT)
    assert sum(each.minutes for each in short) <= 45
    assert minutes.heads(exercises) == []
