"""Sphinx: the site of the executed course.  Nothing is executed, nothing is fetched."""

import os
import re
import shutil
import sys
from pathlib import Path

import ziamath
from docutils.nodes import SkipNode
from latex2mathml.converter import convert

import d2lpar
from d2lpar.shared import notebooks

sys.path.insert(0, str(Path(__file__).resolve().parent))
import address
import collect

HERE = Path(__file__).resolve().parent

project = "d2lpar"
author = "the authors of d2lpar"
release = version = d2lpar.__version__
html_title = "d2lpar"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "shown",
]
exclude_patterns = [collect.EXTRA]

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
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_favicon = str(HERE / "static" / "ranks.svg")
html_theme_options = dict(light_logo="ranks.svg", dark_logo="ranks.svg")
html_copy_source = False
html_show_search_summary = False  # it would fetch pages, which files cannot
html_show_sphinx = html_show_copyright = False
html_math_renderer = "mathml"

# Copied is what one may run; what a cell printed is not.
copybutton_selector = "article :not(.output) > .highlight > pre"

# Where the site will be, if that is known: for search engines and social networks.
html_baseurl = ogp_site_url = os.environ.get("SITE_URL", "")
ogp_social_cards = {"enable": False}
ogp_enable_meta_description = True
if ogp_site_url:
    ogp_image, ogp_image_alt = "cover.png", collect.cover()[1]

# The repository, if `d2lpar badges` has stamped one.
START = notebooks.read(HERE.parent / "chapters" / "00_start.ipynb")
REPOSITORY = address.repository(START)
if REPOSITORY and REPOSITORY.branch:
    html_theme_options.update(
        source_repository=REPOSITORY.url,
        source_branch=REPOSITORY.branch,
        source_directory="",
    )
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


def finish_page(app, pagename, templatename, context, doctree):
    """A page has a pencil if one edits its source; a notebook has links of its own."""
    written = doctree is not None and app.env.doc2path(pagename).suffix == ".md"
    own = (HERE / f"{pagename}.md").exists()
    context["theme_top_of_page_buttons"] = ["edit"] if written else []
    context["theme_source_directory"] = "site" if own else ""
    # The headings of the sidebar, for a screen reader.
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )


def extra_files(app, config):
    config.html_extra_path = [str(Path(app.srcdir) / collect.EXTRA)]


def copy_font(app, error):
    if error is None:
        shutil.copy(FONT, Path(app.outdir) / "_static" / FONT.name)


def setup(app):
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("config-inited", extra_files)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", copy_font)
