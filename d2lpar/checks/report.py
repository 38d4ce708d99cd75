"""`Report`: what a check has found, as text, as a table in a notebook, as a score."""

import io
import sys
from dataclasses import dataclass, field
from html import escape

from ..report.runs import Run
from ..report.timeline import Timeline

VERDICTS = {True: "pass", False: "FAIL", None: "not judged"}
HEADINGS = ["", "requirement", "measured", "allowed"]
WIDE = 79  # characters of the text twin
# Okabe and Ito's colours.  Only what fails is filled, so that grey tells them apart,
# and no text relies on the page's own background.
STYLES = {True: "#009E73", False: "bold #000000 on #D55E00", None: "dim"}
BADGE = "padding:0 .5em;border-radius:.3em;white-space:nowrap;border:2px "
BADGES = {
    True: BADGE + "solid #009E73",
    False: BADGE + "solid #D55E00;background:#D55E00;color:#000;font-weight:bold",
    None: BADGE + "dashed #999999",
}


@dataclass
class Row:
    """One requirement: the figures in words, and whether it is met (None: not judged).

    `where` is the call that the figures are of.  `vital`: it is part of the outcome,
    and these words say what is wrong where it fails.
    """

    label: str
    measured: str
    allowed: str
    passed: bool | None
    where: str = ""
    vital: str = ""

    def cells(self, call=""):
        """Texts under HEADINGS; `call` is the failing call that is shown below."""
        elsewhere = self.passed is False and self.where not in ("", call)
        wrong = "wrong " * bool(self.vital)
        where = f", {wrong}in the call: {self.where}" if elsewhere else ""
        return [VERDICTS[self.passed], self.label, self.measured + where, self.allowed]


@dataclass(repr=False, eq=False)
class Report:
    """The judgement of one answer.

    rows       one per requirement, the outcome's first
    failing    the smallest call that shows the mistake, in words, or ""
    details    lines about that call: what came on a rank, what was expected
    mistake    name of the likely mistake, or None; `sentence` and `more` tell it
    run        the Run of the failing call, or of the last one; None if there is none
    stuck      that call came to no end, so its timeline tells more than its outcome
    done       False while the function is still the stub
    """

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    failing: str = ""
    details: list[str] = field(default_factory=list)
    mistake: str | None = None
    sentence: str = ""
    more: str = ""
    run: Run | None = None
    stuck: bool = False
    done: bool = True
    hint: bool = False

    @property
    def passed(self) -> bool:
        """Every requirement is met."""
        return self.done and all(row.passed for row in self.rows)

    @property
    def score(self) -> float:
        """From 0 to 1: half for a right outcome, a quarter for the requirements met
        (as many parts of it as are met of those judged), the last quarter for all.

        A wrong outcome earns nothing.
        """
        if not self.done or self._broken():
            return 0.0
        return 1.0 if self.passed else 0.5 + 0.25 * self._met() / len(self._judged())

    def _broken(self):
        """The first row of the outcome that is not met, or None."""
        return next((row for row in self.rows if row.vital and not row.passed), None)

    def _judged(self):
        return [row for row in self.rows if not row.vital and row.passed is not None]

    def _met(self):
        return sum(row.passed for row in self._judged())

    @property
    def reckoning(self) -> str:
        """How the score came about, in a sentence."""
        met, of = self._met(), len(self._judged())
        if broken := self._broken():
            return f"Score 0: {broken.vital}, so nothing else counts."
        if self.passed:
            return "Score 1: the outcome is right, and all requirements are met."
        return (
            f"Score {self.score:.2f}: 0.50 for the right outcome, "
            f"{self.score - 0.5:.2f} for {met} of {of} requirements met."
        )

    @property
    def timeline(self) -> Timeline | None:
        """The Timeline of the failing call, or of the last one; None without a run."""
        return self.run.timeline if self.run else None

    def __str__(self):
        shown = [self._table(), *self._texts(), *self._lines()] if self.done else []
        return "\n\n".join([self._head(), *shown])

    __repr__ = __str__

    def __rich_console__(self, console, options):
        """What `rich.print` shows on a terminal: the text in colour."""
        from rich.text import Text

        yield Text(self._head(), style="bold")
        if self.done:
            yield from ("", self._grid())
            for text in [*self._texts(), *self._lines()]:
                yield from ("", Text(text))

    def _repr_html_(self):
        head = f"<p><b>{escape(self._head())}</b></p>"
        if not self.done:
            return head
        table = _html_table([(row, row.cells(self.failing)) for row in self.rows])
        parts = [text.partition("\n") for text in self._texts()]
        return "\n".join([head, table]) + "".join(
            f"\n<p>{escape(first)}</p>" + f"<pre>{escape(lines)}</pre>" * bool(lines)
            for first, _, lines in parts
        )

    def _ipython_display_(self):
        from IPython.display import display

        if sys.stdout.isatty():
            from rich import print

            return print(self)
        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        if self._pictured():
            display(self.timeline.plot(title="The timeline of that call"))

    def _pictured(self):
        """A timeline is shown of a call that hangs or costs too much, if it has one."""
        if not self.done or self.passed or not self.timeline:
            return False
        happened = self.timeline.world_size > 1 or self.timeline.elapsed > 0
        return happened and (self.stuck or not self._broken())

    def _lines(self):
        """The timeline as text, or where it is: it is longer than all else."""
        if not self._pictured():
            return []
        if not self.hint:
            return ["The timeline of that call: print(report.timeline), or hint=True"]
        return [f"The timeline of that call:\n{self.timeline}"]

    def _head(self):
        head = f"{self.name} {self.title}: "
        if not self.done:
            return head + "not done yet"
        if self.passed:
            return head + "passed"
        if broken := self._broken():
            outcome = broken.label == "outcome"
            return head + "not passed" + f", {broken.measured}" * outcome
        met, of = self._met(), len(self._judged())
        return head + f"not passed, right outcome, {met} of {of} requirements met"

    def _texts(self):
        """The paragraphs below the table."""
        largest = [row.where for row in self.rows if row.passed and row.where][-1:]
        texts = [f"Figures of rows that pass are of the call: {x}" for x in largest]
        if self.failing:
            call = f"A failing call: {self.failing}"
            texts.append("\n".join([call, *self.details]))
        if self.sentence:
            tail = " (hint=True says more)" if self.more else ""
            more = f" {self.more}" if self.hint else tail
            texts.append(f"Likely: {self.sentence}{more}".strip())
        return [self.reckoning, *texts]

    def _grid(self):
        """The rows as a table of rich."""
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in HEADINGS:
            grid.add_column(heading, overflow="fold")
        grid.columns[0].no_wrap = True
        for row in self.rows:
            verdict, *texts = map(Text, row.cells(self.failing))
            verdict.stylize(STYLES[row.passed])
            grid.add_row(verdict, *texts)
        return grid

    def _table(self):
        """The rows as plain text, of which no line is too long."""
        from rich.console import Console

        file = io.StringIO()
        plain = {"color_system": None, "force_jupyter": False, "force_terminal": False}
        Console(file=file, width=WIDE, **plain).print(self._grid())
        lines = file.getvalue().splitlines()
        return "\n".join(map(str.rstrip, lines))


def _html_table(rows):
    """A table of (row, its texts)."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in HEADINGS)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for row, (verdict, label, *texts) in rows:
        badge = f'<span style="{BADGES[row.passed]}">{verdict}</span>'
        cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
        label = f'<th scope="row">{escape(label)}</th>'
        lines.append(f"<tr><td>{badge}</td>{label}{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])
