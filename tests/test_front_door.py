"""README, INSTRUCTORS and chapter 00 say of the chapters what the chapters say."""

import re

from authoring import badges, minutes
from conftest import ROOT
from d2lpar.shared import notebooks

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
INSTRUCTORS = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
CHAPTERS = {path.stem[:2]: path for path in sorted(ROOT.glob("chapters/*.ipynb"))}
TOLD = minutes.known_in(ROOT)
START = [cell["source"] for cell in notebooks.read(CHAPTERS["00"])["cells"]]
MOST_WORDS, MOST_LINES = 700, 70  # the rest is in GUIDE.md


def rows(text, pattern):
    """Number of a chapter to the other groups of its row."""
    return {found[0]: found[1:] for found in re.findall(pattern, text, re.M)}


def test_the_map_in_the_readme():
    name, times = r"\[(\d\d) .*\]\((.*)\)", r"(\**)(\d+) \+ (\d+)\3"
    found = rows(README, rf"^\|[^|]*\| {name} \|.*\| {times} \|$")
    assert list(found) == list(TOLD)
    for number, (path, short, read, exercises) in found.items():
        whole = next(ROOT.glob(f"exercises/{number}_*"))  # of the whole course
        assert ROOT / path == CHAPTERS.get(number, whole)
        assert (int(read), int(exercises)) == TOLD[number][::2], number
        assert bool(short) == (number in minutes.SHORT)


def test_the_hours_of_the_short_path():
    course = next(text for text in START if "## The course" in text)
    read = round(sum(TOLD[number].core for number in minutes.SHORT) / 60)
    todo = round(minutes.short_in(ROOT) / 60)
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
    """A row for every chapter, and the hours of the short path that are left."""
    exec(next(text for text in START if "standing.show" in text), {})
    shown = capsys.readouterr().out
    assert all(f"{path.stem} " in shown for path in CHAPTERS.values())
    assert f"{minutes.short_in(ROOT) / 60:.1f} hours are left" in shown


def test_the_readme_is_short():
    text = badges.BADGES.sub("", README)
    assert len(text.splitlines()) <= MOST_LINES
    assert 400 < len(text.split()) <= MOST_WORDS


def test_the_commands_of_the_readme_are_there():
    """Whoever types its commands, one by one, meets files and targets that exist."""
    [run, simulate] = re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    assert [line.split()[:2] for line in run.splitlines()] == [
        ["make", "run"],
        ["make", "test"],
    ]
    assert "`make lab`" in README
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)).split()
    assert {"run", "test", "lab", "setup"} <= set(phony)
    words = simulate.split()
    assert words[:4] == ["make", "setup", ".venv/bin/d2lpar", "simulate"]
    assert (ROOT / words[-1]).is_file()


def test_the_details_are_one_link_away():
    assert "](GUIDE.md)" in README
    for target in set(re.findall(r"\]\(GUIDE\.md#([^)]+)\)", README)):
        assert target in anchors((ROOT / "GUIDE.md").read_text(encoding="utf-8"))


def anchors(text):
    """The addresses that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_inside_the_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), ROOT / "slurm" / "README.md"]:
        text = path.read_text(encoding="utf-8")
        inside = set(re.findall(r"\]\(#([^)]+)\)", text))
        assert inside <= anchors(text), path.name
