"""The wheel and the sdist: they hold the whole course, and it runs from the wheel."""

import email
import os
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile

import pytest

from authoring import badges, project_links
from conftest import ROOT, completed

pytestmark = pytest.mark.night

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = ("chapters", "d2lpar", "exercises", "pictures", "solutions")
BESIDE = ("LICENSE", "LICENSE-text", "README.md", "pyproject.toml", ".gitignore")
LARGEST = 8e6  # bytes of a wheel


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """The files of the course without git, and two that do not belong to it."""
    folder = tmp_path_factory.mktemp("export")
    drop = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=drop)
    (folder / "tests").mkdir()
    for name in ("test_gpu.py", "conftest.py"):  # the second is not for the wheel
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    for name in BESIDE:
        shutil.copy(ROOT / name, folder)
    for stray in ("chapters/.ipynb_checkpoints/00.ipynb", "work/chapters/00.ipynb"):
        (folder / stray).parent.mkdir(parents=True)
        (folder / stray).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def wheel(export, tmp_path_factory):
    """The wheel that pip builds, from what is installed here and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    done = completed([*command, export])
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """A folder that holds what the wheel installs."""
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def course():
    """Name to bytes of every file of the course that learners get."""
    kinds = ("chapters/*.ipynb", "exercises/*.ipynb", "solutions/*.ipynb")
    kinds += (
        "chapters/further/*.ipynb",
        "solutions/*.toml",
        "solutions/*.py",
        "pictures/*.png",
    )
    found = [path for kind in kinds for path in ROOT.glob(kind)]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in found}


def test_the_wheel_holds_the_course_and_nothing_else_of_it(unpacked):
    inside = unpacked / "d2lpar" / "course"
    found = [path for path in inside.rglob("*") if path.is_file()]
    packed = {p.relative_to(inside).as_posix(): p.read_bytes() for p in found}
    assert packed.pop("test_gpu.py") == (ROOT / "tests/test_gpu.py").read_bytes()
    assert packed == course()
    assert len(packed) > 40


def test_the_wheel_holds_the_library_and_nothing_beside_it(unpacked):
    found = (ROOT / "d2lpar").rglob("*.*")
    library = {p.relative_to(ROOT) for p in found if p.parent.name != "__pycache__"}
    files = {p.relative_to(unpacked) for p in unpacked.rglob("*") if p.is_file()}
    others = {p for p in files - library if p.parts[:2] != ("d2lpar", "course")}
    assert library <= files
    assert {path.parts[0] for path in others} == {"d2lpar-0.1.0.dist-info"}


def test_the_wheel_is_small_enough_to_hand_out(wheel):
    assert wheel.stat().st_size < LARGEST


def test_the_sdist_holds_what_the_repository_does_and_no_copy(export, tmp_path):
    from hatchling.builders.sdist import SdistBuilder

    [path] = SdistBuilder(str(export)).build(directory=str(tmp_path))
    with tarfile.open(path) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "d2lpar").rglob("*.py")}
    assert set(course()) | here | set(BESIDE) <= set(names)
    assert [n for n in names if n.startswith("work/") or "_checkpoint" in n] == []


def test_what_builds_a_clone_is_in_the_extra_and_so_in_the_wheelhouse(monkeypatch):
    from hatchling import build

    monkeypatch.chdir(ROOT)
    extra = PROJECT["project"]["optional-dependencies"]["test"]
    assert set(PROJECT["build-system"]["requires"]) <= set(extra)
    wanted = (
        build.get_requires_for_build_editable() + build.get_requires_for_build_wheel()
    )
    names = {re.match(r"[\w-]+", line)[0] for line in wanted}
    assert names <= {line.split(">=")[0] for line in extra}


def targets(description):
    """Where the links and pictures of a description lead."""
    code = re.compile(r"^```.*?^```$", re.M | re.S)
    return re.findall(r"\]\(([^)]+)\)", code.sub("", description))


def test_the_description_shows_no_link_to_a_file_beside_it(unpacked):
    """A package index shows the README alone."""
    [path] = unpacked.glob("*.dist-info/METADATA")
    message = email.message_from_string(path.read_text(encoding="utf-8"))
    text = message.get_payload()
    assert message["Description-Content-Type"].startswith("text/markdown")
    assert text.startswith("# d2lpar") and "](pictures/" not in text
    found = [target for target in targets(text) if not target.startswith("https://")]
    assert found == [] and "00 start" in text


def described(folder, github, branch):
    """Description and addresses in the metadata of a stamped export."""
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    for name in BESIDE:
        shutil.copy(ROOT / name, folder)
    path = folder / "pyproject.toml"
    path.write_text(project_links.linked(path.read_text(), github, branch))
    core = ProjectMetadata(str(folder), PluginManager()).core
    return core.readme, core.urls


def test_with_an_address_links_lead_to_the_repository(tmp_path):
    github = "https://github.com/ada/course"
    text, urls = described(tmp_path, github, "spring")
    assert urls["Homepage"] == github
    assert urls["Changelog"] == f"{github}/blob/spring/CHANGELOG.md"
    raw = "https://raw.githubusercontent.com/ada/course/spring/pictures/gather_ring.gif"
    assert re.search(rf"^!\[The clock.*\]\({re.escape(raw)}\)$", text, re.M)
    found = targets(text)
    assert f"{github}/blob/spring/chapters/00_start.ipynb" in found
    assert f"{github}/blob/spring/GUIDE.md#on-colab-and-kaggle" in found
    assert all(target.startswith("https://") for target in found)


def test_an_address_is_replaced_and_removed():
    plain = project_links.linked((ROOT / "pyproject.toml").read_text())
    first = project_links.linked(plain, "https://github.com/ada/course")
    assert first != plain and project_links.linked(first) == plain
    second = project_links.linked(first, "https://github.com/b/c", "v2")
    assert "ada/course" not in second and project_links.linked(second) == plain


def test_badges_write_the_address_into_the_project(tmp_path):
    clone = tmp_path / "clone"
    drop = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "d2lpar", clone / "d2lpar", ignore=drop)
    for name in BESIDE:
        shutil.copy(ROOT / name, clone)
    path = clone / "pyproject.toml"
    assert path in badges.stamp("ada/course", root=clone)
    urls = tomllib.loads(path.read_text())["project"]["urls"]
    assert urls["Homepage"] == "https://github.com/ada/course"
    assert path not in badges.stamp("ada/course", root=clone)


# As an installed course


@pytest.fixture
def installed(unpacked, tmp_path):
    """Call d2lpar in an empty folder, imported from the unpacked wheel alone."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("D2LPAR_")}
    environ["PYTHONPATH"] = str(unpacked)

    def call(*words):
        words = [sys.executable, "-m", "d2lpar", *words]
        return completed(words, cwd=tmp_path, env=environ)

    return call


def test_a_chapter_runs_in_an_empty_folder(installed, unpacked, tmp_path):
    before = {path: path.read_bytes() for path in unpacked.rglob("*.ipynb")}
    done = installed("run", "00")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"00_start .* pass\n", done.stdout)
    assert list(tmp_path.iterdir()) == []
    assert {path: path.read_bytes() for path in unpacked.rglob("*.ipynb")} == before


def test_the_course_is_laid_out_from_the_package(installed, tmp_path):
    done = installed("course")
    assert done.stdout == (
        "The course is in d2lpar-course. These copies are yours to change.\n"
    ), done.stderr
    laid = tmp_path / "d2lpar-course"
    shown = {name for name in course() if not name.endswith((".toml", ".py"))}
    assert {name: (laid / name).read_bytes() for name in shown} == {
        name: data for name, data in course().items() if name in shown
    }


def test_commands_that_read_notebooks_find_them_in_the_package(installed, tmp_path):
    assert installed("script", "04").stdout.endswith(" 04_messages.py\n")
    assert "04.1" in installed("exercises", "04", "--list").stdout


def test_the_paths_for_gpus_are_in_the_package(installed):
    done = installed("doctor", "--prove", "--backend", "sim", "--ranks", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| sim, 2 ranks | chapter 13 1F1B | passed |" in done.stdout


def test_the_commands_of_authors_are_in_a_clone_only(installed):
    done = installed("sync", "00")
    assert done.returncode == 2
    assert "No such command 'sync'" in done.stderr
