"""`Report`: what a check has found, as text, as a table in a notebook, as a score."""

import io
import sys
from dataclasses import dataclass, field
from html import escape

from ..report.runs import Run
from ..report.timeline import Timeline

VERDICTS = {True: "pass", False: "FAIL", None: "not judged"}
HEADINGS = ["", "requirement", "measured", "allowed"]
TIMELINE = "The timeline of that call: print(report.timeline), or hint=True"
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

    def html(self, call=""):
        """The same as a row of a table in HTML."""
        verdict, label, *texts = map(escape, self.cells(call))
        badge = f'<td><span style="{BADGES[self.passed]}">{verdict}</span></td>'
        cells = "".join(f"<td>{text}</td>" for text in texts)
        return f'<tr>{badge}<th scope="row">{label}</th>{cells}</tr>'


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
        broken, met, of = self._counts()
        if not self.done or broken:
            return 0.0
        return 1.0 if self.passed else 0.5 + 0.25 * met / of

    def _counts(self):
        """(first row of the outcome that is not met, or None; others met; judged)."""
        broken = next((row for row in self.rows if row.vital and not row.passed), None)
        others = [row.passed for row in self.rows if not row.vital]
        judged = [passed for passed in others if passed is not None]
        return broken, sum(judged), len(judged)

    @property
    def timeline(self) -> Timeline | None:
        """The Timeline of the failing call, or of the last one; None without a run."""
        return self.run.timeline if self.run else None

    def _pictured(self):
        """A timeline is shown of a call that hangs or costs too much, if it has one."""
        if not self.done or self.passed or not self.timeline:
            return False
        happened = self.timeline.world_size > 1 or self.timeline.elapsed > 0
        return happened and (self.stuck or not self._counts()[0])

    # What it says

    def _head(self):
        head, (broken, met, of) = f"{self.name} {self.title}: ", self._counts()
        if not self.done:
            return head + "not done yet"
        if self.passed:
            return head + "passed"
        if broken:
            outcome = broken.label == "outcome"
            return head + "not passed" + f", {broken.measured}" * outcome
        return head + f"not passed, right outcome, {met} of {of} requirements met"

    @property
    def reckoning(self) -> str:
        """How the score came about, in a sentence."""
        broken, met, of = self._counts()
        if broken:
            return f"Score 0: {broken.vital}, so nothing else counts."
        if self.passed:
            return "Score 1: the outcome is right, and all requirements are met."
        return (
            f"Score {self.score:.2f}: 0.50 for the right outcome, "
            f"{self.score - 0.5:.2f} for {met} of {of} requirements met."
        )

    def _texts(self):
        """The paragraphs below the table."""
        if not self.done:
            return []
        largest = [row.where for row in self.rows if row.passed and row.where][-1:]
        texts = [f"Figures of rows that pass are of the call: {x}" for x in largest]
        if self.failing:
            texts.append("\n".join([f"A failing call: {self.failing}", *self.details]))
        if self.sentence:
            tail = " (hint=True says more)" if self.more else ""
            more = f" {self.more}" if self.hint else tail
            texts.append(f"Likely: {self.sentence}{more}".strip())
        return [self.reckoning, *texts]

    # Its forms: on a terminal, as plain text, in a notebook

    def __rich_console__(self, console, options):
        """What `rich.print` shows on a terminal: the text in colour."""
        from rich.table import Table
        from rich.text import Text

        yield Text(self._head(), style="bold")
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in HEADINGS:
            grid.add_column(heading, overflow="fold", no_wrap=not heading)
        for row in self.rows:
            verdict, *texts = map(Text, row.cells(self.failing))
            verdict.stylize(STYLES[row.passed])
            grid.add_row(verdict, *texts)
        below = [Text(text) for text in self._texts()]
        if self._pictured() and self.hint:
            below.append(Text(f"The timeline of that call:\n{self.timeline}"))
        elif self._pictured():  # it is longer than all else
            below.append(Text(TIMELINE))
        for part in [grid, *below] if self.done else ():
            yield from ("", part)

    def __str__(self):
        """The same without colours: lines of the table are no longer than WIDE."""
        from rich.console import Console

        plain = {"color_system": None, "force_jupyter": False, "force_terminal": False}
        console = Console(file=io.StringIO(), width=WIDE, **plain)
        console.print(self, soft_wrap=True)
        return "\n".join(map(str.rstrip, console.file.getvalue().splitlines()))

    __repr__ = __str__

    def _repr_html_(self):
        lines = [f"<p><b>{escape(self._head())}</b></p>"]
        if self.done:
            head = "".join(f'<th scope="col">{escape(text)}</th>' for text in HEADINGS)
            lines.append(f"<table><thead><tr>{head}</tr></thead><tbody>")
            lines += [row.html(self.failing) for row in self.rows]
            lines.append("</tbody></table>")
        for text in self._texts():
            first, _, more = text.partition("\n")
            lines.append(
                f"<p>{escape(first)}</p>" + f"<pre>{escape(more)}</pre>" * bool(more)
            )
        return "\n".join(lines)

    def _ipython_display_(self):
        from IPython.display import display

        if sys.stdout.isatty():
            from rich import print

            return print(self)
        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        if self._pictured():
            display(self.timeline.plot(title="The timeline of that call"))
