"""README, INSTRUCTORS and chapter 00 say of the chapters what the chapters say."""

import re

from authoring import minutes
from conftest import ROOT
from d2lpar.shared import notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTRUCTORS = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
CHAPTERS = {path.stem[:2]: path for path in sorted(ROOT.glob("chapters/*.ipynb"))}
TOLD = minutes.known_in(ROOT)
START = [cell["source"] for cell in notebooks.read(CHAPTERS["00"])["cells"]]
LEFT_TO_DETAILS = 600  # words that a newcomer reads in two minutes, the table included


def rows(text, pattern):
    """Number of a chapter to the other groups of its row."""
    return {found[0]: found[1:] for found in re.findall(pattern, text, re.M)}


def test_the_map_in_the_readme():
    name, times = r"\[(\d\d) .*\]\((.*)\)", r"(\d+)(?: \((\d+)\))? \| (\d+)"
    found = rows(README, rf"^\|[^|]*\| {name} \|.*\| {times} \| (yes)? ?\|$")
    assert list(found) == list(TOLD)
    for number, (path, read, further, exercises, short) in found.items():
        whole = next(ROOT.glob(f"exercises/{number}_*"))  # of the whole course
        assert ROOT / path == CHAPTERS.get(number, whole)
        shown = int(read), int(further or 0), int(exercises)
        assert shown == TOLD[number], number
        assert bool(short) == (number in minutes.SHORT)


def test_the_hours_of_the_short_path():
    course = next(text for text in START if "## The course" in text)
    read = round(sum(TOLD[number].core for number in minutes.SHORT) / 60)
    todo = round(sum(TOLD[number].exercises for number in minutes.SHORT) / 60)
    for text in (README, course):
        said = f"about {read} hours to read, and {todo} for its exercises"
        assert said in " ".join(text.split())


def test_the_table_for_instructors():
    found = rows(
        INSTRUCTORS, r"^\| (\d\d) (?!weeks)[^|]*\|[^|]*\| (\d+) \| (\d+) \| (\d+) \|$"
    )
    assert list(found) == list(TOLD)
    for number, shown in found.items():
        assert tuple(map(int, shown)) == TOLD[number], number


def test_the_map_in_chapter_00():
    course = next(text for text in START if "## The course" in text)
    found = rows(course, r"^\|[^|]*\| \[?(\d\d) .*\| (\d+) \+ (\d+) \|")
    assert list(found) == list(TOLD)
    for number, (read, exercises) in found.items():
        assert (int(read), int(exercises)) == TOLD[number][::2], number


def test_the_progress_in_chapter_00(capsys):
    progress = next(text for text in START if "short = [" in text)
    known = {}
    exec(progress, known)
    assert (known["short"], known["whole"]) == (minutes.SHORT, list(CHAPTERS))
    assert "short path    1 of  8 chapters, next: 03" in capsys.readouterr().out
    exec(progress.replace('{"00"}', "set(whole)"), known)
    assert capsys.readouterr().out.count("finished") == 2


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
