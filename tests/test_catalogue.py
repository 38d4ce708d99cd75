"""Points and minutes: in the cells' metadata, and the same wherever they are told."""

import re

import pytest

from conftest import ROOT
from d2lpar.tools import catalogue, cli, notebooks

CHAPTERS = sorted(ROOT.glob("chapters/*.ipynb"))
EACH = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
GUIDE = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")


def told(chapter):
    """(minutes to read, of which Further, for the exercises), by its first cell."""
    text = notebooks.read(chapter)["cells"][0]["source"]
    text = re.search(r"\*\*Time:\*\*(.*)", text)[1]
    read = int(re.search(r"(\d+) minutes", text)[1])
    more = re.search(r"and (\d+) more", text)
    inside = re.search(r"of which (\d+)", text)
    further = int((more or inside or [0, 0])[1])
    exercises = int(re.search(r"(\d+) for the exercise", text)[1])
    return read + further * bool(more), further, exercises


def guide_table():
    """{chapter: (minutes to read, of which Further, for the exercises)}."""
    rows = re.findall(r"^\| (\d\d) .*\| ([\d, ]+) \| (\d+) \|$", GUIDE, re.M)
    split = {name: (*map(int, read.split(", ")), 0)[:2] for name, read, _ in rows}
    return {name: (*split[name], int(minutes)) for name, _, minutes in rows}


@EACH
def test_minutes_are_the_same_in_chapter_exercises_and_guide(path):
    found = catalogue.listed(notebooks.read(ROOT / "exercises" / path.name))
    assert sum(each.minutes for each in found) == told(path)[2]
    assert guide_table()[path.stem[:2]] == told(path)


@EACH
def test_points_sum_up_and_the_hidden_tests_give_them(path):
    solution = notebooks.read(ROOT / "solutions" / path.name)
    for each in catalogue.listed(solution):
        assert each.points > 0 and each.minutes > 0
        hidden = rf'check\("{each.name}", \w+, seed=\d+\).score \* {each.points}\n'
        assert (
            len(re.findall(hidden, "\n".join(c["source"] for c in solution["cells"])))
            == 1
        )


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
    minutes, weeks = guide_table(), {}
    for plan, week, chapters, hours in plans():
        needs = [minutes[name] for name in chapters.split(", ")]
        whole = sum(read - further + exercises for read, further, exercises in needs)
        assert float(hours) == round(whole / 30) / 2
        weeks.setdefault(plan, []).append(int(week))
    assert {int(plan): len(found) for plan, found in weeks.items()} == {
        4: 4,
        7: 7,
        14: 13,
    }


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
