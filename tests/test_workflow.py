"""The workflow for GitHub: it parses, and what it calls is there."""

import re
import shlex

import pytest
import yaml

from conftest import ROOT
from d2lpar import cli

PATH = ROOT / ".github" / "workflows" / "test.yml"
WORKFLOW = yaml.safe_load(PATH.read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
COMMANDS = [s["run"] for job in JOBS.values() for s in job["steps"] if "run" in s]
TARGETS = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_calls_what_is_there(command):
    first, *words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "x", command))
    if first == "make":
        assert words[0] in TARGETS.split()
        variables = [word.split("=")[0] for word in words[1:]]
        assert all(
            f"\n{name} ?=" in (ROOT / "Makefile").read_text() for name in variables
        )
        return
    assert (first, words[0]) == ("python", "-m")
    tool, rest = words[1], words[2:]
    if tool == "d2lpar":
        assert rest[0] in [c.callback.__name__ for c in cli.app.registered_commands]
    elif tool == "pytest":
        files = [word for word in rest if word.startswith("tests/")]
        assert files and all((ROOT / name).is_file() for name in files)
    else:
        assert (tool, rest[0]) == ("pip", "install")


def test_three_systems_and_every_python_that_is_supported():
    linux, other = JOBS["linux"], JOBS["elsewhere"]
    assert linux["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert {"macos-latest", "windows-latest"} == set(other["strategy"]["matrix"]["os"])
    assert "make test" in " ".join(COMMANDS)


def test_it_runs_every_week_may_only_read_and_ends():
    assert WORKFLOW[True]["schedule"]  # YAML reads the word `on` as true
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in JOBS.values())
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())
