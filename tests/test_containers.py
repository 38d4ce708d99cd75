"""Dockerfile, devcontainer and Binder: they install and start what is there."""

import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest

from conftest import ROOT
from d2lpar.cli import main as cli

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
POST_BUILD = ROOT / "binder" / "postBuild"
REQUIREMENTS = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CPU = "https://download.pytorch.org/whl/cpu"
TORCH = re.search(r"^TORCH \?= (\S+)$", MAKEFILE, re.M)[1]


def steps(keyword):
    """What the last stage of the Dockerfile says after a keyword, in its order."""
    stage = DOCKERFILE.rpartition("\nFROM ")[2]
    return re.findall(rf"^{keyword} (.*)$", stage, re.M)


def commands(text):
    """The commands of d2lpar that a text calls."""
    return re.findall(r"(?:-m |\")d2lpar\"?,? \"?(\w+)", text)


@pytest.mark.parametrize(
    "text",
    [
        (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"),
        POST_BUILD.read_text(encoding="utf-8"),
        DOCKERFILE,
    ],
    ids=["devcontainer", "Binder", "Dockerfile"],
)
def test_the_commands_are_there(text):
    known = [command.callback.__name__ for command in cli.app.registered_commands]
    found = commands(text)
    assert found and set(found) <= set(known)


def test_the_container_starts_jupyterlab_and_not_as_root():
    [start], users = steps("CMD"), steps("USER")
    words = json.loads(start)
    assert words[:2] == ["d2lpar", "lab"] and "--ip=0.0.0.0" in words
    assert users == ["learner"]
    lines = DOCKERFILE.splitlines()
    assert lines.index("USER learner") < lines.index(f"CMD {start}")


def test_every_container_has_the_torch_of_the_makefile_for_the_cpu():
    assert f"ARG TORCH={TORCH}\n" in DOCKERFILE
    assert f"ARG TORCH_INDEX={CPU}\n" in DOCKERFILE
    assert REQUIREMENTS.splitlines()[1:] == [f"--extra-index-url {CPU}", TORCH]
    devcontainer = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert devcontainer["containerEnv"] == {"PIP_EXTRA_INDEX_URL": CPU}


def test_what_git_ignores_is_not_sent_to_docker():
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert {".git", ".venv", "build", "dist", "wheelhouse", "work"} <= ignored


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_binder_can_execute_its_script():
    assert os.access(POST_BUILD, os.X_OK)
    subprocess.run(["bash", "-n", str(POST_BUILD)], check=True)


def test_the_devcontainer_installs_with_make_and_opens_the_copy():
    devcontainer = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    targets = re.findall(r"\bmake (\w+)", devcontainer["postCreateCommand"])
    assert targets == ["setup"] and "\nsetup:" in MAKEFILE
    [opened] = devcontainer["customizations"]["codespaces"]["openFiles"]
    assert opened.startswith("work/")
    assert (ROOT / opened.removeprefix("work/")).is_file()


def test_uv_takes_torch_for_the_cpu_from_its_own_index_and_nothing_else_there():
    uv = PROJECT["tool"]["uv"]
    [index] = uv["index"]
    assert (index["url"], index["explicit"]) == (CPU, True)
    assert uv["sources"]["torch"]["index"] == index["name"]
    assert list(uv["sources"]) == ["torch"]
    groups = PROJECT["dependency-groups"]
    assert [groups[name] for name in uv["default-groups"]] == [["d2lpar[lab]"]]
