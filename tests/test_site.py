"""The site: its glossary, figures, pages and slides follow from the chapters.

Nothing here needs more than the course itself; `test_site_built.py` builds the site.
"""

import re
import sys

import pytest

from authoring import glossary
from conftest import CHAPTERS, FURTHER, ROOT
from d2lpar.shared import notebooks

sys.path.insert(0, str(ROOT / "site"))
import address
import collect
import make_slides
import offline

PAGES = {path.relative_to(ROOT).as_posix(): path for path in CHAPTERS + FURTHER}
FIGURES = (ROOT / "site" / "figures.md").read_text(encoding="utf-8")


def text(source):
    return {"cell_type": "markdown", "source": source, "metadata": {}}


def code(source, *outputs):
    return {
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "outputs": list(outputs),
    }


# The glossary


def test_chapter_00_ends_with_the_glossary_of_all_chapters():
    last = notebooks.read(CHAPTERS[0])["cells"][-1]["source"]
    assert last == glossary.appendix(glossary.rows(CHAPTERS)), "run `make sync`"


def test_the_glossary_knows_the_functions_of_the_course():
    found = glossary.rows(CHAPTERS)
    said = " ".join(f"{row.here} {row.torch}" for row in found)
    for name in (
        "send broadcast scatter gather reduce all_gather reduce_scatter all_to_all "
        "all_reduce barrier DistributedDataParallel fully_shard parallelize_module "
        "pipelining rpc"
    ).split():
        assert name in said
    tensorflow = " ".join(row.tensorflow for row in found)
    for name in (
        "Mirrored",
        "MultiWorkerMirrored",
        "ParameterServer",
        "CentralStorage",
    ):
        assert f"{name}Strategy" in tensorflow
    assert {name for row in found for name in row.chapters} == {
        path.stem for path in CHAPTERS[1:]
    }
    assert all(re.search("[\u4e00-\u9fff]", row.chinese) for row in found)


def write(folder, name, table):
    path = folder / f"{name}.ipynb"
    notebooks.write(path, {"cells": [text(table)]})
    return path


HEAD = "| here | `torch` | MPI | TensorFlow | MXNet | JAX (in x) | Chinese |\n|---|"


def test_columns_are_found_by_name_and_equal_rows_are_one(tmp_path):
    a = write(tmp_path, "01_a", f"{HEAD}\n| f | t | m | – | x | j | 甲 |")
    b = write(tmp_path, "02_b", f"{HEAD}\n| g | t | m | – | x | j | 甲 |")
    (row,) = glossary.rows([b, a])
    assert row == ("f", "t", "none", "x", "m", "j", "甲", ("01_a", "02_b"))
    assert "[01](01_a.ipynb), [02](02_b.ipynb)" in glossary.table([row])


def test_a_chapter_without_a_column_is_named(tmp_path):
    path = write(tmp_path, "01_a", HEAD.replace("MXNet", "DeepSpeed") + "\n| f |")
    with pytest.raises(ValueError, match="01_a has no column 'MXNet'"):
        glossary.rows([path])
    path = write(tmp_path, "02_a", "nothing")
    with pytest.raises(ValueError, match="02_a has no table"):
        glossary.rows([path])


def test_sync_writes_the_appendix_and_nothing_else(tmp_path):
    path = write(tmp_path, "01_a", f"{HEAD}\n| f | t | m | – | x | j | 甲 |")
    notebook = {"cells": [text("## Other"), text(glossary.HEADING + "\nold")]}
    ((old, new),) = glossary.sync(notebook, [path])
    assert old.endswith("old") and "| f | t |" in new
    assert notebook["cells"][0]["source"] == "## Other"
    assert glossary.sync(notebook, [path]) == []
    assert glossary.sync({"cells": [text("x")]}, []) == []


# The figures of the sources


def slugs(path):
    """The anchors of a notebook's headings, as MyST and GitHub make them."""
    cells = notebooks.read(path)["cells"]
    texts = [c["source"] for c in cells if c["cell_type"] == "markdown"]
    headings = re.findall(r"^#+ (.*)$", "\n".join(texts), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {
        heading.replace(" ", "-"): title
        for heading, title in zip(plain, headings, strict=True)
    }


def test_every_figure_is_linked_to_a_section_that_is_there():
    links = re.findall(r"\[(\d\d), ([^]]+)\]\(([^)#]+)#([^)]+)\)", FIGURES)
    rows = re.findall(r"^\| (?!figure|---).*$", FIGURES, re.MULTILINE)
    assert len(rows) == 18
    assert all("](chapters/" in row for row in rows)
    for number, title, page, anchor in links:
        assert PAGES[page].stem.startswith(number)
        assert slugs(PAGES[page])[anchor] == title
    assert len(links) == FIGURES.count("](")


# Notebooks as pages


def test_a_page_has_one_title_and_code_stays():
    cells = [
        text("# 04 A"),
        text("# Core\n\n## B\n```bash\n# no heading\n```"),
        code("# code"),
    ]
    first, *others = collect.page({"cells": cells}, "chapters/04_a.ipynb")["cells"]
    assert first["source"].startswith("# 04 A\n\n<nav ")
    assert [cell["source"] for cell in others] == [
        "## Core\n\n### B\n```bash\n# no heading\n```",
        "# code",
    ]
    single = [text("# A"), text("## B")]
    page = collect.page({"cells": single}, "chapters/04_a.ipynb")
    assert page["cells"][1]["source"] == "## B"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_headings_of_a_chapter_descend_one_by_one(path):
    name = path.relative_to(ROOT).as_posix()
    cells = collect.page(notebooks.read(path), name)["cells"]
    texts = [c["source"] for c in cells if c["cell_type"] == "markdown"]
    outside = "\n".join(collect.FENCE.sub("", text) for text in texts)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", outside, re.MULTILINE)]
    assert levels[0] == 1 and levels.count(1) == 1
    steps = zip(levels, levels[1:], strict=False)
    assert [(a, b) for a, b in steps if b > a + 1] == []


BADGES = (
    "[![Open in Colab](https://x.org/a.svg)](https://colab.x/y.ipynb) "
    "[![Open in Kaggle](https://x.org/b.svg)](https://k.x/welcome?src=y.ipynb)"
)


def installing(where):
    return code(f'import x\n\naddress = "{where}"  # where pip finds it\nx.find_spec()')


def test_pictures_keep_their_text_and_badges_become_a_row_of_links():
    picture = {"data": {"image/png": "x"}, "metadata": {"image/png": {"alt": "red"}}}
    cells = [
        text(f"# A\n\n{BADGES}\n\nWhy."),
        code("f()", picture),
        code(notebooks.INSTALL_CELL),
        installing("git+https://github.com/ada/course"),
    ]
    page = collect.page({"cells": cells}, "chapters/04_a.ipynb")
    title, shown, install, _ = page["cells"]
    heading, *row, why = title["source"].split("\n")
    assert (heading, why) == ("# A", "Why.")
    assert re.findall('href="(.*?)"( download)?>(.*?)<', "".join(row)) == [
        ("https://colab.x/y.ipynb", "", "Open in Colab"),
        ("https://k.x/welcome?src=y.ipynb", "", "Open in Kaggle"),
        ("https://github.com/ada/course/blob/main/chapters/04_a.ipynb", "", "Source"),
        ("../slides/04_a.html", "", "Slides"),
        ("../download/chapters/04_a.ipynb", " download", "Download notebook"),
    ]
    assert shown["metadata"]["mystnb"] == {"image": {"alt": "red"}}
    assert install["metadata"]["tags"] == ["hide-input"]


def test_without_an_address_a_page_has_no_link_elsewhere():
    links = address.launch_links({"cells": [text("# A")]}, "exercises/05_b.ipynb")
    assert links == [("Download notebook", "../download/exercises/05_b.ipynb")]
    assert address.clone_command(None) == ""


COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    "stamped, version, branch, source",
    [
        ("https://github.com/ada/x", "main", "main", "/blob/main/a.md"),
        ("https://github.com/ada/x.git@v2", "v2", "v2", "/blob/v2/a.md"),
        (f"https://gitlab.com/a/b/x@{COMMIT}", COMMIT, None, f"/blob/{COMMIT}/a.md"),
        ("https://git.example.org/ada/x.git", "main", None, None),
        ("ssh://git@example.org/ada/x.git@v2", "v2", None, None),
    ],
)  # fmt: skip
def test_a_stamped_address_is_understood(stamped, version, branch, source):
    found = address.repository({"cells": [text("# A"), installing(f"git+{stamped}")]})
    url = re.fullmatch(r"(.*?/x)(\.git)?(@.*)?", stamped)[1]
    assert found == (url, version) and found.branch == branch
    assert found.source("a.md") == (source and url + source)
    lines = address.clone_command(found).splitlines()
    assert lines[1:3] == [f"git clone {url}", "cd x"]
    assert (f"git checkout {version}" in lines) == (version != "main")


@pytest.mark.parametrize(
    "elsewhere", ["", "d2lpar==0.1.0", "https://x.org/a.whl", "git+file:///home/ada/x"]
)
def test_an_address_that_nobody_can_clone_is_none(elsewhere):
    assert address.repository({"cells": [installing(elsewhere)]}) is None


def test_a_document_links_only_to_what_the_site_has(tmp_path):
    made = collect.document(
        "[a](INSTRUCTORS.md) [b](solutions/x.ipynb) [c](README.md) [d](https://x.y) "
        "[e](chapters/00_start.ipynb) [f](Makefile)\n```mermaid\nA-->B\n```",
        tmp_path,
    )
    assert made == (
        "[a](INSTRUCTORS.md) b [c](index.md) [d](https://x.y) "
        "[e](chapters/00_start.ipynb) f\n```text\nA-->B\n```"
    )


def test_the_front_page_says_what_the_repository_says():
    page = collect.filled((ROOT / "site" / "index.md").read_text(encoding="utf-8"))
    assert "{{" not in page
    assert "make lab" in page
    for path in CHAPTERS:
        assert f"](chapters/{path.name})" in page
        assert f"\nchapters/{path.stem}\n" in page
    png, alt = collect.cover()
    assert png.startswith(b"\x89PNG")
    assert "gather" in alt and "ring" in alt


def test_all_public_names_are_in_the_reference():
    import d2lpar

    text = (ROOT / "site" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"d2lpar\.(\w+)$", text, re.MULTILINE))
    assert shown | {"schedule"} == set(d2lpar.__all__)
    assert ".. automodule:: d2lpar.pipeline.schedule.makers" in collect.built()


# Slides


def test_slides_follow_from_headings():
    cells = [
        text("# Title\n\nwords\n\n## Next"),
        code("1"),
        text("more"),
        code("x\n" * 20),
        code("y\n" * 20),
        code(notebooks.INSTALL_CELL),
        text("### Deep"),
    ]
    cells = list(make_slides.split_at_headings(cells))
    assert make_slides.slide_types(cells) == (
        "slide slide - subslide - subslide skip subslide".split()
    )


def test_no_slide_holds_nothing_but_a_heading():
    cells = [text("# Core\n\n## First\nwords\n\n## Second"), code("1")]
    parts = [c["source"] for c in make_slides.split_at_headings(cells)]
    assert parts == ["# Core\n\n## First\nwords\n", "## Second", "1"]


def test_links_of_slides_lead_to_decks_that_are_there():
    source = "[a](04_a.ipynb#b) [c](05_b.ipynb) [d](../exercises/04_a.ipynb) [e](#e)"
    made = make_slides.with_links(source, {"04_a"})
    assert made == "[a](04_a.html) c d [e](#e)"


def test_the_index_of_slides_names_the_decks_that_are_there(tmp_path):
    for name in ("00_start", "06_allreduce", "99_gone"):
        (tmp_path / f"{name}.html").touch()
    page = make_slides.index(tmp_path)
    assert re.findall('<a href="(.*?)">(.*?)</a>', page) == [
        ("00_start.html", "00 Start"),
        ("06_allreduce.html", "06 All-reduce"),
    ]


# Nothing from elsewhere


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.org/a.js"></script>',
        "<link rel=stylesheet href='//x.org/a.css'>",
        '<img alt="x" src="http://x.org/a.png"/>',
        "@import url(https://x.org/a.css);",
        "src: url('https://x.org/a.woff')",
        "import mermaid from 'https://x.org/mermaid.mjs'",
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(text):
    (address,) = set(offline.loads(text))
    assert "x.org" in address


def test_links_and_local_files_are_no_loads():
    page = '<a href="https://x.org">x</a><img src="a.png"><link href="_static/x.css">'
    assert offline.loads(page + "url(data:image/png;base64,AA//BB)") == []
    assert offline.loads('<link rel="canonical" href="https://x.org/a.html">') == []


def test_a_link_to_a_file_that_is_not_there_is_found(tmp_path, capsys):
    page = tmp_path / "a.html"
    links = '<a href="{}">x</a><a href="#b">y</a><a href="https://x.org/c">z</a>'
    page.write_text(links.format("a.html?q=1#b"))
    assert offline.main(tmp_path) == 0
    page.write_text(links.format("../gone%20away.html#b"))
    assert offline.main(tmp_path) == 1
    assert "leads to ../gone away.html" in capsys.readouterr().out


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_tables_of_a_chapter_have_a_head_over_every_column(path):
    for cell in notebooks.read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            for head, *rows in glossary.tables(cell["source"]):
                assert "" not in head
                assert {len(row) for row in rows} <= {len(head)}
