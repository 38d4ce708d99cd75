"""Names of files as Canvas and Moodle give them, and what these two import."""

import csv
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import ROOT, completed
from d2lpar.cli import main as cli
from d2lpar.grade import class_files, gradebook, handins, process
from d2lpar.grade import grade as grading
from d2lpar.grade.handins import Submission

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,05_scatter (98765),Final Score
    Points Possible,,,,,21,(read only)
"Doe, Jane",123456,s100,jdoe,Monday,,0
"Roe, Richard",123457,s101,rroe,Monday,,0
"=HYPERLINK(""http://x.y"")",123458,s102,formula,Monday,,0
"""
MOODLE = """\
Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,\
Last modified (submission),Last modified (grade),Feedback comments
Participant 12345,Jane Doe,jane@uni.edu,Submitted for grading,,20.00,Yes,-,-,
Participant 12346,Richard Roe,richard@uni.edu,No submission,,20.00,Yes,-,-,
"""
PLAIN = "Name;Email\nJane Doe;jane@uni.edu\nRichard Roe;richard@uni.edu\n"


def written(folder, text):
    path = folder / "students.csv"
    path.write_bytes(text.encode("utf-8-sig"))
    return path


def graded(path, points, notebook="05_scatter", **about):
    """A Grade of 05.1 and 05.2 without running anything."""
    each = {"05.1": (points, 3.0), "05.2": (4.5, 18.0)}
    return grading.Grade(Submission(Path(path), **about), notebook, each)


# Names


def put(folder, *names):
    """Notebooks of these names, however empty, in the folder or below it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


CANVAS_NAMES = [
    ("doejane_123456_987654_05_scatter.ipynb", "doejane", "123456", False),
    ("doejane_LATE_123456_987654_05_scatter.ipynb", "doejane", "123456", True),
    ("doejane_late_123456_987654_05_scatter-2.ipynb", "doejane", "123456", True),
    ("de_la_cruzana_77_88_05_scatter.ipynb", "de_la_cruzana", "77", False),
    ("żółćjan_77_88_05_scatter.IPYNB", "żółćjan", "77", False),
    ("anon_x7Yz3_88_05_scatter.ipynb", "anon_x7Yz3", "anon_x7Yz3", False),
    ("LATE_anon_x7Yz3_88_05.ipynb", "anon_x7Yz3", "anon_x7Yz3", True),
]
MOODLE_NAMES = [
    ("Jane Doe_12345_assignsubmission_file/05_scatter.ipynb", "Jane Doe", "12345"),
    ("Jane Doe_12345_assignsubmission_file_/05_scatter.ipynb", "Jane Doe", "12345"),
    ("Jane Doe_12345_assignsubmission_file_/a/b.ipynb", "Jane Doe", "12345"),
    ("Jane Doe_12345_assignsubmission_file_05_scatter.ipynb", "Jane Doe", "12345"),
    ("Jane Doe_assignsubmission_file_/05_scatter.ipynb", "Jane Doe", ""),
]
OTHER_NAMES = [
    ("alice/05_scatter.ipynb", "alice"),
    ("alice.ipynb", "alice"),
    ("alice_05_scatter.ipynb", "alice_05_scatter"),
    ("alice/2024/05_scatter.ipynb", "alice"),
]


@pytest.mark.parametrize(
    ("name", "student", "number", "late", "system"),
    [
        *((*row, "canvas") for row in CANVAS_NAMES),
        *((*row, False, "moodle") for row in MOODLE_NAMES),
        *((*row, "", False, "") for row in OTHER_NAMES),
    ],
)
def test_the_names_that_canvas_and_moodle_give(
    tmp_path, name, student, number, late, system
):
    put(tmp_path, name)
    [found] = handins.submissions(tmp_path)
    came = found.student, found.number, found.late, found.system, found.problem
    assert came == (student, number, late, system, "")


def test_of_what_was_sent_to_canvas_again_the_newest_counts(tmp_path):
    names = ["doejane_12_300_05_scatter-1.ipynb", "doejane_12_99_05_scatter.ipynb"]
    names += ["doejane_12_98_06_allreduce.ipynb", "doejane_13_90_05_scatter.ipynb"]
    put(tmp_path, *names)
    found = {each.path.name: each.problem for each in handins.submissions(tmp_path)}
    assert found == {**dict.fromkeys(names, ""), names[1]: f"{names[0]} is newer"}


def test_links_and_folders_are_listed_and_not_followed(tmp_path):
    put(tmp_path, "outside/bob/x.ipynb", "in/.hidden/x.ipynb")
    inside = tmp_path / "in"
    (inside / "carol").symlink_to(tmp_path / "outside" / "bob")
    [found] = handins.submissions(inside)
    assert (found.student, found.problem) == ("carol", "it is a link, not a file")


def test_a_name_that_is_not_utf8_can_be_written(tmp_path):
    name = b"jos\xe9.ipynb"
    try:
        put(tmp_path, name.decode("utf-8", "surrogateescape"))
    except OSError:
        pytest.skip("the file system takes no such names")
    [found] = handins.submissions(tmp_path)
    rows = gradebook.table([grading.grade(found, [])])
    gradebook.write_csv(tmp_path / "out.csv", rows)
    assert "jos\ufffd" in (tmp_path / "out.csv").read_text(encoding="utf-8")


# Rosters


@pytest.mark.parametrize(
    ("text", "kind"), [(CANVAS, "canvas"), (MOODLE, "moodle"), (PLAIN, "plain")]
)
@pytest.mark.parametrize(
    "student", ["Jane Doe", "doejane", "jane@uni.edu", "jane", "jdoe", "Doe, Jane"]
)
def test_a_student_is_found_by_any_of_their_names(tmp_path, text, kind, student):
    roster = gradebook.read_roster(written(tmp_path, text))
    assert roster.kind == kind
    person, problem = roster.find(Submission(Path("x"), student))
    login = student in ("jane@uni.edu", "jane")
    if (kind == "canvas" and login) or (kind != "canvas" and student == "jdoe"):
        assert person is None and problem == "not on the roster"
    else:
        assert person.name in ("Jane Doe", "Doe, Jane")


def test_a_number_decides_where_the_roster_has_numbers(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, CANVAS))
    by = lambda number: roster.find(Submission(Path("x"), "doejane", number, "canvas"))
    assert by("123457")[0].name == "Roe, Richard"
    assert by("9") == (None, "not on the roster")


def test_two_of_one_name_are_not_guessed(tmp_path):
    text = "Name,Email\nJane Doe,a@uni.edu\nJane Doe,b@uni.edu\n"
    roster = gradebook.read_roster(written(tmp_path, text))
    found = roster.find(Submission(Path("x"), "Jane Doe"))
    assert found == (None, "fits two students of the roster")


@pytest.mark.parametrize("text", ["", "\n", "a,b\n1,2\n", "Student,ID\n"])
def test_what_is_no_roster_gets_one_sentence(tmp_path, text):
    with pytest.raises(ValueError, match="is no roster: its first line must name"):
        gradebook.read_roster(written(tmp_path, text))


# Tables


def test_the_table_has_a_row_for_all_and_a_column_per_exercise(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, MOODLE))
    about = {"number": "12345", "system": "moodle"}
    grades = [graded("a.ipynb", 3.0, student="Jane Doe", **about)]
    grades += [graded("b.ipynb", 0.0, student="stranger")]
    gradebook.write_csv(tmp_path / "out.csv", gradebook.table(grades, roster))
    assert (tmp_path / "out.csv").read_bytes().decode() == (
        "student,id,notebook,points,of,05.1 of 3,05.2 of 18,seconds,remarks\r\n"
        "Jane Doe,Participant 12345,05_scatter,7.5,21,3,4.5,0,\r\n"
        "stranger,,05_scatter,4.5,21,0,4.5,0,not on the roster\r\n"
        "Richard Roe,Participant 12346,,0,,,,,no submission\r\n"
    )


def test_what_canvas_imports(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, CANVAS))
    name = "doejane_123456_987654_05_scatter.ipynb"
    put(tmp_path / "in", name)
    [found] = handins.submissions(tmp_path / "in")
    each = {"05.1": (2.0 + 1 / 12, 3.0), "05.2": (4.5, 18.0)}
    files = class_files.Files(canvas=tmp_path / "out.csv", roster=roster)
    files.add(grading.Grade(found, "05_scatter", each))
    files.add(graded("x.ipynb", 1.0, student="stranger"))
    assert files.ending() == ["Not found on the roster: stranger."]
    assert (tmp_path / "out.csv").read_bytes().decode() == (
        "Student,ID,SIS User ID,SIS Login ID,Section,05_scatter (98765)\r\n"
        "    Points Possible,,,,,21\r\n"
        '"Doe, Jane",123456,s100,jdoe,Monday,6.58\r\n'
        '"Roe, Richard",123457,s101,rroe,Monday,\r\n'
        '"\'=HYPERLINK(""http://x.y"")",123458,s102,formula,Monday,\r\n'
    )


def test_what_moodle_imports(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, MOODLE))
    put(tmp_path / "in", "Jane Doe_12345_assignsubmission_file/05_scatter.ipynb")
    [found] = handins.submissions(tmp_path / "in")
    files = class_files.Files(moodle=tmp_path / "out.csv", roster=roster)
    each = {"05.1": (3.0, 3.0), "05.2": (4.5, 18.0)}
    files.add(grading.Grade(found, "05_scatter", each))
    assert files.ending() == [
        "Moodle leaves out grades above 20: set the assignment's maximum to 21."
    ]
    wanted = MOODLE.replace("grading,,", "grading,7.5,").replace("\n", "\r\n")
    assert (tmp_path / "out.csv").read_bytes().decode() == wanted


def test_moodles_gradebook_gets_a_column_per_notebook(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, PLAIN))
    grades = [graded("x", 3.0, student="jane")]
    grades += [graded("y", 1.0, "06_x", student="jane")]
    rows, _ = gradebook.moodle(grades, roster)
    assert rows == [
        ["Name", "Email", "05_scatter", "06_x"],
        ["Jane Doe", "jane@uni.edu", "7.5", "5.5"],
        ["Richard Roe", "richard@uni.edu", "", ""],
    ]


def test_all_notebooks_count_for_one_assignment(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, CANVAS))
    grades = [graded("x", 3.0, student="jdoe")]
    grades += [graded("y", 1.0, "06_x", student="jdoe")]
    rows, told = gradebook.canvas(grades, roster, "Week 3")
    assert [row[-1] for row in rows] == ["Week 3", "42", "13", "", ""]
    rows, told = gradebook.canvas(grades, roster, "05_scatter")
    assert rows[0][-1] == "05_scatter (98765)" and rows[1][-1] == "21"
    assert told == ["Canvas has 21 points for 05_scatter (98765), this has 42."]


def test_the_better_of_two_notebooks_counts():
    grades = [graded("x", p, student="a") for p in (1.0, 3.0, 2.0)]
    [entry] = gradebook.entries(grades)
    assert entry.grades["05_scatter"] is grades[1]


@pytest.mark.parametrize("option", ["canvas", "moodle"])
def test_an_import_wants_a_roster(tmp_path, option):
    with pytest.raises(ValueError, match=f"--{option} wants to know who is in"):
        class_files.Files(**{option: tmp_path / "x.csv"})


def test_canvas_wants_its_own_columns(tmp_path):
    roster = gradebook.read_roster(written(tmp_path, PLAIN))
    with pytest.raises(ValueError, match="the gradebook that Canvas exports"):
        class_files.Files(canvas=tmp_path / "x.csv", roster=roster)


def test_the_command_reads_a_download_and_writes_an_import(tmp_path, monkeypatch):
    judged = {"exercise": "00.1", "score": 0.75, "report": "the report"}
    told = [judged | {"likely": "It waits."}, {"end": True}]
    monkeypatch.setattr(process, "run", lambda *a: (told, None))
    inside = tmp_path / "submitted"
    inside.mkdir()
    for name in ("doejane_123456_987654_00_start", "roe_LATE_123457_987655_00_start"):
        shutil.copy(ROOT / "solutions" / "00_start.ipynb", inside / f"{name}.ipynb")
    words = ["--roster", written(tmp_path, CANVAS), "--canvas", tmp_path / "canvas.csv"]
    words += ["--csv", tmp_path / "grades.csv", "--feedback", tmp_path / "feedback"]
    done = CliRunner().invoke(cli.app, ["grade", *map(str, [inside, *words])])
    assert done.exit_code == 0, done.output
    assert "00.1: all points for 0 of 2. 2 x It waits." in done.output
    assert (tmp_path / "canvas.csv").read_bytes().decode() == (
        "Student,ID,SIS User ID,SIS Login ID,Section,00_start\r\n"
        "    Points Possible,,,,,2\r\n"
        '"Doe, Jane",123456,s100,jdoe,Monday,1.5\r\n'
        '"Roe, Richard",123457,s101,rroe,Monday,1.5\r\n'
        '"\'=HYPERLINK(""http://x.y"")",123458,s102,formula,Monday,\r\n'
    )
    rows = list(csv.reader((tmp_path / "grades.csv").open(encoding="utf-8")))
    assert [row[-1] for row in rows[1:]] == ["", "handed in late", "no submission"]
    names = {path.name for path in (tmp_path / "feedback").iterdir()}
    assert names == {"doejane_123456_00_start.md", "roe_123457_00_start.md"}


def test_a_roster_that_is_none_ends_the_command_before_it_grades(tmp_path):
    (tmp_path / "x.ipynb").write_text("{}")
    words = ["--roster", written(tmp_path, "a,b"), "--csv", tmp_path / "grades.csv"]
    done = CliRunner().invoke(cli.app, ["grade", *map(str, [tmp_path, *words])])
    assert "is no roster" in str(done.exception or done.output)
    assert not (tmp_path / "grades.csv").exists()


# Files


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("=1+1", "'=1+1"),
        ("+1-555", "'+1-555"),
        ("-x", "'-x"),
        ("@sum", "'@sum"),
        ("\tx", "'\tx"),
        (" =x", "' =x"),
        ("-3.5", "-3.5"),
        ("+2", "+2"),
        ("-", "-"),
        (-3.5, "-3.5"),
        ("Jane = x", "Jane = x"),
        ("    Points Possible", "    Points Possible"),
    ],
)
def test_no_cell_is_a_formula_and_numbers_stay_numbers(text, safe):
    assert gradebook.safe(text) == safe


def test_nothing_of_another_run_is_overwritten(tmp_path):
    for name in ("grades.csv", "grades-2.csv"):
        (tmp_path / name).write_text("before")
    (tmp_path / "told").mkdir()
    (tmp_path / "told" / "x.md").write_text("before")
    files = class_files.Files(tmp_path / "grades.csv", tmp_path / "told")
    files.add(graded(tmp_path / "x.ipynb", 1.0, student="x"))
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"grades.csv", "grades-2.csv", "grades-3.csv", "told/x.md",
                     "told-2/x_05_scatter.md"}  # fmt: skip
    assert (tmp_path / "grades-2.csv").read_text() == "before"
    assert files.notes[0] == (
        f"{tmp_path}/grades.csv is there from another run: this one writes "
        f"{tmp_path}/grades-3.csv."
    )


def test_the_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError):
        gradebook.write_csv(path, ([1 / each] for each in (1, 0)))
    assert path.read_text() == "before"


def test_no_feedback_overwrites_another(tmp_path):
    files = class_files.Files(feedback=tmp_path)
    students = ["Jane", "jane", "a/b", "a:b", "L" * 300, "L" * 299, "\x1b[2J", ""]
    for student in students:
        files.add(graded("x.ipynb", 1.0, student=student))
        files.add(graded("x.ipynb", 2.0, student=student))
    names = [path.name for path in tmp_path.iterdir()]
    assert len({name.lower() for name in names}) == len(names) == 2 * len(students)
    assert {"Jane_05_scatter.md", "Jane_05_scatter-2.md"} <= set(names)


def test_data_of_students_is_not_committed():
    paths = ["submitted/a/x.ipynb", "feedback/x.md", "feedback-2/x.md", "grades.csv",
             "grades-2.csv", "students.csv", "canvas.csv", "moodle.csv",
             "week3/solutions/x.ipynb", "source/x.ipynb", "gradebook.db"]  # fmt: skip
    git = ["git", "-C", str(ROOT)]
    done = completed([*git, "check-ignore", *paths])
    if done.returncode == 128:
        pytest.skip("this is no clone")
    assert done.stdout.split() == paths
    assert completed([*git, "ls-files", "-ci", "--exclude-standard"]).stdout == ""
