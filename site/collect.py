"""The sources of the site, made from the repository: `python site/collect.py FOLDER`.

Sphinx wants one first-level heading per page, pictures with their texts where it looks
for them, and no picture from another host.  The notebooks stay as they are; the copies
in FOLDER have it so.  The pages written for the site lie beside this file.
"""

import base64
import re
import shutil
import sys
from pathlib import Path

import address

from authoring import glossary, inline_code
from d2lpar.report import player
from d2lpar.shared import notebooks

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("GUIDE.md", "INSTRUCTORS.md", "CONTRIBUTING.md", "CHANGELOG.md")
PICTURES = (".png", ".gif", ".svg", ".jpg")
FOLDERS = (notebooks.CORE, notebooks.FURTHER, "exercises")
HEADING = re.compile(r"^(#+)(?= )", re.MULTILINE)
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^]]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
EXTRA = "extra"  # what Sphinx copies as it is, and makes no pages of
COVER = ("00_start", "gather: Timeline", "ring: Timeline")


def page(notebook, path=None):
    """The notebook as Sphinx wants it, in place.

    With its `path` in the repository it gets a row of links below its title.
    """
    cells = notebook["cells"]
    links = address.launch_links(notebook, path) if path else []
    texts = [cell for cell in cells if cell["cell_type"] == "markdown"]
    for cell, text in zip(texts, one_title([c["source"] for c in texts]), strict=True):
        cell["source"] = address.without_badges(text)
    if links:
        title, _, rest = cells[0]["source"].partition("\n")
        row = address.launch(links)
        cells[0]["source"] = f"{title}\n\n{row}\n\n{rest.lstrip()}".rstrip()
    for cell in cells:
        if cell["source"].strip() == notebooks.INSTALL_CELL.strip():
            cell["metadata"]["tags"] = ["hide-input"]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if notebooks.EVENTS in data:
                png = data["image/png"]
                data["text/html"] = player.page_of(data.pop(notebooks.EVENTS), png)
            alt = output.get("metadata", {}).get("image/png", {}).get("alt")
            if alt:
                cell["metadata"]["mystnb"] = {"image": {"alt": alt}}
    return notebook


def one_title(texts):
    """The texts with their headings one level lower, if several are of the first.

    A chapter has parts, `# Core` and `# Further`, beside its title.
    """
    outside = "\n".join(_outside(text) for text in texts)
    several = len(re.findall(r"^# ", outside, re.MULTILINE)) > 1
    if not several:
        return texts
    lower = [
        _everywhere_outside(text, lambda s: HEADING.sub(r"#\1", s)) for text in texts
    ]
    return [lower[0].replace("##", "#", 1), *lower[1:]]


def _outside(text):
    return FENCE.sub("", text)


def _everywhere_outside(text, change):
    parts = FENCE.split(text)
    return "".join(p if p.startswith("```") else change(p) for p in parts)


def document(text, folder):
    """A document of the repository; a link to what the site has not is its text.

    Pictures are copied into `folder`, where the page lies.
    """

    def linked(match):
        shown, target, anchor = match.groups()
        if target == "README.md":
            return f"[{shown}](index.md)"
        if target in DOCUMENTS or target.startswith(FOLDERS):
            return match.group()
        if not target.endswith(PICTURES) or not (ROOT / target).is_file():
            return shown
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / target, folder / target)
        return match.group()

    text = address.BADGE.sub(r"[\1](\2)", text).replace("```mermaid", "```text")
    return _everywhere_outside(text, lambda part: LINK.sub(linked, part))


def course_map():
    """The README's table of the course; every chapter that is there is linked."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for head, *rows in glossary.tables(text):
        if "chapter" in head:
            return _markdown([head, *([_linked(cell) for cell in row] for row in rows)])
    raise ValueError("The README has no table with a column 'chapter'.")


def _linked(cell):
    number = re.match(r"(\d\d) ", cell)
    for folder in FOLDERS if number else ():
        for path in sorted((ROOT / folder).glob(f"{number[1]}_*.ipynb")):
            return f"[{cell}]({folder}/{path.name})"
    return cell


def words():
    """The table of words in chapter 00."""
    for cell in notebooks.read(ROOT / "chapters" / "00_start.ipynb")["cells"]:
        for table in glossary.tables(cell["source"]):
            if table[0][0] == "word":
                return _markdown(table)
    raise ValueError("Chapter 00 has no table that starts with | word |.")


def _markdown(table):
    rows = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def run_it():
    """How to get the course onto one's own machine, as far as that is known."""
    start = notebooks.read(ROOT / "chapters" / "00_start.ipynb")
    command = address.clone_command(address.repository(start))
    if not command:
        return (
            "In a clone of the repository, `make lab` opens the course in JupyterLab."
        )
    return f"With Python 3.11 to 3.13 and `make`, type in a terminal:\n\n{command}"


def cover():
    """PNG and alternative text of the picture that chapter 00 ends its ring with."""
    name, *wanted = COVER
    for cell in notebooks.read(ROOT / "chapters" / f"{name}.ipynb")["cells"]:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if all(part in alt for part in wanted):
                return base64.b64decode(output["data"]["image/png"]), alt
    raise ValueError("Chapter 00 has no picture of gather and ring.")


def pages_of(*folders):
    """The toctree lines of the notebooks of these folders, by name."""
    lines = [f"{f}/{path.stem}" for f in folders for path in (ROOT / f).glob("*.ipynb")]
    return "\n".join(sorted(lines, key=lambda line: line.rpartition("/")[2]))


def built():
    """A section for each module that a chapter shows, in the order of the course."""
    sections, seen = [], set()
    for name in pages_of(notebooks.CORE, notebooks.FURTHER).split():
        path = ROOT / f"{name}.ipynb"
        shown = filter(inline_code.is_marked, notebooks.read(path)["cells"])
        modules = dict.fromkeys(inline_code.module_of(c["source"]) for c in shown)
        names = dict.fromkeys(str(Path(module).with_suffix("")) for module in modules)
        new = [name.replace("/", ".") for name in names if name not in seen]
        seen |= names.keys()
        if new:
            title = notebooks.read(path)["cells"][0]["source"].splitlines()[0][2:]
            directives = "\n".join(f".. automodule:: d2lpar.{name}" for name in new)
            sections.append(f"## {title}\n\n```{{eval-rst}}\n{directives}\n```")
    return "\n\n".join(sections)


def filled(text):
    """A page of the site, `{{ name }}` replaced by what the repository says."""
    blanks = {
        "alt": lambda: cover()[1],
        "course map": course_map,
        "words": words,
        "run it": run_it,
        "modules": built,
        "glossary": lambda: glossary.table(
            glossary.rows((ROOT / "chapters").glob("*.ipynb")), "chapters/"
        ),
        "chapters": lambda: pages_of(notebooks.CORE, notebooks.FURTHER),
        "exercises": lambda: pages_of("exercises"),
    }
    return re.sub(r"\{\{ ([a-z ]+) \}\}", lambda m: blanks[m[1]](), text)


def collect(folder):
    """`folder` holds the sources of the site, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        copies = folder / EXTRA / "download" / name
        copies.mkdir(parents=True)
        for path in sorted((ROOT / name).glob("*.ipynb")):
            made = page(notebooks.read(path), f"{name}/{path.name}")
            notebooks.write(folder / name / path.name, made)
            shutil.copy(path, copies)
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / name).write_text(document(text, folder), encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("*.md")):
        text = filled(path.read_text(encoding="utf-8"))
        (folder / path.name).write_text(text, encoding="utf-8")
    (folder / EXTRA / ".nojekyll").touch()  # GitHub then shows folders with an _
    for place in (folder, folder / EXTRA):  # the front page's, and of the site's card
        (place / "cover.png").write_bytes(cover()[0])


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
