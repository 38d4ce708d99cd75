"""The site and its slides as they are built, from a clone that has an address.

Skipped where the packages of the extra `site` are not installed; `make site` installs
them.  One build serves all tests of a run, on whatever worker of xdist they are.
"""

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from filelock import FileLock

from authoring import badges
from conftest import ROOT

sys.path.insert(0, str(ROOT / "site"))
import make_slides
import offline

pytestmark = [pytest.mark.night, pytest.mark.timeout(900)]

for package in (
    "myst_nb furo latex2mathml ziamath sphinx_copybutton sphinxext "
    "sphinx_revealjs nbconvert"
).split():
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

PUBLISHED = "https://ada.example.org/course/"
# Bytecode comes and goes while other tests import the same files.
SKIPPED = shutil.ignore_patterns(
    ".*", "build", "wheelhouse", "*.egg-info", "tests", "__pycache__"
)


def build(clone):
    """build/site of a clone of the course whose address is ada/course on GitHub."""
    shutil.copytree(ROOT, clone, ignore=SKIPPED)
    badges.stamp("ada/course", root=clone)
    variables = {**os.environ, "PYTHONPATH": str(clone), "SITE_URL": PUBLISHED}
    sphinx = "-m sphinx -W --keep-going -q -j auto -c site build/pages build/site"
    slides = "site/make_slides.py build/site/slides 00"
    for command in ("site/collect.py build/pages", sphinx, slides):
        subprocess.run(
            [sys.executable, *command.split()], cwd=clone, env=variables, check=True
        )


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The folder of the site, built once."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder if worker_id == "master" else folder.parent) / "stamped"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            build(folder)
    return folder / "build" / "site"


def page(site, name):
    return (site / f"{name}.html").read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere_and_no_link_is_dead(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert offline.loads(text) == [], path
        dead = [url for url in offline.dead(path, text) if "slides/" not in url]
        assert dead == [], path


def test_a_chapter_opens_elsewhere_and_downloads(site):
    text = page(site, "chapters/04_messages")
    row = re.search('<nav class="launch".*?</nav>', text, re.DOTALL)[0]
    source = "github.com/ada/course/blob/main/chapters/04_messages.ipynb"
    assert [*re.findall('href="(.*?)"', row)] == [
        f"https://colab.research.google.com/{source.replace('.com', '', 1)}",
        f"https://kaggle.com/kernels/welcome?src=https://{source}",
        f"https://{source}",
        "../slides/04_messages.html",
        "../download/chapters/04_messages.ipynb",
    ]
    downloaded = site / "download" / "chapters" / "04_messages.ipynb"
    clone = site.parent.parent
    stamped = clone / "chapters" / "04_messages.ipynb"
    assert downloaded.read_bytes() == stamped.read_bytes()
    assert "badge" not in text


def test_pages_say_where_they_are_from_and_where_to_edit_them(site):
    glossary, chapter = page(site, "glossary"), page(site, "chapters/04_messages")
    edit = "https://github.com/ada/course/edit/main/"
    assert f'href="{edit}site/glossary.md"' in glossary
    assert f'href="{edit}CONTRIBUTING.md"' in page(site, "CONTRIBUTING")
    assert "/edit/" not in chapter + page(site, "genindex")
    assert f'<link rel="canonical" href="{PUBLISHED}glossary.html"' in glossary
    assert f'property="og:image" content="{PUBLISHED}cover.png"' in chapter
    assert (site / "cover.png").is_file()
    assert re.search('<meta name="description" content="[^"]{80,}"', chapter)
    assert "<title>04 Messages - d2lpar</title>" in chapter
    front = re.sub("<[^>]*>", "", page(site, "index"))
    assert "git clone https://github.com/ada/course\ncd course\nmake lab" in front


def test_every_picture_enlarges_and_shows_its_text(site):
    text = page(site, "chapters/06_allreduce")
    pictures = re.findall('<button class="zoom" popovertarget="(.*?)"', text)
    opened = re.findall('<span popover class="zoomed" id="(.*?)">', text)
    assert pictures == opened and len(set(pictures)) == len(pictures) > 2
    texts = re.findall(r'title="Enlarge"><img alt="([^"]+)"', text)
    shown = re.findall('<span class="alt">([^<]+)</span>', text)
    assert [*map(html.unescape, shown)] == [*map(html.unescape, texts)]
    assert len(texts) == len(pictures)


def test_names_of_code_break_in_tables_and_nowhere_else(site):
    assert "all_</span><wbr>" in page(site, "glossary")
    outside = re.sub("<table.*?</table>", "", page(site, "glossary"), flags=re.DOTALL)
    assert "<wbr>" not in outside


def test_a_deck_of_slides_has_no_empty_one(site):
    from bs4 import BeautifulSoup  # which nbconvert and furo need

    deck = BeautifulSoup(page(site, "slides/00_start"), "html.parser")
    slides = [s for s in deck.select(".slides section") if not s.find("section")]
    assert len(slides) > 15
    for slide in slides:
        for heading in slide.find_all(re.compile("^h[1-6]$")):
            heading.decompose()
        assert slide.get_text(strip=True) or slide.find("img")
    assert 'href="00_start.html"' in page(site, "slides/index")


def test_formulas_of_slides_are_mathml_and_code_is_not():
    made = make_slides.with_mathml("a `$x$` costs $x^2$\n$$y$$")
    assert made.startswith("a `$x$` costs <math")
    assert made.count("<math") == 2 and 'display="block"' in made
