"""Which numbers in a chapter's text no cell answers for.

Looked at are results: numbers with a unit, percentages, factors ("330 us", "38 %",
"three times"), and all other numbers of two digits or more.  A cell answers for one

- where a comment binds it to an expression (see `authoring.prose`);
- where a cell around the text prints it, in output that is compared;
- where an `assert` around the text names it, in this unit or in seconds and bytes;
- where the code around the text names it, in seconds and bytes, or without a unit
  ("64 ranks"): that is a definition.

Around a text are the code cells up to the text before it and up to the one behind it.
Left out are code, formulas, quotations, headings, years, numbers of chapters and
sections, and the sections that only list.

    python tests/prose_rules.py 07      the numbers of chapter 07 that are left
"""

import ast
import math
import re
import sys

from authoring import prose
from d2lpar.shared import notebooks

IGNORE = "nbval-ignore-output"
PREFIX = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SCALE = {"": 1, "times": 1, "fold": 1, "%": 0.01, "percent": 0.01}
SCALE |= {"s": 1, "seconds": 1, "ms": 1e-3, "milliseconds": 1e-3, "ns": 1e-9}
SCALE |= {"us": 1e-6, "µs": 1e-6, "microseconds": 1e-6}
SCALE |= {"bytes": 1, "kilobytes": 1e3, "megabytes": 1e6, "gigabytes": 1e9}
SCALE |= {"Gbit/s": 1e9 / 8, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SCALE |= {f"{p}B{per}": v for p, v in PREFIX.items() for per in ("", "/s")}
SCALE |= {f"{p}FLOP{end}": v for p, v in PREFIX.items() for end in ("", "s", "/s")}
UNITS = "|".join(map(re.escape, sorted(filter(None, SCALE), key=len, reverse=True)))
UNIT = re.compile(rf"[-\s]?(?P<name>{UNITS})(?![\w/])|x(?!\w)")
LISTED = re.compile(r"(?:,|,? and| to| or| against|,? then)\s+$")
FACTOR = re.compile(r"\bfactors? (?:of|between)\s+(?:(?:about|nearly|almost)\s+)?$")
NUMBERED = re.compile(
    r"\b(?:chapters?|sections?|figures?|tables?|exercises?|step|rank|ranks)\s+"
    r"(?:[\d.]+(?:,| to| and)\s+)*$",
    re.IGNORECASE,
)
NO_RESULT = re.compile(
    r"(?:19|20)\d\d|0\d|\d|\D+"
)  # a year, a chapter, a digit, a word
HIDDEN = re.compile(
    r"<!--.*?-->|```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$|\[[\d., ]+[^]]*\]\([^)]*\)"
    r"|\|\s*[01]\d(?:, [01]\d)*\s*(?=\|)|\]\([^)]*\)|<[^>]+>"
    r"|^\*\*Time:\*\*.*$|[\"“][^\"“”]{12,}?[\"”]",
    re.DOTALL | re.MULTILINE,
)
LISTS = {"References", "Exercises", "In other words", "The course"}


def results(text):
    """[(number, its unit or "")] of the results that a text names."""
    clear, found = prose.masked(text, HIDDEN), {}
    every = prose.numbers(clear)
    for place, number in enumerate(every):
        unit = UNIT.match(clear, number.end)
        factor = FACTOR.search(clear[: number.start])
        if number.text.lower() in prose.LOOSE or number.text.lower() == "one":
            continue
        if unit or factor:
            name = (unit and unit["name"]) or "times"
            if name == "bytes" and number.text.isalpha():
                continue  # the size of a number: "four bytes each"
            found[number] = name
            while place and LISTED.fullmatch(
                clear[every[place - 1].end : number.start]
            ):
                place, number = place - 1, every[place - 1]
                found[number] = name
        elif not NO_RESULT.fullmatch(number.text):
            if not NUMBERED.search(clear[: number.start]):
                found.setdefault(number, "")
    return sorted(found.items())


def passages(notebook):
    """(place, text of a markdown cell without lists, code cells around it) of each."""
    cells, listing = notebook["cells"], False
    texts = [i for i, cell in enumerate(cells) if cell["cell_type"] == "markdown"]
    edges = zip([-1, *texts], texts, [*texts[1:], len(cells)], strict=False)
    for before, place, behind in edges:
        kept = ""
        for part in re.split(r"(?m)^(?=#{1,3} )", cells[place]["source"]):
            heading = re.match(r"#{1,3} (.*)\n?", part)
            listing = heading[1] in LISTS if heading else listing
            skipped = len(part) if listing else heading.end() if heading else 0
            kept += " " * skipped + part[skipped:]
        yield place, kept, cells[before + 1 : place] + cells[place + 1 : behind]


def unbound(notebook):
    """[(place of the cell, words around the number)] of results without a cell."""
    left = []
    for place, text, code in passages(notebook):
        shown, asserted = printed(code), literals(code, ast.Assert)
        named = literals(code)
        tied = {n.start for b in prose.bindings(text) for n in prose.bound_by(b)}
        for number, unit in results(text):
            scaled, exact = number.value * SCALE[unit], number.value >= 10
            known = (number.text, unit) in shown
            known = known or _among(scaled, asserted if SCALE[unit] == 1 else named)
            known = known or exact and _among(number.value, asserted if unit else named)
            if number.start not in tied and not known:
                words = prose.masked(text)[max(0, number.start - 40) : number.end + 15]
                left.append((place, " ".join(words.split())))
    return left


def _among(wanted, values):
    return any(math.isclose(wanted, value) for value in values)


def printed(code):
    """{(number, its unit or "")} in what these cells show and nbval compares."""
    found = set()
    for cell in code:
        if IGNORE not in cell["metadata"].get("tags", []):
            for output in cell["outputs"]:
                text = output.get("text") or output.get("data", {}).get(
                    "text/plain", ""
                )
                found |= {(number.text, unit) for number, unit in results(text)}
                found |= {(number.text, "") for number in prose.numbers(text)}
    return found


def literals(code, inside=ast.AST):
    """The numbers that these cells name, or their statements of one kind."""
    found = set()
    for cell in code:
        try:
            tree = ast.parse(cell["source"])
        except SyntaxError:  # a magic
            continue
        for part in (node for node in ast.walk(tree) if isinstance(node, inside)):
            values = (getattr(node, "value", None) for node in ast.walk(part))
            found |= {float(v) for v in values if type(v) in (int, float)}
    return found


def unfit(notebook):
    """Comments that cannot work: (place of the cell, what is wrong)."""
    started = False
    for place, cell in enumerate(notebook["cells"]):
        started = started or cell["cell_type"] == "code"
        if cell["cell_type"] != "markdown" or "<!--" not in cell["source"]:
            continue
        wrong = prose.complaint(cell["source"])
        code = re.findall(r"```.*?```|`[^`\n]*`", prose.masked(cell["source"]), re.S)
        raw = re.findall(r"```.*?```|`[^`\n]*`", cell["source"], re.S)
        if wrong:
            yield place, wrong
        elif len(code) != len(raw) or any("<!--" in text for text in raw):
            yield place, "a comment inside code is shown"
        elif not started and not all(
            prose.is_reason(bound.expression)
            for bound in prose.bindings(cell["source"])
        ):
            yield place, "no cell above this text can have computed it"


def problems(notebook):
    """Every complaint about the numbers of a chapter's text."""
    found = [f"cell [{place}]: {wrong}" for place, wrong in unfit(notebook)]
    if found:
        return found
    return [f"cell [{p}]: no cell computes: {words}" for p, words in unbound(notebook)]


if __name__ == "__main__":
    for path in notebooks.find(sys.argv[1:]):
        complaints = problems(notebooks.read(path))
        print(f"{path.stem}: {len(complaints)}", *complaints, sep="\n  ")
