"""What students handed in: which files there are, whose they are, what is in them.

Files may be named as Canvas and Moodle name them in a download of all submissions.
Nothing here runs what a file holds, and nothing about a file is taken for granted: it
may be a folder, a pipe, a link, huge, or no notebook at all.
"""

import json
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

LARGEST = 20_000_000  # bytes; the course's own notebooks have less than a million

# doejane_LATE_123456_987654_05_scatter-1.ipynb: the name without blanks, LATE or
# nothing, the student's number, the file's number, the file's name, a number where one
# name occurs twice.  Anonymous: anon_x7Yz3 in place of name and number.
CANVAS = re.compile(
    r"(?:(?P<name>\w+?)_)??(?P<late>LATE_)?(?P<number>[1-9]\d*|anon_[A-Za-z0-9]+)"
    r"_(?P<file>[1-9]\d*)_(?P<title>.+?)(?:-(?P<copy>\d))?\.ipynb",
    re.IGNORECASE,
)
# Jane Doe_12345_assignsubmission_file_/05_scatter.ipynb, or all of that in one name
MOODLE = re.compile(
    r"(?P<name>.+?)(?:_(?P<number>\d+))?_assignsubmission_file(?:_(?P<title>.*))?"
)
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Submission:
    """A notebook that somebody handed in.

    student   the name that the system or the folder gives
    number    the student's number in Canvas or Moodle, "" where there is none
    system    "canvas", "moodle", or ""
    file      Canvas's number of the file; the newest has the highest
    late      Canvas says that it came late
    problem   why it is not to be graded, in words, or ""
    """

    path: Path
    student: str
    number: str = ""
    system: str = ""
    file: int = 0
    late: bool = False
    problem: str = ""


def submissions(folder):
    """A Submission for all that is called *.ipynb under `folder`, in order of names.

    Links are listed and not followed.  Where Canvas has several versions of one
    notebook, the newest counts.  Raises FileNotFoundError where there is none.
    """
    folder = Path(folder)
    found = sorted(_listed(folder)) if folder.is_dir() else []
    if not found:
        raise FileNotFoundError(f"There is no notebook under {folder}.")
    return _newest([_named(folder, inside, problem) for inside, problem in found])


def _listed(folder):
    """(path inside the folder, why it is no file or "") of what is to have a row."""
    unread = []
    for place, folders, files in os.walk(folder, onerror=unread.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(place).relative_to(folder)
        for name in [*folders, *files]:
            wanted = name.lower().endswith(".ipynb") and not name.startswith(".")
            kind = _kind(os.path.join(place, name))
            if wanted or (name in folders and kind == "a link"):
                yield inside / name, f"it is {kind}, not a file" if kind else ""
    for error in unread:
        yield Path(error.filename).relative_to(folder), f"not readable: {error}"


def _kind(path):
    """What is no usual file, in words; "" for a usual one."""
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError as error:
        return f"something that cannot be read ({error.strerror})"
    return "" if kind == stat.S_IFREG else KINDS.get(kind, "something else")


def _named(folder, inside, problem):
    """The Submission at this path; its names tell whose it is."""
    if found := CANVAS.fullmatch(inside.name):
        number = found["number"]
        whose, late = found["name"] or number, found["late"] is not None
        about = shown(whose), number, "canvas", int(found["file"]), late, problem
        return Submission(folder / inside, *about)
    if found := MOODLE.fullmatch(inside.parts[0]):
        whose, number = shown(found["name"]), found["number"] or ""
        return Submission(folder / inside, whose, number, "moodle", problem=problem)
    whose = inside.parts[0] if len(inside.parts) > 1 else inside.stem
    return Submission(folder / inside, shown(whose), problem=problem)


def _newest(found):
    """Older versions of what a student sent to Canvas have a problem: a newer one."""
    newest = {}
    for each in found:
        if each.system == "canvas" and not each.problem:
            newest.setdefault(_title(each), each)
            newest[_title(each)] = max(newest[_title(each)], each, key=lambda s: s.file)
    return [
        each
        if (best := newest.get(_title(each), each)) is each or each.problem
        else replace(each, problem=f"{shown(best.path.name)} is newer")
        for each in found
    ]


def _title(submission):
    """(student, folder, name of the notebook without the number of its copy)."""
    found = CANVAS.fullmatch(submission.path.name)
    title = found["title"] if found else submission.path.name
    return submission.number, submission.path.parent, title.lower()


def shown(text):
    """The text without what a terminal or a file in UTF-8 cannot show."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        text = os.fsencode(text).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)


# What is in a notebook


@dataclass
class Book:
    """The code of a notebook.

    cells        [(the cell's grade id or None, its source)] of its code cells
    variations   {exercise: its variation}, of an assignment
    """

    cells: list
    variations: dict


def read(path):
    """The Book in a file, whatever else is in it.

    Raises ValueError with a sentence where the file is no notebook.
    """
    data = _bytes(path)
    try:
        return book(json.loads(data))
    except UnicodeDecodeError:
        raise ValueError("its text is not UTF-8") from None
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None


def _bytes(path):
    """The bytes of a usual file of a usual size; a pipe is not waited for."""
    if kind := _kind(path):
        raise ValueError(f"it is {kind}, not a file")
    usual = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags = usual | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            most = LARGEST // 1_000_000
            raise ValueError(f"it has {size / 1e6:.0f} MB, and {most} are allowed")
        return file.read(LARGEST)


def book(notebook):
    """The Book of a notebook's dictionary; what has another form counts as empty."""
    cells = _dict(notebook).get("cells")
    if not isinstance(cells, list):
        raise ValueError("it is no notebook: it has no list of cells")
    code = [c for c in map(_dict, cells) if c.get("cell_type") == "code"]
    about = _dict(_dict(_dict(notebook).get("metadata")).get("d2lpar"))
    found = [(_grade_id(cell), _source(cell.get("source"))) for cell in code]
    return Book(found, _dict(about.get("variations")))


def _dict(value):
    return value if isinstance(value, dict) else {}


def _grade_id(cell):
    name = _dict(_dict(cell.get("metadata")).get("nbgrader")).get("grade_id")
    return name if isinstance(name, str) else None


def _source(value):
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))
