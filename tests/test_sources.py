"""What the sources claim is quoted and judged once, in the appendix of one chapter."""

import re
import tomllib

import pytest
from test_notebooks import book

from authoring import glossary, prose
from conftest import CHAPTERS, ROOT, whole

FILE = tomllib.loads((ROOT / "tests" / "claims.toml").read_text(encoding="utf-8"))
SOURCES, CLAIMS = FILE["sources"], FILE["claims"]
HEADING = "What the sources say"
VERDICT = re.compile(r"\*\*(Right|Right if|Right of|Wrong|Not tested)\*\*[ .,:]")


def plain(text):
    """A text without comments and line breaks."""
    return " ".join(prose.COMMENT.sub("", text).split())


def appendix(notebook):
    """The text below the heading of the appendix, up to the next heading as high."""
    texts = [c["source"] for c in notebook["cells"] if c["cell_type"] == "markdown"]
    parts = re.split(r"(?m)^(#{1,2}) (.*)$", "\n\n".join(texts))
    heads = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return "\n".join(text for _, name, text in heads if name == HEADING)


def rows(notebook):
    """[(claim, source, verdict)] of the appendix."""
    found = [row for table in glossary.tables(appendix(notebook)) for row in table[1:]]
    return [tuple(map(plain, row)) for row in found]


def problems(notebook, number):
    """What is missing or wrong in the appendix of a chapter."""
    found, quoted = rows(notebook), []
    for row in found:
        if len(row) != 3 or not VERDICT.match(row[2]):
            yield f"no verdict: {row}"
        quoted += [(text, row[1]) for text in re.findall(r'"(.*)"', row[0])]
    wanted = {
        (plain(quote), source) for at, source, quote in CLAIMS.values() if at == number
    }
    for quote, source in sorted(wanted):
        where = [shown for text, shown in quoted if text == quote]
        if len(where) != 1:
            yield f"quoted {len(where)} times, wanted once: {quote}"
        elif SOURCES[source] not in where[0]:
            yield f"not from {where[0]}: {quote}"
    for text, _ in quoted:
        if text not in {quote for quote, _ in wanted}:
            yield f"no claim of this chapter in tests/claims.toml: {text}"


def strays(notebook, number, names):
    """Claims that another chapter decides, in a paragraph without a link to it."""
    others = [(at, plain(q)) for at, _, q in CLAIMS.values() if len(q.split()) > 5]
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for paragraph in re.split(r"\n\n|\n(?=[|-] ?)", cell["source"]):
                for at, quote in others:
                    there = at != number and quote in plain(paragraph)
                    link = rf"\]\((\.\./|further/)*{names.get(at)}"
                    if there and not re.search(link, paragraph):
                        yield f"link to chapter {at}, which decides: {quote}"


def test_every_claim_has_a_source_a_chapter_and_words_of_its_own():
    assert len(CLAIMS) > 100
    for chapter, source, quote in CLAIMS.values():
        assert re.fullmatch(r"[01]\d", chapter) and source in SOURCES
        assert quote == plain(quote) and '"' not in quote
    assert len({(at, quote) for at, _, quote in CLAIMS.values()}) == len(CLAIMS)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_appendix_quotes_and_judges_the_claims_of_its_chapter(path):
    notebook, number = whole(path), path.stem[:2]
    names = {chapter.stem[:2]: chapter.name for chapter in CHAPTERS}
    found = [*problems(notebook, number), *strays(notebook, number, names)]
    assert found == []


# The rules find what they are there to find

QUOTE = plain(CLAIMS["evenly"][2])
SOURCE = SOURCES["slides"]
ROWS = [
    f'| "{plain(quote)}" | {SOURCES[source]} | **Right**. |'
    for at, source, quote in CLAIMS.values()
    if at == "05"
]


def chapter(*lines, before=""):
    """A chapter with this text and these rows in the table of its appendix."""
    table = ["| claim | source | verdict |", "|---|---|---|", *lines]
    text = "\n".join([before, f"## {HEADING}", "", *table, "", "## References"])
    return book({"cell_type": "markdown", "source": text, "metadata": {}})


def told(*lines):
    return list(problems(chapter(*lines), "05"))


def test_a_complete_appendix_is_accepted():
    assert told(*ROWS) == []
    assert told(*ROWS, "| A ring is fast | Somebody 2009 | **Right if** large. |") == []


def test_what_is_wrong_in_an_appendix_is_told():
    other = f'| "{QUOTE}" | {SOURCES["post"]} | **Wrong**. |'
    rest = [row for row in ROWS if QUOTE not in row]
    assert told(*rest) == [f"quoted 0 times, wanted once: {QUOTE}"]
    assert told(*ROWS, ROWS[0])[0].startswith("quoted 2 times")
    assert told(*rest, other) == [f"not from {SOURCES['post']}: {QUOTE}"]
    assert "no verdict" in told(*ROWS, "| A ring is fast | Somebody | Yes. |")[0]
    assert "no claim of" in told(*ROWS, f'| "Rings" | {SOURCE} | **Right**. |')[0]


def test_a_claim_elsewhere_needs_a_link_to_its_verdict():
    names = {"05": "05_scatter.ipynb"}
    bare = chapter(before=f'They "{QUOTE}".')
    linked = chapter(before=f'They "{QUOTE}": [wrong](05_scatter.ipynb).')
    assert len(list(strays(bare, "07", names))) == 1
    assert list(strays(linked, "07", names)) == []
    assert list(strays(bare, "05", names)) == []
