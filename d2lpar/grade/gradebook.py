"""Grades as tables: a row per student, and the files that Canvas and Moodle import.

A roster tells who is in the class: Canvas's exported gradebook, Moodle's grading
worksheet or list of participants, or any table with a heading.  The columns that Canvas
and Moodle read are those of canvas-lms, lib/gradebook_importer.rb, and of moodle,
mod/assign/feedback/offline/importgradeslib.php.
"""

import csv
import io
import os
import re
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path

from .handins import shown

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Integration ID")
CANVAS += ("Root Account", "Section", "LastName", "FirstName")
POINTS = "    Points Possible"  # as Canvas writes it
# The columns of a plain roster that tell who somebody is, in small letters.
WHOLE = ("full name", "name", "student", "student name")
FIRST, LAST = ("first name", "firstname"), ("last name", "lastname", "surname")
NUMBERS = ("identifier", "id", "id number", "student id", "sis user id")
LOGINS = ("username", "login", "sis login id", "email address", "email", "e-mail")
ABSENT, STRANGER = "no submission", "not on the roster"
FORMULA = re.compile(r"\s*[=+\-@]|[\t\r\n]")


@dataclass
class Person:
    """One row of a roster.

    number   what Canvas and Moodle put into the names of files
    keys     texts that mean this person: logins, addresses, names
    """

    name: str
    number: str
    identity: str
    keys: set
    row: list


@dataclass
class Roster:
    """Who is in the class, with the file's own columns.

    kind     "canvas", "moodle" (a grading worksheet) or "plain"
    points   Canvas's row of points, or []
    """

    kind: str
    header: list
    people: list
    points: list = field(default_factory=list)
    delimiter: str = ","

    def find(self, submission):
        """(the Person who handed this in or None, why there is none)."""
        kind = {"canvas": "canvas", "moodle": "moodle"}.get(submission.system)
        if submission.number and kind == self.kind:
            found = [p for p in self.people if p.number == submission.number]
        else:
            key = _key(submission.student)
            found = [p for p in self.people if key and key in p.keys]
        if len(found) == 1:
            return found[0], ""
        return None, "fits two students of the roster" if found else STRANGER


def read_roster(path):
    """The Roster in a CSV file.

    Raises ValueError with a sentence where no column tells who somebody is.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8: save it as CSV UTF-8.") from None
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    lines = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    header = [cell.strip() for cell in lines[0]] if lines else []
    kind, width = _kind(header), len(header)
    rows = [(row + [""] * width)[:width] for row in lines[1:]]
    points = [row for row in rows if kind == "canvas" and "Points Possible" in row[0]]
    rows = [row for row in rows if row not in points and row[0].strip()]
    people = [_person(kind, header, row) for row in rows]
    if not any(person.keys for person in people):
        raise ValueError(
            f"{path} is no roster: its first line must name columns such as Student, "
            "ID, Full name, Email address or Username, and students must follow."
        )
    return Roster(kind, header, people, points[0] if points else [], delimiter)


def _kind(header):
    if "ID" in header and ("Student" in header or "LastName" in header):
        return "canvas" if "Section" in header else "plain"
    return "moodle" if {"Identifier", "Grade"} <= set(header) else "plain"


def _person(kind, header, row):
    names = [name.lower() for name in header]
    cells = dict(zip(names, map(str.strip, row), strict=True))
    first, last = ([cells[k] for k in names if k in cells] for names in (FIRST, LAST))
    whole = [cells[k] for k in WHOLE if cells.get(k)]
    whole = whole or [" ".join(filter(None, [*first, *last]))]
    numbers = [cells[k] for k in NUMBERS if cells.get(k)]
    logins = [cells[k] for k in LOGINS if cells.get(k)]
    number = cells.get("id" if kind == "canvas" else "identifier", "")
    number = number if kind == "canvas" else (re.findall(r"\d+$", number) or [""])[0]
    locals_ = [login.partition("@")[0] for login in logins]
    turned = [" ".join(reversed(each.split(", ", 1))) for each in whole]
    turned += [" ".join(reversed(each.rsplit(" ", 1))) for each in whole]
    turned += [" ".join([*last, *first])]
    keys = {_key(text) for text in [*whole, *turned, *numbers, *logins, *locals_]}
    identity = ([*numbers, *logins] or [""])[0]
    return Person(whole[0], number, identity, keys - {""}, row)


def _key(text):
    """Letters and digits only, in small: Canvas writes names in files like this."""
    return re.sub(r"[\W_]", "", text.casefold())


# Who has which grades


@dataclass
class Entry:
    """A student of the class, with grades: {notebook: Grade}, the best of each."""

    name: str
    identity: str
    person: Person | None = None
    grades: dict = field(default_factory=dict)


def entries(grades, roster=None):
    """[Entry] of all who are on the roster or handed something in, roster first."""
    known = {id(p): Entry(p.name, p.identity, p) for p in (roster or _NOBODY).people}
    others = {}
    for grade in grades:
        person, _ = whose(grade, roster)
        if person is not None:
            entry = known[id(person)]
        else:
            name, number = grade.student, grade.submission.number
            entry = others.setdefault((name, number), Entry(name, number))
        before = entry.grades.get(grade.notebook)
        if before is None or grade.earned > before.earned:
            entry.grades[grade.notebook] = grade
    return [*known.values(), *others.values()]


_NOBODY = Roster("plain", [], [])


def whose(grade, roster):
    """(Person or None, what to remark about that)."""
    return roster.find(grade.submission) if roster else (None, "")


def table(grades, roster=None):
    """Rows with a heading: one per notebook, with a column per exercise.

    Students of the roster who handed in nothing have a row, too.
    """
    most = {n: of for grade in grades for n, (_, of) in grade.points.items()}
    names = sorted(most)
    head = ["student", "id", "notebook", "points", "of"]
    head += [f"{name} of {most[name]:g}" for name in names] + ["seconds", "remarks"]
    rows, seen = [head], set()
    for grade in grades:
        person, problem = whose(grade, roster)
        seen.add(id(person))
        rows.append(_row(grade, person, names, problem))
    for person in roster.people if roster else ():
        if id(person) not in seen:
            none = ["", "0", "", *[""] * len(names), "", ABSENT]
            rows.append([person.name, person.identity, *none])
    return rows


def _row(grade, person, names, problem):
    """The row of one notebook."""
    who = [grade.student, grade.submission.number]
    if person is not None:
        who = [person.name, person.identity]
    row = [*who, grade.notebook or shown(grade.submission.path.name)]
    row += [_number(grade.earned), _number(grade.most)]
    row += [_number(grade.points.get(name, ("",))[0]) for name in names]
    remarks = [*grade.remarks, problem] if problem else grade.remarks
    return [*row, f"{grade.seconds:.0f}", "; ".join(remarks)]


def _number(value):
    return value if isinstance(value, str) else f"{round(value, 2):g}"


# What Canvas and Moodle import


def _sum(found, notebooks):
    """The points of an Entry in these notebooks; None: nothing is graded."""
    graded = [g for n, g in found.grades.items() if n in notebooks and g.points]
    return sum(g.earned for g in graded) if graded else None


def _cells(found, columns):
    """The points of an Entry in each of the columns, as texts."""
    got = [_sum(found, notebooks) for notebooks in columns.values()]
    return ["" if each is None else _number(each) for each in got]


def _columns(grades, assignment):
    """{heading: names of the notebooks that count there}."""
    notebooks = sorted({g.notebook for g in grades if g.notebook and g.points})
    if assignment is not None:
        return {assignment: notebooks}
    return {name: [name] for name in notebooks}


def _most(grades, notebooks):
    each = {g.notebook: g.most for g in grades if g.notebook in notebooks and g.points}
    return sum(each.values())


def canvas(grades, roster, assignment=None):
    """(rows for Canvas's import, sentences about what to do there).

    A column per notebook, or one for all that is called `assignment`.  Where the
    exported gradebook has a column of that title, it is filled.
    """
    who = [i for i, name in enumerate(roster.header) if name in CANVAS]
    columns, told = _columns(grades, assignment), []
    head, points = [roster.header[i] for i in who], [""] * len(who)
    points[0] = POINTS
    for title, names in columns.items():
        at = _assignment(roster.header, title)
        most = _number(_most(grades, names))
        there = roster.points[at].strip() if at is not None and roster.points else most
        head.append(title if at is None else roster.header[at])
        points.append(there)
        if _amount(there) != _amount(most):
            told.append(f"Canvas has {there} points for {head[-1]}, this has {most}.")
    rows = [head, points]
    for entry in entries(grades, roster):
        if entry.person is not None:
            whose = (entry.person.row[i] for i in who)
            rows.append([*whose, *_cells(entry, columns)])
    return rows, told


def _assignment(header, title):
    """The index of a column of that title, with or without Canvas's number."""
    for index, name in enumerate(header):
        bare = re.sub(r" \(\d+\)$", "", name)
        if name not in CANVAS and title in (name, bare):
            return index
    return None


def _amount(text):
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return None


def moodle(grades, roster, assignment=None):
    """(rows for Moodle's import, sentences about what to do there).

    A grading worksheet comes back with its column Grade filled and all others as they
    were.  Another roster gets a column per notebook, for Moodle's Import: CSV file.
    """
    columns, told = _columns(grades, assignment), []
    if roster.kind != "moodle":
        rows = [[*roster.header, *columns]]
        for entry in entries(grades, roster):
            if entry.person is not None:
                rows.append([*entry.person.row, *_cells(entry, columns)])
        return rows, told
    at, rows = roster.header.index("Grade"), [roster.header]
    every = [name for names in columns.values() for name in names]
    for entry in entries(grades, roster):
        if entry.person is not None:
            row, got = list(entry.person.row), _sum(entry, every)
            row[at] = row[at] if got is None else _number(got)
            rows.append(row)
    highest = [i for i, name in enumerate(roster.header) if "maximum" in name.lower()]
    there = _amount(roster.people[0].row[highest[0]]) if highest else None
    if there is not None and there < _most(grades, every):
        most = _number(_most(grades, every))
        told.append(
            f"Moodle leaves out grades above {there:g}: set the assignment's maximum "
            f"to {most}."
        )
    return rows, told


# Files


def safe(text):
    """The text as a cell that no spreadsheet takes for a formula; numbers stay."""
    text = str(text)
    if not FORMULA.match(text) or text == "-":
        return text
    return text if _amount(text) is not None else "'" + text


def write_csv(path, rows, delimiter=","):
    """The rows are in the file; the file is whole or as it was."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="", encoding="utf-8", errors="replace") as file:
        lines = ([safe(cell) for cell in row] for row in rows)
        csv.writer(file, delimiter=delimiter).writerows(lines)
    os.replace(part, path)


def unused(path):
    """This path, or with a number where something of another run is there."""
    path, number = Path(path), 1
    while os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        stem = path.stem.removesuffix(f"-{number - 1}") if number > 2 else path.stem
        path = path.with_name(f"{stem}-{number}{path.suffix}")
    return path


class Names:
    """Names for files, never twice the same, not in small letters either."""

    LONGEST = 150  # bytes, of the 255 that a name may have

    def __init__(self):
        self.taken = set()

    def of(self, *parts):
        """A name made of these parts."""
        text = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", shown("_".join(parts)))
        text = text.encode()[: self.LONGEST].decode("utf-8", "ignore").strip(". ")
        name, number = text, 1
        while self._folded(name) in self.taken:
            number += 1
            name = f"{text}-{number}"
        self.taken.add(self._folded(name))
        return name

    @staticmethod
    def _folded(name):
        return unicodedata.normalize("NFC", name.casefold())
