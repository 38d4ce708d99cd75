"""Sphinx: the site of the executed course.  Nothing is executed, nothing is fetched."""

import re
import shutil
from pathlib import Path

import ziamath
from docutils.nodes import SkipNode
from latex2mathml.converter import convert

import d2lpar

project = "d2lpar"
author = "the authors of d2lpar"
release = version = d2lpar.__version__
html_title = "d2lpar"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]

# The committed outputs are the site.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # a widget shows its sentence; no script from elsewhere
nb_merge_streams = True
nb_code_prompt_show = "Installs d2lpar where it is missing"
nb_code_prompt_hide = "Hide"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # sections that start at the third level
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # torch writes its own in another way
add_module_names = False
pygments_style, pygments_dark_style = (
    "a11y-high-contrast-light",
    "a11y-high-contrast-dark",
)

html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_math_renderer = "mathml"
FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"


def inline_math(writer, node):
    """Mathematics is native MathML, made here: no script, and readable aloud."""
    writer.body.append(convert(node.astext()))
    raise SkipNode


def display_math(writer, node):
    writer.body.append(
        f'<div class="math">{convert(node.astext(), display="block")}</div>'
    )
    raise SkipNode


def plain_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: backquotes are code, lists and tables are kept."""
    text, kept = [], False
    for line in lines:
        table = line.startswith(" ") or bool(re.search(r"[^.:;!?] {2,}\S", line))
        if table and not kept:
            text += ["", ".. code-block:: text", ""]
        if kept and line and not table:
            text.append("")
        kept = table or (kept and not line)
        text.append(f"   {line}" if kept else _plain(line))
    lines[:] = [*text, ""]


def _plain(line):
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        f"`{part}`" if part.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", part)
        for part in parts
    )


def copy_font(app, error):
    if error is None:
        shutil.copy(FONT, Path(app.outdir) / "_static" / FONT.name)


def setup(app):
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("build-finished", copy_font)
