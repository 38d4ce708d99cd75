"""The repository as a whole: one row of names, imports that point down, versions."""

import ast
import csv
import importlib
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
import yaml
from packaging.version import Version

import d2lpar
from conftest import ROOT
from d2lpar.shared import moved

PACKAGE = ROOT / "d2lpar"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULES.remove(PACKAGE / "shared" / "first_cell.py")  # a notebook's cell
FOR_AUTHORS = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# A room imports from the lines below its own, never from its own line or above; the
# modules of a room from each other, too, but not in a circle.
LAYERS = """
__main__
cli
grade
__init__
checks
hybrid sequence failures
mesh planning experts
data_parallel overlap parameter_server sharding network_partition tensor_parallel \
    pipeline
allreduce
scatter
messages
launch
sim
report
shared
"""
ROOMS = {"cli", "grade", "checks", "launch", "sim", "report", "shared"}
HEIGHT = {
    name: height
    for height, line in enumerate(reversed(LAYERS.strip().splitlines()))
    for name in line.split()
}
MOST_ENTRIES = 26  # of the package's folder
DOCUMENTS = ("README.md", "GUIDE.md", "CONTRIBUTING.md", "INSTRUCTORS.md")
APART = [(f"pipeline.schedule.{x}", "report") for x in ("actions", "makers", "rules")]


def name_of(path):
    """A module's name inside the package: "scatter", "world.engine"."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)


NAMES = {name_of(path) for path in MODULES}


def imports(path):
    """Modules of the package that this one imports, late and for types, too."""
    here = path.relative_to(PACKAGE).parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [a.name.split(".")[1:] for a in node.names if _is_ours(a.name)]
            yield from (".".join(parts) or "__init__" for parts in found)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, here)


def _is_ours(name):
    return name.split(".")[0] == "d2lpar"


def _from(node, here):
    if node.level == 0:
        if not _is_ours(node.module):
            return
        base = node.module.split(".")[1:]
    else:
        base = [*here[: len(here) - node.level + 1]]
        base += (node.module or "").split(".") if node.module else []
    for alias in node.names:
        whole = ".".join([*base, alias.name])
        yield whole if whole in NAMES else ".".join(base) or "__init__"


@pytest.fixture(scope="session")
def graph():
    """What each module of the package imports of it."""
    return {name_of(path): set(imports(path)) for path in MODULES}


# One row of names


def chapters():
    found = sorted(ROOT.glob("chapters/*.ipynb"))
    return [path.stem for path in found]


def test_chapters_are_called_by_number_and_name():
    odd = [name for name in chapters() if not re.fullmatch(r"\d\d_[a-z_]+", name)]
    assert odd == []


# From chapter 04 on a chapter has a module of its name.
CONCEPTS = [name[3:] for name in chapters() if name >= "04"]


def files_of(name):
    """The module of a concept, or those of its folder."""
    file = PACKAGE / f"{name}.py"
    return [file] if file.is_file() else sorted((PACKAGE / name).glob("*.py"))


@pytest.mark.parametrize("name", CONCEPTS)
def test_chapter_has_its_module_and_its_tests(name):
    assert files_of(name)
    assert (ROOT / "tests" / f"test_{name}.py").is_file()
    assert name in HEIGHT


@pytest.mark.parametrize("folder", ["exercises", "solutions"])
def test_exercises_and_solutions_belong_to_a_chapter(folder):
    """Or to the whole course: then their number comes after that of the last one."""
    found = {path.stem for path in ROOT.glob(f"{folder}/*.ipynb")}
    last = chapters()[-1][:2]
    assert {name for name in found if name[:2] <= last} <= set(chapters())


def test_an_exercise_has_a_solution():
    exercises, solutions = (
        {path.name for path in ROOT.glob(f"{folder}/*.ipynb")}
        for folder in ("exercises", "solutions")
    )
    assert exercises == solutions


# Imports point down


def test_every_module_has_a_layer():
    assert {name.split(".")[0] for name in NAMES} - set(HEIGHT) == set()


def test_imports_point_down(graph):
    room = lambda name: name.split(".")[0]
    up = [
        f"{name} imports {used}"
        for name in graph
        for used in graph[name]
        if HEIGHT[room(used)] >= HEIGHT[room(name)] and room(used) != room(name)
    ]
    assert up == []


@pytest.mark.parametrize("rooms", APART, ids=" ".join)
def test_rooms_that_are_apart(rooms, graph):
    for room, other in (rooms, rooms[::-1]):
        mine = [name for name in graph if name.startswith(room)]
        assert mine
        assert [n for n in mine if any(u.startswith(other) for u in graph[n])] == []


def test_a_room_says_what_it_is_for():
    doors = [path for path in MODULES if path.name == "__init__.py"]
    assert {path.parent.name for path in doors} > ROOMS
    told = {path: ast.get_docstring(ast.parse(path.read_text())) for path in doors}
    assert [str(path) for path, text in told.items() if not text] == []


def test_no_modules_import_each_other_in_a_circle(graph):
    done, circles = set(), []

    def visit(name, path):
        if name in path:
            circles.append([*path[path.index(name) :], name])
        elif name not in done:
            for used in graph.get(name, ()):
                visit(used, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    assert circles == []


def test_the_import_parser_sees_every_form(tmp_path, monkeypatch):
    source = (
        "import torch.distributed\nimport d2lpar\nfrom .. import scatter\n"
        "from .meter import Meter\ndef f():\n    from ..report import RankError\n"
        "    from d2lpar.sim.cluster import Cluster\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "sim").mkdir()
    path = tmp_path / "sim" / "x.py"
    path.write_text(source)
    expected = {"__init__", "scatter", "sim.meter", "report", "sim.cluster"}
    assert set(imports(path)) == expected


def private_torch(path):
    """Private names of torch that this module uses."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            named = [ast.unparse(node)]
        for name in named:
            if re.match(r"(torch|dist)\b.*\._(?!_)", name):
                yield f"{name}, line {node.lineno}"


def test_private_torch_is_in_one_folder():
    room = "sim.torch_private"
    others = [path for path in MODULES if not name_of(path).startswith(room)]
    found = {name_of(path): list(private_torch(path)) for path in others}
    assert {name: used for name, used in found.items() if used} == {}


# Light and small


def test_import_is_light():
    heavy = ("matplotlib", "sklearn", "pandas", "IPython", "rich", "typer", "nbclient")
    code = f"import d2lpar, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr


def sizes(path):
    """Name to lines of code, for every function and method of a module."""
    source = path.read_text(encoding="utf-8")
    return {
        node.name: lines_of_code(_text(node, source))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _text(node, source):
    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))


def test_no_function_is_longer_than_40_lines():
    found = {(name_of(p), f): size for p in MODULES for f, size in sizes(p).items()}
    assert {name: size for name, size in found.items() if size > 40} == {}


def test_a_concept_module_has_about_200_lines_of_code_at_most():
    concepts = [path for name in CONCEPTS for path in files_of(name)]
    found = {name_of(path): lines_of_code(path.read_text("utf-8")) for path in concepts}
    assert {name: lines for name, lines in found.items() if lines > 220} == {}


def test_a_concept_function_has_25_lines_at_most():
    paths = [path for name in CONCEPTS for path in files_of(name)]
    found = {(name_of(p), f): n for p in paths for f, n in sizes(p).items()}
    assert {name: size for name, size in found.items() if size > 25} == {}


def lines_of_code(source):
    """Lines without blank ones, comments and docstrings."""
    tree = ast.parse(source)
    prose = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            prose |= set(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        bool(text.strip()) and not text.strip().startswith("#") and i not in prose
        for i, text in lines
    )


def test_lines_of_code_are_counted_without_prose():
    assert lines_of_code('"""A.\n\nB."""\n\n# c\nx = 1\n\ndef f():\n    "d"\n') == 2


def test_every_public_function_has_a_docstring():
    bare = [
        f"{name_of(path)}.{node.name}"
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert bare == []


# Versions


def test_a_type_checker_sees_every_public_name():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [seen] = [node.body for node in tree.body if isinstance(node, ast.If)]
    homes = {alias.name: node.module for node in seen for alias in node.names}
    assert homes == d2lpar._HOME | {"schedule": "pipeline"}


def test_the_same_ruff_before_a_commit_and_in_tests():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    [version] = re.findall(r"ruff-pre-commit\n +rev: v(\S+)", hooks)
    assert f"ruff=={version}" in PROJECT["optional-dependencies"]["test"]


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {PROJECT['version']}\n" in citation


def requirements(*extras):
    """Name to lower bound of the dependencies and of some extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return dict(re.split(">=|==", line) for line in lines)


def test_dependencies_have_lower_bounds_only():
    everything = requirements(*PROJECT["optional-dependencies"])
    assert everything.pop("ruff")  # the one that says what is well formed
    for name, bound in everything.items():
        assert re.fullmatch(r"[a-z0-9-]+", name)
        assert re.fullmatch(r"[0-9.]+", bound)
    assert "d2l" not in everything


def locked():
    """Name to the versions that constraints.txt has of it: some depend on Python's."""
    found = defaultdict(list)
    for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]:
        name, version = re.fullmatch(r"([a-z0-9-]+)==([^ ;]+)( ; .+)?", line).groups()[
            :2
        ]
        found[name].append(Version(version))
    return found


def test_tested_versions_are_within_the_bounds():
    for name, bound in (requirements(*PROJECT["optional-dependencies"])).items():
        versions = locked()[name]
        assert name == "torch" or (versions and min(versions) >= Version(bound)), name
    assert "torch" not in locked()  # that of the machine, or TORCH of the Makefile


def test_every_way_to_install_takes_the_tested_versions():
    """But uv's, which has none, and the wheel, which has lower bounds alone."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda == ["python>=3.11,<3.14", "pip", "pytorch>=2.11"]
    assert pip == {"pip": ["-c constraints.txt", "-e .[lab,test]"]}
    for name in ("Dockerfile", "binder/postBuild", ".github/workflows/test.yml"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        ours = [line for line in lines if "pip install" in line and "[lab" in line]
        assert ours and all("constraints.txt" in line for line in ours), name


def test_version_is_the_same_everywhere():

    version = PROJECT["version"]
    assert d2lpar.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_file_names_a_package_index():
    """The one that uv alone reads is in tests/test_containers.py."""
    named = [
        path.name
        for path in [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
        if re.search(r"index-url|find-links|://[^/ ]*(pypi|simple)", path.read_text())
    ]
    assert named == []


# Notebooks that were handed out


@pytest.mark.parametrize("old", moved.MOVED)
def test_a_name_of_0_1_0_gives_the_module_of_today(old):
    found = importlib.import_module(f"d2lpar.{old}")
    assert found is importlib.import_module(f"d2lpar.{moved.MOVED[old]}")
    assert found.__spec__.name == f"d2lpar.{moved.MOVED[old]}"


# The documents say what is there


def test_a_stranger_finds_the_rooms():
    """Who lists the package sees a name per chapter, and the seven rooms."""
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert len(entries) <= MOST_ENTRIES
    concepts = {name[3:] for name in chapters()}
    plain = {"__init__.py", "__main__.py", "py.typed"}
    assert {name.removesuffix(".py") for name in entries - plain} - concepts == ROOMS
    rows = re.findall(r"^\| `(\w+)/` \|", FOR_AUTHORS, re.MULTILINE)
    assert set(rows) >= ROOMS


def test_paths_in_the_documents_exist():
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
        assert [link for link in links if not (ROOT / link).exists()] == []


def test_ci_calls_make_test_and_nothing_else():
    path = Path(ROOT / ".ci" / "run")
    lines = path.read_text().splitlines()
    assert [
        line for line in lines if line and not line.startswith(("#", "set ", "cd "))
    ] == ["make test"]
    assert path.stat().st_mode & 0o100


def test_what_the_guide_says_of_an_h100_is_recorded():
    with open(ROOT / "bench" / "h100.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["simulated_ms"]]
    rows = [r for r in rows if r["measured_ms"] != "out of memory"]
    short = lambda x: float(f"{float(x):.3g}")
    ms = lambda row: (float(row["simulated_ms"]), float(row["measured_ms"]))
    known = {(row["chapter"], *map(short, ms(row))) for row in rows}
    guide = " ".join((ROOT / "GUIDE.md").read_text(encoding="utf-8").split())
    told = re.findall(r"\| (\d\d) \|[^|]+\| ([\d.; ]+) \| ([\d.; ]+) \|", guide)
    for chapter, *columns in told:
        pairs = zip(*(map(short, column.split(";")) for column in columns), strict=True)
        assert len(told) > 15 and {(chapter, *pair) for pair in pairs} <= known
    off = [came / simulated for simulated, came in map(ms, rows) if came >= 1]
    within = [sum(1 / (1 + x) < each < 1 + x for each in off) for x in (0.1, 0.2)]
    text = "of the {} cases of a millisecond or more, {} are within 10 % of the "
    text += "measured time, {} within 20 %, and the middle one takes {:.2f} times"
    assert text.format(len(off), *within, median(off)) in guide
