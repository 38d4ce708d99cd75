"""How long a chapter takes, by one rule, wherever it is said.

To read: 150 words a minute, 4 seconds for a line of code, 20 for a line of the library,
15 to look at an output.  Not counted are comments, docstrings, folded cells and the
lists behind the summary.  *Further*, what is about GPUs and *What the sources say* are
told apart, since no later chapter needs them.  To exercise: the minutes that each
exercise declares.  All are rounded to five minutes.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from d2lpar.cli import catalogue
from d2lpar.shared import notebooks

from . import inline_code

WORD, LINE, LIBRARY, OUTPUT = 1 / 150, 4 / 60, 20 / 60, 15 / 60  # minutes
APART = {"Further", "On one GPU", "On real GPUs", "What the sources say"}
LISTS = ("In other words", "Exercises", "References", "Appendix")
ROW = re.compile(r"(?m)^- \*\*(\d\d\.\d) (?:.|\n  )*$")  # of the list in a summary
EFFORT = re.compile(r" \*\(\d+ minutes[^)]*\)\*$")
HEAD = re.compile(r"^(## (\d\d\.\d) .+\n\n\*[^*]+\*)(?: \(\d+ minutes[^)]*\))?")
SHORT = ["00", "03", "04", "05", "06", "07", "12", "13"]
TOLD = re.compile(r"(?m)^\*\*Time:\*\* .*$")


class Minutes(NamedTuple):
    """Minutes to read what later chapters need, to read the rest, and to exercise."""

    core: int
    further: int
    exercises: int


def estimate(chapter, exercises, further=None):
    """The Minutes of a chapter, its exercises and its Further part, by the rule."""
    spent = {False: 0.0, True: 0.0}
    apart, listing = False, False
    if further:
        spent[True] = sum(estimate(further, {"cells": []})[:2])
    for cell in chapter["cells"]:
        if cell["cell_type"] == "code":
            spent[apart] += _code(cell)
            continue
        for line in cell["source"].splitlines():
            heading = re.match(r"(#{1,3}) (.*)", line)
            if heading:
                listing = heading[2].startswith(LISTS)
                if heading[1] == "#" or heading[2] in APART:
                    apart = heading[2] in APART
            spent[apart] += 0 if listing else WORD * len(line.split())
    declared = sum(each.minutes for each in catalogue.listed(exercises))
    return Minutes(*(5 * round(m / 5) for m in (spent[False], spent[True], declared)))


def _code(cell):
    if cell["metadata"].get("jupyter", {}).get("source_hidden"):
        return 0.0
    per_line = LIBRARY if inline_code.is_marked(cell) else LINE
    return per_line * len(_lines(cell["source"])) + OUTPUT * bool(cell["outputs"])


def _lines(source):
    """The numbers of the lines that are code: no blank, comment or docstring."""
    lines = source.splitlines()
    kept = {n for n, s in enumerate(lines, 1) if s.strip() and s.strip()[0] != "#"}
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic
        return kept
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            text = node.body[0]
            kept -= set(range(text.lineno, text.end_lineno + 1))
    return kept


def line(minutes):
    """The line that a chapter's first cell has: "**Time:** 80 minutes to read, ..."."""
    core, further, exercises = minutes
    more = f", {further} more for *Further*, GPUs and the sources" if further else ""
    return f"**Time:** {core} minutes to read{more}, {exercises} for the exercises."


def told(chapter):
    """The Minutes that a chapter's first cell says.  ValueError if it says none."""
    found = TOLD.search(chapter["cells"][0]["source"])
    if not found or len(figures := re.findall(r"\d+", found[0])) not in (2, 3):
        raise ValueError("The first cell has no line **Time:** with minutes.")
    core, *further, exercises = map(int, figures)
    return Minutes(core, sum(further), exercises)


def sync(chapter, exercises, further=None):
    """The first cell and the list of exercises say what the rule says, easiest first.

    Returns [(old, new)] of the sources of cells.
    """
    known = {each.name: each for each in catalogue.listed(exercises)}
    changed = []
    for cell in chapter["cells"]:
        old = cell["source"]
        rows = [m for m in ROW.finditer(old) if m[1] in known]
        told = [f"{EFFORT.sub('', m[0])} *({known[m[1]].effort})*" for m in rows]
        ranks = [(not known[m[1]].short, known[m[1]].minutes, m[1]) for m in rows]
        told = [row for _, row in sorted(zip(ranks, told, strict=True))]
        for row, new in reversed([*zip(rows, told, strict=True)]):
            start, stop = row.span()
            cell["source"] = cell["source"][:start] + new + cell["source"][stop:]
        if cell is chapter["cells"][0]:
            now = line(estimate(chapter, exercises, further))
            cell["source"] = TOLD.sub(now, cell["source"])
        if cell["source"] != old:
            changed.append((old, cell["source"]))
    return changed


def heads(exercises):
    """Every exercise says below its heading what it takes, as the list does."""
    known, changed = {each.name: each for each in catalogue.listed(exercises)}, []
    for cell in exercises["cells"]:
        old = cell["source"]
        effort = lambda m: f"{m[1]} ({known[m[2]].effort}.)"
        if cell["cell_type"] == "markdown":
            cell["source"] = HEAD.sub(effort, old)
            changed += [(old, cell["source"])] * (cell["source"] != old)
    return changed


def tables(root):
    """Bring the tables of README, INSTRUCTORS and chapter 00 up to the first cells.

    Returns the paths that were changed; [] where there is no README to change.
    """
    root = Path(root)
    if not (root / "INSTRUCTORS.md").is_file():
        return []
    paths = sorted(root.glob("chapters/*.ipynb"))
    known, short, changed = known_in(root), short_in(root), []
    for path in (root / "README.md", root / "INSTRUCTORS.md"):
        old = path.read_text(encoding="utf-8")
        if (new := in_text(old, known, short)) != old:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    start = notebooks.read(paths[0])
    for cell in start["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = in_text(cell["source"], known, short)
    if start != notebooks.read(paths[0]):
        notebooks.write(paths[0], start)
        changed.append(paths[0])
    return changed


def known_in(root):
    """{number: Minutes} of chapters, then of exercises to the whole course."""
    paths = sorted(Path(root).glob("chapters/*.ipynb"))
    known = {path.stem[:2]: told(notebooks.read(path)) for path in paths}
    for path in sorted(Path(root).glob("exercises/*.ipynb")):
        if path.stem[:2] not in known:
            every = catalogue.listed(notebooks.read(path))
            declared = sum(each.minutes for each in every)
            known[path.stem[:2]] = Minutes(0, 0, 5 * round(declared / 5))
    return known


def short_in(root):
    """Minutes of all exercises that the short path asks for."""
    paths = sorted(Path(root).glob("exercises/*.ipynb"))
    every = [each for path in paths for each in catalogue.listed(notebooks.read(path))]
    return sum(each.minutes for each in every if each.short)


def in_text(text, known, short):
    """The text with the minutes of its tables, plans and sums as in `known`."""
    for number, (core, further, todo) in known.items():
        row = rf"(?m)^(\|[^|\n]*[^|\d\n]\| \[?{number} [^|\n\d][^|\n]*\|[^|\n]*\|)"
        new = rf"\1 \g<2>{core} + {todo}\g<2> |"
        text = re.sub(row + r" (\**)\d+ \+ \d+\** \|", new, text)
        row = rf"(?m)^(\| {number} [^|\n]*\|[^|\n]*\|) \d+ \| \d+ \| \d+ \|$"
        text = re.sub(row, rf"\1 {core} | {further} | {todo} |", text)
    text = re.sub(
        r"(?m)^(\| \d+ weeks \| \d+ \| ([\d, ]+) \|) [\d.]+ \|",
        lambda row: f"{row[1]} {_hours(row[2].split(', '), known)} |",
        text,
    )
    read = round(sum(known[number].core for number in SHORT) / 60)
    todo = round(short / 60)
    sums = r"\d+( hours\s+to\s+read,\s+and\s+)\d+( for\s+its\s+exercises)"
    return re.sub(sums, rf"{read}\g<1>{todo}\g<2>", text)


def _hours(chapters, known):
    """Half hours for the Core and the exercises of these chapters, as in "2.5"."""
    whole = sum(known[name].core + known[name].exercises for name in chapters)
    return f"{round(whole / 30) / 2:g}"
