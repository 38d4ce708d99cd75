"""Numbers in a chapter's text are what its cells compute, and each has such a cell."""

import json

import prose_rules
import pytest
from test_notebooks import book, code, stream, with_nbval

from authoring import outputs, prose
from conftest import CHAPTERS, FURTHER
from d2lpar.shared import notebooks


def text(source):
    """A markdown cell as `notebooks.read` returns it."""
    cell = {"cell_type": "markdown", "id": f"text-{len(source)}", "metadata": {}}
    return cell | {"source": source}


def judged(source, **known):
    """(text, complaints) of one cell in a kernel that knows these names."""
    expressions = [bound.expression for bound in prose.bindings(source)]
    shown = repr(prose.answers(expressions, known))
    result = {"status": "ok", "data": {"text/plain": shown}}
    reply = {"content": {"user_expressions": {prose.NAME: result}}}
    (after,), complaints, _ = prose.judged([source], reply)
    return after, complaints


@pytest.mark.parametrize("path", CHAPTERS + FURTHER, ids=notebooks.label)
def test_every_result_in_the_text_has_a_cell(path):
    notebook = notebooks.read(path)
    assert prose_rules.problems(notebook) == []


# What a comment says about a number

TRUE = [
    ("330 us<!-- t -->", 329.6),
    ("0.75 ms<!-- t -->", 0.7461),
    ("about 700 us<!-- t -->", 657.5),
    ("14,320 rows<!-- t -->", 14320),
    ("Three rounds<!-- t -->", 2.6),
    ("twice<!-- t -->", 1.93),
    ("about a third<!-- t -->", 0.38),
    ("two thirds, or a quarter<!-- t -->", 0.25),
    ("63, 6 and 63 MB<!-- 10 * t, t, 10 * t -->", 6.3),
    ("from 10 to 30 us<!-- 10 < t < 30 -->", 12),
    ("more than 20 times<!-- t > 20 -->", 21),
    ("about twice<!-- 1.5 < t < 2.5 -->", 1.6),
    ('22 ms<!-- "Author, title, table 2" -->', 0),
]
WRONG_WORDS = [
    ("Three rounds<!-- t -->", 4, "t is 4"),
    ("twice<!-- t -->", 1.6, "t is 1.6"),
    ("a third<!-- t -->", 0.38, "t is 0.38"),
    ("more than 20 times<!-- t > 20 -->", 19, "t > 20 is not true"),
    ("about four times<!-- 1.5 < t < 2.5 -->", 2, "4 is outside of"),
    ("6 and 63 MB<!-- t -->", [1, 2], "gives 2 numbers for 1"),
    ("330 us<!-- missing -->", 1, "NameError: name 'missing' is not defined"),
    ("330 us<!-- t + -->", 1, "no Python expression"),
    ("nothing<!-- t -->", 1, "behind no number"),
    ("330 us<!-- t > u -->", 1, "no bound that is a number"),
    ("It takes\n<!-- t --> 330 us", 330, "begins a line"),
]


@pytest.mark.parametrize(("source", "t"), TRUE, ids=[source for source, _ in TRUE])
def test_a_true_sentence_stays(source, t):
    assert judged(source, t=t) == (source, [])


@pytest.mark.parametrize(("source", "t", "complaint"), WRONG_WORDS)
def test_a_sentence_that_is_wrong_in_words_is_told(source, t, complaint):
    after, (told,) = judged(source, t=t)
    assert complaint in told
    assert after == source


@pytest.mark.parametrize(
    ("source", "t", "after"),
    [
        ("330 us<!-- t -->", 341.2, "341 us<!-- t -->"),
        ("0.75 ms<!-- t -->", 1.2345, "1.23 ms<!-- t -->"),
        ("about 700 us<!-- t -->", 1234, "about 1,200 us<!-- t -->"),
        ("1024 rows<!-- t -->", 4096, "4096 rows<!-- t -->"),
        ("6, then 9 MB<!-- t, 9 -->", 7, "7, then 9 MB<!-- t, 9 -->"),
        ("1 or 2<!-- t --> and 3<!-- 3 -->", 10, "1 or 10<!-- t --> and 3<!-- 3 -->"),
    ],
)
def test_a_number_in_digits_is_written_anew(source, t, after):
    assert judged(source, t=t) == (after, [])


# With kernels: what `d2lpar execute` writes, and what nbval refuses


def chapter(said, word="twice"):
    """A notebook that computes 42, and a text that says so or not."""
    cells = [code("x = 42\nprint(x)", stream("42\n"))]
    cells += [text(f"It takes {said} us<!-- x -->, {word}<!-- x / 21 --> as long.")]
    cells += [code("x = 7", count=2), text("Then 7 us<!-- x -->.")]
    return book(*cells)


def test_execution_brings_the_text_up_to_date(tmp_path):
    path = tmp_path / "x.ipynb"
    notebooks.write(path, chapter(41))
    outcome = outputs.rewrite(path)
    assert outcome.failure is None
    assert outcome.news == ['"It takes 41 us, twice as long.": 41 became 42']
    assert "It takes 42 us<!-- x -->" in notebooks.read(path)["cells"][1]["source"]
    assert [c["execution_count"] for c in notebooks.read(path)["cells"][::2]] == [1, 2]


def test_execution_writes_nothing_where_a_word_is_wrong(tmp_path):
    path = tmp_path / "x.ipynb"
    notebooks.write(path, chapter(42, word="three times"))
    before = path.read_bytes()
    outcome = outputs.rewrite(path)
    assert outcome.failure.cell == 1
    assert "three times as long" in str(outcome.failure)
    assert "x / 21 is 2" in str(outcome.failure)
    assert path.read_bytes() == before


def test_nbval_refuses_a_number_that_was_changed_by_hand(tmp_path):
    for name, said in (("right", 42), ("wrong", 43)):
        notebooks.write(tmp_path / f"{name}.ipynb", chapter(said))
    other = chapter(43)
    other["metadata"]["d2lpar"]["torch"] = "1.0.0"
    notebooks.write(tmp_path / "other.ipynb", other)
    said = with_nbval(tmp_path)
    assert "1 failed, 5 passed" in said
    assert "FAILED wrong.ipynb::Cell 0" in said
    assert "43 became 42" in said


# What the guard looks at


def left(said, *cells):
    """What no cell answers for, of a text below these cells."""
    found = prose_rules.unbound(book(*cells, text(said)))
    return [words for _, words in found]


CELL = code("assert t == 2e-3\nn = 64", stream("ring 330 us, 38 % and 7 MB\n"))


@pytest.mark.parametrize(
    "said",
    [
        "It takes 330 us and sends 38 % and 7 MB.",  # printed
        "2 ms at most, by 64 ranks.",  # asserted, named
        "Chapter 12, and sections 13.5 and 14, of 2019, with eight ranks.",
        'He writes "it takes 999 us, or 888 MB" there, `999 us` and $999$.',
        "## 999 us",
        "## References\n\nPages 998 to 999.",
        "999 us<!-- t -->, and 998<!-- 'a table' -->",
        "There is one GB of it, four bytes each, for twice as much.",
    ],
)
def test_a_number_with_a_cell_is_let_through(said):
    assert left(said, CELL) == []


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ("It takes 331 us.", 1),
        ("6, 32 and 63 MB", 3),
        ("three times as fast, or 3.7x, or by a factor of about 20", 3),
        ("38 MB and 7 %", 2),  # the number is there, with another unit
        ("4096 rows", 1),
        ("999 us<!-- t --> and 998 us", 1),
    ],
)
def test_a_number_without_a_cell_is_found(said, count):
    assert len(left(said, CELL)) == count


def test_an_output_that_is_not_compared_answers_for_nothing():
    measured = code("go()", stream("330 us measured"), tags=["nbval-ignore-output"])
    assert len(left("It takes 330 us.", measured)) == 1


def test_a_cell_beyond_the_next_text_answers_for_nothing():
    assert len(left("It takes 330 us.", CELL, text("A text between."))) == 1


def test_comments_that_cannot_work_are_told():
    def told(said, *cells):
        notebook = json.loads(json.dumps(book(*cells, text(said))))
        return [wrong for _, wrong in prose_rules.unfit(notebook)]

    assert told("5 us<!-- t -->", CELL) == []
    assert told("5 us<!-- t -->") == ["no cell above this text can have computed it"]
    assert told("`5 us<!-- t -->`", CELL) == ["a comment inside code is shown"]
    assert "begins a line" in told("5 us\n<!-- t -->", CELL)[0]
