"""The workflow for GitHub: it parses, and what it calls is there."""

import re
import shlex
import types

import pytest
import yaml

from conftest import ROOT, SHARED, long_first
from d2lpar.cli import main as cli

PATH = ROOT / ".github" / "workflows" / "test.yml"
WORKFLOW = yaml.safe_load(PATH.read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
COMMANDS = [s["run"] for job in JOBS.values() for s in job["steps"] if "run" in s]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = " ".join(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)).split()


COMMANDS_OF_D2LPAR = [c.callback.__name__ for c in cli.app.registered_commands]
# What comes before a command that d2lpar's container or uv's environment executes.
STARTED = re.compile(r"^(docker run( --[a-z]+)* d2lpar|uv run|python -m) (?=d2lpar )")


def call(command):
    """The words of a command; `python -m d2lpar` is `d2lpar`, wherever it runs."""
    return shlex.split(STARTED.sub("", re.sub(r"\$\{\{.*?\}\}", "x", command)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_calls_what_is_there(command):
    first, *words = call(command)
    if first == "make":
        targets = [word for word in words if "=" not in word]
        assert set(targets) <= {*TARGETS, "x"}
        variables = [word.split("=")[0] for word in words if "=" in word]
        assert all(f"\n{name} ?=" in MAKEFILE for name in variables)
    elif first == "d2lpar":
        assert words[0] in COMMANDS_OF_D2LPAR
    elif first == "python" and words[1] == "pytest":
        files = [word for word in words if word.startswith("tests/")]
        assert files and all((ROOT / name).is_file() for name in files)
    elif first == "docker":
        assert words == ["build", "--tag", "d2lpar", "."]
        assert (ROOT / "Dockerfile").is_file()
    else:
        known = ("python -m pip install", "python -m build", "uv sync", "gh issue")
        assert command.startswith(known)


def test_the_package_is_tried_from_nothing():
    runs = [step["run"] for step in JOBS["package"]["steps"] if "run" in step]
    starts = [call(run) for run in runs]
    assert starts.count(["d2lpar", "run", "00"]) == 3  # the wheel, uv, the container


def test_three_systems_and_every_python_that_is_supported():
    linux, other = JOBS["linux"], JOBS["elsewhere"]
    assert linux["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert {"macos-latest", "windows-latest"} == set(other["strategy"]["matrix"]["os"])
    assert "make test" in " ".join(COMMANDS)


def test_the_lanes_are_all_that_make_test_does():
    [phases] = re.findall(r"--keep-going (lint.*)", MAKEFILE)
    lanes = JOBS["lanes"]["strategy"]["matrix"]["lane"]
    assert ["lint", *lanes] == phases.split()
    assert JOBS["lanes"]["needs"] == "lint" and set(lanes) <= set(TARGETS)


def test_every_night_every_part():
    [parts] = re.findall(r"^PARTS = (.*)$", MAKEFILE, re.M)
    assert JOBS["thorough"]["strategy"]["matrix"]["part"] == parts.split()
    assert all(
        re.search(rf"^(.* )?part-{part}( .*)?:", MAKEFILE, re.M)
        for part in parts.split()
    )
    [left_out] = re.findall(r"^OF_FILES = .*,([^)]*)\)\)$", MAKEFILE, re.M)
    names = left_out.replace("\\\n", " ").split()
    assert names and all((ROOT / f"tests/test_{name}.py").is_file() for name in names)


def test_every_test_of_the_night_is_in_a_part():
    """Those in no list of files are in the part called worlds."""
    lists = re.findall(r"^(?:ANSWERS|GPUS|SITE_TESTS|PACKAGES) = (.*)$", MAKEFILE, re.M)
    assert all((ROOT / name).is_file() for name in " ".join(lists).split())


@pytest.mark.parametrize("workers", [1, 2, 4, 7])
def test_every_worker_begins_with_tests_that_take_long(workers):
    def test(number, *fixtures):
        return types.SimpleNamespace(number=number, fixturenames=fixtures)

    long = [SHARED[number % len(SHARED)] for number in range(2 * len(SHARED))]
    items = [test(number) for number in range(41)]
    items += [test(41 + number, name) for number, name in enumerate(long)]
    ordered = long_first(items, workers)
    assert sorted(item.number for item in ordered) == [*range(len(items))]
    start = 0  # of the worker's part, as xdist cuts it
    for worker, name in zip(range(workers), SHARED, strict=False):
        first = ordered[start : start + 2]
        assert [item.fixturenames for item in first] == [(name,), (name,)]
        start += (len(items) - start) // (workers - worker)


def test_what_takes_long_are_fixtures_of_the_tests():
    text = "".join(path.read_text() for path in ROOT.glob("tests/test_*.py"))
    assert all(f"def {name}(tmp_path_factory" in text for name in SHARED)


def test_a_red_night_opens_an_issue():
    nightly = [name for name, job in JOBS.items() if "'schedule'" in job.get("if", "")]
    assert sorted(["report", *JOBS["report"]["needs"]]) == sorted(nightly)
    assert JOBS["report"]["if"].startswith("failure()")


def test_it_runs_every_night_may_only_read_and_ends():
    assert WORKFLOW[True]["schedule"]  # YAML reads the word `on` as true
    assert WORKFLOW["permissions"] == {"contents": "read"}
    able = {
        name: job["permissions"] for name, job in JOBS.items() if "permissions" in job
    }
    assert able == {"report": {"issues": "write"}}
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())
