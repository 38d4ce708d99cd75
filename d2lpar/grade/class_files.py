"""Grade a class: one row after the other, into files that are whole at any time."""

from collections import Counter
from pathlib import Path

from . import gradebook
from .grade import feedback
from .handins import shown

COLUMNS = ["student", "notebook", "points", "of", "exercises", "seconds", "remarks"]


def cells_of(grade):
    """The row of a grade on the screen, as texts under COLUMNS."""
    each = [f"{name}: {got:g}/{of:g}" for name, (got, of) in grade.points.items()]
    return [
        grade.student,
        grade.notebook or shown(grade.submission.path.name),
        f"{grade.earned:g}",
        f"{grade.most:g}",
        "; ".join(each),
        f"{grade.seconds:.0f}",
        "; ".join(grade.remarks),
    ]


def commonest(grades, most=3):
    """Return a sentence per exercise: who earned all points, and the usual mistakes."""
    found = []
    for name in sorted({name for grade in grades for name in grade.points}):
        mine = [grade for grade in grades if name in grade.points]
        full = sum(grade.points[name][0] >= grade.points[name][1] for grade in mine)
        told = Counter(filter(None, (grade.likely.get(name) for grade in mine)))
        texts = [f"{times} x {shown(text)}" for text, times in told.most_common(most)]
        head = f"{name}: all points for {full} of {len(mine)}."
        found.append(" ".join([head, *texts]))
    return found


class Files:
    """What is written while a class is graded, and where.

    Where a file or folder of another run is there, a numbered name is used, and
    `notes` says so.  `canvas` and `moodle` want a roster.
    """

    def __init__(
        self, table=None, feedback=None, canvas=None, moodle=None,
        roster=None, assignment=None,
    ):  # fmt: skip
        self.notes, self.grades, self.names = [], [], gradebook.Names()
        self.roster, self.assignment = roster, assignment
        for name, path in {"--canvas": canvas, "--moodle": moodle}.items():
            if path is not None and roster is None:
                raise ValueError(f"{name} wants to know who is in the class: --roster.")
        if canvas is not None and roster.kind != "canvas":
            raise ValueError(
                "--canvas wants the gradebook that Canvas exports as --roster: its "
                "first line has Student, ID and Section."
            )
        paths = [self._unused(path) for path in (table, feedback, canvas, moodle)]
        self.table, self.feedback, self.canvas, self.moodle = paths
        self.write()

    def _unused(self, path):
        """A path where nothing is lost."""
        if path is None:
            return None
        if not Path(path).absolute().parent.is_dir():
            raise ValueError(f"There is no folder {path.parent} for {path.name}.")
        free = gradebook.unused(path)
        if free != Path(path):
            self.notes.append(
                f"{path} is there from another run: this one writes {free}."
            )
        return free

    def add(self, grade):
        """The grade is in the files; a feedback that cannot be written is a remark."""
        self.grades.append(grade)
        if self.feedback is not None:
            try:
                self._write_feedback(grade)
            except Exception as error:
                grade.remarks.append(shown(f"no feedback: {error}"))
        self.write()

    def _write_feedback(self, grade):
        self.feedback.mkdir(parents=True, exist_ok=True)
        whose = [grade.student, grade.submission.number, grade.notebook]
        whose[2] = whose[2] or grade.submission.path.stem
        path = self.feedback / (self.names.of(*filter(None, whose)) + ".md")
        text = feedback(grade)
        with open(path, "x", encoding="utf-8", errors="replace") as file:
            file.write(text)

    def write(self):
        """All tables hold what is known so far."""
        if self.table is not None:
            rows = gradebook.table(self.grades, self.roster)
            gradebook.write_csv(self.table, rows)
        self._write_import(self.canvas, gradebook.canvas)
        self._write_import(self.moodle, gradebook.moodle)

    def _write_import(self, path, made):
        if path is None:
            return []
        rows, notes = made(self.grades, self.roster, self.assignment)
        gradebook.write_csv(path, rows, self.roster.delimiter)
        return notes

    def ending(self):
        """Sentences for the end: what to do in Canvas or Moodle, who is a stranger."""
        notes = self._write_import(self.canvas, gradebook.canvas)
        notes += self._write_import(self.moodle, gradebook.moodle)
        if self.roster is not None:
            known = lambda grade: gradebook.whose(grade, self.roster)[0]
            odd = {grade.student for grade in self.grades if known(grade) is None}
            if odd:
                notes.append(f"Not found on the roster: {', '.join(sorted(odd))}.")
        return notes
