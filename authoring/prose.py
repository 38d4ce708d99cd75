"""Numbers in a chapter's text, bound to the cells that compute them.

An HTML comment behind a number holds a Python expression: readers see "330 us", the
source says "330 us<!-- flat.elapsed * 1e6 -->".  The expression is evaluated in the
chapter's kernel, behind the code cells above it, and decides whether the sentence is
true:

    330 us<!-- seconds * 1e6 -->             equal when rounded to the digits shown
    63, 6 and 63 MB<!-- a, b, c -->          the last three numbers, in this order
    about twice<!-- 1.5 < ratio < 2.5 -->    true, and 2 lies between the bounds
    22 ms<!-- "Author, title, table 2" -->   no result of a cell: where it comes from
"""

import ast
import json
import re
from typing import NamedTuple

NAME = "numbers"
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
WORTH = {word: float(value) for value, word in enumerate(WORDS)}
TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred".split()
WORTH |= {word: 10.0 * value for value, word in enumerate(TENS, start=2)}
LOOSE = {"twice": 2.0, "half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4}
NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]*\d)"
    rf"|\b(?:{'|'.join([*WORTH, *LOOSE])})s?\b",
    re.IGNORECASE,
)
HEDGE = re.compile(r"\b(?:about|nearly|almost|roughly|around|some)\s+(?:an?\s+)?$")


class Number(NamedTuple):
    """A number in a text: where it stands, and how it is written."""

    start: int
    end: int
    text: str
    hedged: bool

    @property
    def value(self):
        """What it says: 3.0 for "three", 0.5 for "half"."""
        word = self.text.lower()
        if word[0].isdigit():
            return float(word.replace(",", ""))
        known = WORTH | LOOSE
        return known[word if word in known else word.removesuffix("s")]

    @property
    def place(self):
        """The power of ten of its last digit; zeros of "about 700" do not count."""
        whole, _, decimals = self.text.replace(",", "").partition(".")
        zeros = len(whole) - len(whole.rstrip("0"))
        return -len(decimals) or (zeros if self.hedged and self.value else 0)

    def holds(self, value):
        """Whether `value`, rounded as this number is, is this number."""
        word = self.text.lower().removesuffix("s")
        room = 0.5 * 10.0**self.place * (1 + 1e-9)
        if word in LOOSE:
            room = self.value * (0.15 if self.hedged else 0.05)
        return abs(value - self.value) <= room

    def written(self, value):
        """`value` written as this number is; None where that takes a word."""
        if not self.text[0].isdigit():
            return None
        text = f"{round(value, -self.place):,.{max(0, -self.place)}f}"
        plain = len(self.text.partition(".")[0]) > 3 and "," not in self.text
        return text.replace(",", "") if plain else text


class Bound(NamedTuple):
    """A comment: its expression, and all numbers of its paragraph in front of it."""

    start: int
    expression: str
    numbers: list


def numbers(text):
    """Every number of a text, in digits or as a word, as a list of Number."""
    return [
        Number(*found.span(), found[0], bool(HEDGE.search(text[: found.start()])))
        for found in NUMBER.finditer(text)
    ]


def masked(text, pattern=COMMENT):
    """The text with everything that matches replaced by as many spaces."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def bindings(source):
    """The comments of a markdown cell, in order, as a list of Bound."""
    clear, found = masked(source), []
    for comment in COMMENT.finditer(source):
        begin = max(clear.rfind("\n\n", 0, comment.start()), 0)
        before = [
            number._replace(start=number.start + begin, end=number.end + begin)
            for number in numbers(clear[begin : comment.start()])
        ]
        found.append(Bound(comment.start(), comment[1].strip(), before))
    return found


def _tree(expression):
    return ast.parse(f"(\n{expression}\n)", mode="eval").body


def is_reason(expression):
    """Whether a comment says in words where its number comes from."""
    tree = _tree(expression)
    return isinstance(tree, ast.Constant) and isinstance(tree.value, str)


def limits(expression):
    """The numbers that a comparison compares with, or None if it is no comparison."""
    tree = _tree(expression)
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    if not compared or not isinstance(tree, ast.Compare | ast.BoolOp):
        return None
    sides = [side for each in compared for side in (each.left, *each.comparators)]
    values = [getattr(side, "value", None) for side in sides]
    return [float(value) for value in values if isinstance(value, int | float)]


def bound_by(bound):
    """The numbers that a comment decides about: the last, or as many as it lists.

    A comparison decides about each earlier one, too, that is one of its bounds.
    """
    tree, within = _tree(bound.expression), limits(bound.expression)
    if within is not None:
        earlier = [each for each in bound.numbers[:-1] if each.value in within]
        return [*earlier, *bound.numbers[-1:]]
    return bound.numbers[-len(tree.elts) if isinstance(tree, ast.Tuple) else -1 :]


def complaint(source):
    """What is wrong with the comments of a cell as such, or None."""
    for bound in bindings(source):
        shown = f"<!-- {bound.expression} -->"
        if source[: bound.start].rpartition("\n")[2].strip() == "":
            return f"{shown} begins a line, which ends the paragraph: move the break"
        try:
            within, wanted = limits(bound.expression), bound_by(bound)
        except SyntaxError:
            return f"{shown} is no Python expression"
        if not wanted:
            return f"{shown} stands behind no number"
        if within == []:
            return f"{shown} has no bound that is a number"
    return None


def question(sources):
    """Jupyter's `user_expressions` that answer all comments of these cells, or {}."""
    asked = [bound.expression for text in sources for bound in bindings(text)]
    module = '__import__("authoring.prose", fromlist=["answers"])'
    return {NAME: f"{module}.answers({asked!r}, globals())"} if asked else {}


def answers(expressions, namespace):
    """JSON: for each expression a list of floats, or what Python says of it."""
    import numpy as np

    def answer(expression):
        try:
            if is_reason(expression):
                return []
            value = eval(f"(\n{expression}\n)", dict(namespace))
            return np.ravel(value).astype(float).tolist()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return json.dumps([answer(each) for each in expressions])


def judged(sources, reply):
    """(texts with numbers in digits brought up to date, complaints that remain, news).

    `reply` is the kernel's message that answers the `question` about these texts.
    """
    found = reply["content"]["user_expressions"][NAME]
    if found["status"] != "ok":
        return sources, [f"{found['ename']}: {found['evalue']}"], []
    left = iter(json.loads(ast.literal_eval(found["data"]["text/plain"])))
    texts, complaints, news = [], [], []
    for text in sources:
        changes, unfit = [], complaint(text)
        for bound, answer in zip(bindings(text), left, strict=False):
            wrong, told = ([], []) if unfit else _judge(bound, answer, text)
            changes, complaints = changes + wrong, complaints + told
        complaints += [unfit] if unfit else []
        for number, new in sorted(changes, reverse=True):
            news.append(f'"{_around(text, number)}": {number.text} became {new}')
            text = text[: number.start] + new + text[number.end :]
        texts.append(text)
    return texts, complaints, news


def _judge(bound, answer, text):
    """([(number, its new text)], complaints) about one comment."""
    if is_reason(bound.expression):
        return [], []
    wanted = bound_by(bound)
    where = f'"{_around(text, wanted[-1])}": {bound.expression}'
    if isinstance(answer, str):
        return [], [f"{where} raised {answer}"]
    within = limits(bound.expression)
    if within is not None:
        said = wanted[-1].value
        if answer != [1.0]:
            return [], [f"{where} is not true"]
        fits = min(within) <= said <= max(within)
        return [], [] if fits else [f"{where} has bounds that {said:g} is outside of"]
    if len(answer) != len(wanted):
        return [], [f"{where} gives {len(answer)} numbers for {len(wanted)}"]
    pairs = zip(wanted, answer, strict=True)
    wrong = [(number, value) for number, value in pairs if not number.holds(value)]
    words = [f"{where} is {value:g}" for n, value in wrong if not n.written(value)]
    return [(n, n.written(v)) for n, v in wrong if n.written(v)], words


def _around(text, number):
    """The words about a number, without comments."""
    before = COMMENT.sub("", text[: number.start])[-45:]
    words = before + number.text + COMMENT.sub("", text[number.end :])[:20]
    return " ".join(words.split())


def after(cells):
    """For every code cell the places of the markdown cells up to the next."""
    found = []
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            found.append([])
        elif found and cell["cell_type"] == "markdown":
            found[-1].append(place)
    return found
