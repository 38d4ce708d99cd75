"""A deck of slides per chapter: `python site/make_slides.py build/slides [04 ...]`.

nbconvert makes them, with reveal.js from the package sphinx-revealjs.  The types of the
slides follow from the headings: a part or section starts a slide to the right, all else
goes down.  What a cell shows stays with the cell.
"""

import html
import re
import shutil
import sys
from pathlib import Path, PurePath

import address
import collect

from d2lpar.shared import notebooks

HERE = Path(__file__).resolve().parent
FULL = 30  # lines that a slide shows without scrolling
PICTURE = 20  # lines that a picture takes
WIDE = 110  # characters of text in a line of a slide
MATH = re.compile(r"(`[^`]*`)|\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)


def lines(cell):
    """How many lines of a slide a cell fills, about."""
    source = cell["source"].splitlines()
    if cell["cell_type"] == "markdown":
        return sum(1 + len(line) // WIDE for line in source)
    return len(source) + sum(map(_shown, cell["outputs"]))


def _shown(output):
    data = output.get("data", {})
    if "image/png" in data:
        return PICTURE
    text = output.get("text") or data.get("text/plain") or str(output.get("evalue", ""))
    return 1 + text.count("\n")


def slide_types(cells):
    """One of "slide", "subslide", "-" and "skip" for every cell.

    A heading of the first or second level starts a slide.  Another text starts a
    slide below it, and the code that follows stays with its text while there is room.
    """
    found, room = [], 0
    for cell in cells:
        size, text = lines(cell), cell["cell_type"] == "markdown"
        if cell["source"].strip() == notebooks.INSTALL_CELL.strip():
            kind = "skip"
        elif text and re.match(r"#{1,2} ", cell["source"]):
            kind = "slide"
        elif not found or text or size > room:
            kind = "subslide" if found else "slide"
        else:
            kind = "-"
        if kind != "skip":
            room = (room if kind == "-" else FULL) - size
        found.append(kind)
    return found


def split_at_headings(cells):
    """A text with several headings is a cell for each that has a text below it.

    A heading with nothing below it, such as that of a part, stays with the next one: no
    slide is empty.
    """
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts = re.split(r"\n(?=#{1,3} )", cell["source"])
            yield from ({**cell, "source": s, "id": None} for s in _with_a_text(parts))
        else:
            yield cell


def _with_a_text(parts):
    held = []
    for part in parts:
        held.append(part)
        if not re.fullmatch(r"#{1,3} .*\s*", part):
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


def with_mathml(text):
    """Formulas of a text are MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    def made(match):
        code, block, inline = match.groups()
        if code:
            return code
        return convert(block or inline, display="block" if block else "inline")

    return MATH.sub(made, text)


def with_links(text, decks):
    """A link to a chapter leads to its deck if that is one of `decks`, else nowhere."""

    def linked(match):
        shown, target, _ = match.groups()
        name = PurePath(target).stem
        here = target == f"{name}.ipynb" and name in decks
        return f"[{shown}]({name}.html)" if here else shown

    return collect.LINK.sub(linked, text)


def deck(path, decks):
    """The slides of a notebook, as one page of HTML; `decks` are the names of all."""
    import nbformat
    from nbconvert import SlidesExporter

    notebook = notebooks.read(path)
    title = notebook["cells"][0]
    title["source"] = address.without_badges(title["source"])
    notebook["cells"] = list(split_at_headings(notebook["cells"]))
    notebooks.give_ids(notebook)
    types = slide_types(notebook["cells"])
    for cell, kind in zip(notebook["cells"], types, strict=True):
        cell["metadata"]["slideshow"] = {"slide_type": kind}
        if cell["cell_type"] == "markdown":
            cell["source"] = with_mathml(with_links(cell["source"], decks))
    exporter = SlidesExporter(
        template_name="slides", extra_template_basedirs=[str(HERE)],
        reveal_url_prefix="reveal", reveal_theme="white", exclude_input_prompt=True,
        exclude_output_prompt=True, exclude_anchor_links=True,
    )  # fmt: skip
    resources = {"metadata": {"name": path.stem}}
    return exporter.from_notebook_node(nbformat.from_dict(notebook), resources)[0]


def copy_reveal(folder):
    """`folder` holds what the decks need of reveal.js; other themes fetch fonts."""
    import sphinx_revealjs

    shutil.rmtree(folder, ignore_errors=True)
    reveal = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs"
    for part in ("dist/reveal.js", "dist/reveal.css", "dist/theme/white.css"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(reveal / part, folder / part)
    for part in ("dist/theme/fonts/source-sans-pro", "plugin/notes"):
        shutil.copytree(reveal / part, folder / part, dirs_exist_ok=True)
    shutil.copy(reveal / "LICENSE", folder)


def index(folder):
    """A page that leads to every deck in `folder`, by the titles of the chapters."""
    decks = [p for p in notebooks.find(()) if (folder / f"{p.stem}.html").is_file()]
    titles = [
        notebooks.read(p)["cells"][0]["source"].splitlines()[0][2:] for p in decks
    ]
    items = [
        f'<li><a href="{path.stem}.html">{html.escape(title)}</a></li>'
        for path, title in zip(decks, titles, strict=True)
    ]
    page = (HERE / "slides" / "decks.html").read_text(encoding="utf-8")
    return page.replace("{{ decks }}", "\n".join(items))


def main(folder, *chapters):
    """`folder` holds a page per chapter, one that leads to them, and reveal.js."""
    copy_reveal(folder / "reveal")
    paths = notebooks.find(chapters)
    decks = {path.stem for path in [*paths, *folder.glob("*.html")]}
    for path in paths:
        page = folder / f"{path.stem}.html"
        page.write_text(deck(path, decks), encoding="utf-8")
        print(page)
    (folder / "index.html").write_text(index(folder), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
