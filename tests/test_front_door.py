"""README, INSTRUCTORS and chapter 00 say of the chapters what the chapters say."""

import re

import pytest

from conftest import ROOT
from d2lpar.tools import notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTRUCTORS = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
CHAPTERS = {path.stem[:2]: path for path in sorted(ROOT.glob("chapters/*.ipynb"))}
SHORT = ["00", "03", "04", "05", "06", "07", "12", "13"]
LEFT_TO_DETAILS = 600  # words that a newcomer reads in two minutes, the table included


def minutes(number):
    """(core, further, exercises) by the first cell of a chapter."""
    text = notebooks.read(CHAPTERS[number])["cells"][0]["source"]
    line = re.search(r"\*\*Time:\*\*(.*?)(?=\n\*\*|\n\n|$)", text, re.S)[1]
    read = int(re.search(r"(\d+)\s+minutes", line)[1])
    more = re.search(r"and\s+(\d+)\s+more", line)
    part = re.search(r"of\s+which\s+(\d+)", line)
    further = int((more or part)[1]) if more or part else 0
    exercises = int(re.search(r"(\d+)\s+for\s+the\s+exercise", line)[1])
    return read - (further if part else 0), further, exercises


def rows(text, pattern):
    """Number of a chapter to the other groups of its row."""
    return {found[0]: found[1:] for found in re.findall(pattern, text, re.M)}


@pytest.mark.parametrize(
    ("number", "expected"),
    [("00", (15, 0, 5)), ("04", (50, 25, 75)), ("06", (80, 70, 120))],
)
def test_the_first_cell_is_read_rightly(number, expected):
    assert minutes(number) == expected


def test_the_map_in_the_readme():
    name, times = r"\[(\d\d) .*\]\((.*)\)", r"(\d+)(?: \((\d+)\))? \| (\d+)"
    found = rows(README, rf"^\|[^|]*\| {name} \|.*\| {times} \| (yes)? ?\|$")
    assert list(found) == list(CHAPTERS)
    for number, (path, read, further, exercises, short) in found.items():
        assert ROOT / path == CHAPTERS[number]
        shown = int(read), int(further or 0), int(exercises)
        assert shown == minutes(number), number
        assert bool(short) == (number in SHORT)


def test_the_short_path_is_nine_hours_of_reading():
    assert "nine\nhours of reading" in README
    assert round(sum(minutes(number)[0] for number in SHORT) / 60) == 9


def test_the_table_for_instructors():
    found = rows(
        INSTRUCTORS, r"^\| (\d\d) (?!weeks)[^|]*\|[^|]*\| (\d+)(?:, (\d+))? \| (\d+) \|"
    )
    assert list(found) == list(CHAPTERS)
    for number, (whole, further, exercises) in found.items():
        core, more, todo = minutes(number)
        shown = int(whole), int(further or 0), int(exercises)
        assert shown == (core + more, more, todo), number


def test_the_map_in_chapter_00():
    cells = [cell["source"] for cell in notebooks.read(CHAPTERS["00"])["cells"]]
    course = next(text for text in cells if "## The course" in text)
    found = rows(course, r"^\|[^|]*\| \[?(\d\d) .*\| (\d+) \+ (\d+) \|")
    assert list(found) == list(CHAPTERS)
    progress = next(text for text in cells if "minutes = {" in text)
    known = {}
    exec(progress, known)
    assert known["short"] == SHORT
    for number, (read, exercises) in found.items():
        core, _, todo = minutes(number)
        assert (int(read), int(exercises)) == (core, todo), number
        assert known["minutes"][number] == core


def test_the_front_of_the_readme_is_short():
    front = README.partition("\n# Details\n")[0]
    front = re.sub(r"!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)|[|#*`-]", " ", front)
    assert 300 < len(front.split()) < LEFT_TO_DETAILS


def anchors(text):
    """The addresses that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_inside_the_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), ROOT / "slurm" / "README.md"]:
        text = path.read_text(encoding="utf-8")
        inside = set(re.findall(r"\]\(#([^)]+)\)", text))
        assert inside <= anchors(text), path.name
