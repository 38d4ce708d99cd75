"""`Report`: what a check has found, as text, as a table in a notebook, as a score."""

from dataclasses import dataclass, field
from html import escape

import torch

VERDICTS = {True: "pass", False: "FAIL", None: "-"}
HEADINGS = ["requirement", "measured", "allowed", "", "where"]


@dataclass
class Row:
    """One requirement: the figures in words, and whether it is met (None: unknown).

    `vital`: where this one fails, nothing else earns a point.
    """

    label: str
    measured: str
    allowed: str
    passed: bool | None
    where: str = ""
    vital: bool = False

    def cells(self):
        verdict = VERDICTS[self.passed]
        return [self.label, self.measured, self.allowed, verdict, self.where]


@dataclass(repr=False, eq=False)
class Report:
    """The judgement of one answer.

    rows       one per requirement, the outcome's first
    failing    the smallest call that shows the mistake, in words, or ""
    details    lines about that call: what came on a rank, what was expected
    mistake    name of the likely mistake, or None; `sentence` and `more` tell it
    run        the Run of the failing call, or of the last one; None if there is none
    done       False while the function is still the stub
    """

    name: str
    title: str
    rows: list = field(default_factory=list)
    failing: str = ""
    details: list = field(default_factory=list)
    mistake: str | None = None
    sentence: str = ""
    more: str = ""
    run: object = None
    done: bool = True
    hint: bool = False

    @property
    def passed(self):
        """Every requirement is met."""
        return self.done and all(row.passed for row in self.rows)

    @property
    def score(self):
        """From 0 to 1: half for the outcome, a quarter for requirements that are met,
        the last quarter where all are met.

        A wrong outcome earns nothing, and so does a broken vital requirement.
        """
        if not self.done or not all(row.passed for row in self.rows if row.vital):
            return 0.0
        how = [row for row in self.rows if not row.vital]
        met = sum(bool(row.passed) for row in how)
        return 1.0 if self.passed else 0.5 + 0.25 * met / len(how)

    @property
    def timeline(self):
        """The Timeline of the failing call, or of the last one; None without a run."""
        return self.run and self.run.timeline

    def __str__(self):
        if not self.done:
            return self._head()
        parts = [self._head(), _table([row.cells() for row in self.rows])]
        parts += filter(None, [self._call(), self._advice()])
        if not self.passed and self.timeline:
            parts.append(f"The timeline of that call:\n{self.timeline}")
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self):
        texts = filter(None, [self._call(), self._advice()])
        rows = [row.cells() for row in self.rows] if self.done else []
        blocks = [f"<p><b>{escape(self._head())}</b></p>", _html_table(rows)]
        return "\n".join(blocks + [_paragraph(text) for text in texts])

    def _ipython_display_(self):
        from IPython.display import display

        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        if self.done and not self.passed and self.timeline:
            display(self.timeline.plot(title="The timeline of that call"))

    def _head(self):
        head = f"{self.name} {self.title}: "
        if not self.done:
            return head + "not done yet"
        if self.passed:
            return head + "passed"
        met = sum(bool(row.passed) for row in self.rows)
        return head + f"not passed, {met} of {len(self.rows)} requirements met"

    def _call(self):
        if self.failing:
            return "\n".join([f"A failing call: {self.failing}", *self.details])
        return ""

    def _advice(self):
        if not self.sentence:
            return ""
        if self.hint:
            return f"Likely: {self.sentence} {self.more}".strip()
        tail = " (hint=True says more)" if self.more else ""
        return f"Likely: {self.sentence}{tail}"


def _table(rows):
    rows = [HEADINGS, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    rows.insert(1, ["-" * width for width in widths])
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _html_table(rows):
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in HEADINGS)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for label, *texts in rows:
        cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        lines.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody></table>"])


def _paragraph(text):
    first, *lines = text.split("\n")
    block = f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""
    return f"<p>{escape(first)}</p>{block}"


def short(value, most=6):
    """A value in one line, long tensors and lists cut in the middle."""
    if torch.is_tensor(value):
        kind = str(value.dtype).removeprefix("torch.")
        shape = list(value.shape)
        return f"{_cut(value.flatten().tolist(), most)} ({kind} {shape})"
    if isinstance(value, list | tuple) and len(value) > most:
        return _cut(value, most)
    try:
        text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    except Exception as error:  # whatever a class of the learner's does
        text = f"something that cannot be shown ({type(error).__name__})"
    return text if len(text) <= 120 else text[:117] + "..."


def _cut(values, most):
    shown = [f"{x:.6g}" if isinstance(x, float) else str(x) for x in values[:most]]
    return "[" + ", ".join(shown) + ", ..." * (len(values) > most) + "]"
