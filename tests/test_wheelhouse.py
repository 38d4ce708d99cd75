"""`d2lpar wheelhouse`: what pip is asked for, and that no torch slips in."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from authoring import wheelhouse
from conftest import ROOT
from d2lpar.cli import main as cli


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """pip puts what it finds into the folder; the list of what it was asked for."""
    calls = []

    def run(command, **options):
        folder = Path(command[command.index("--wheel-dir") + 1])
        folder.mkdir(exist_ok=True)
        calls.append(command[command.index("--wheel-dir") + 2 :])
        if "--find-links" in command:
            source = Path(command[command.index("--find-links") + 1])
            for wheel in source.glob("*.whl"):
                shutil.copy(wheel, folder)
        (folder / "rich-1-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    return calls


def test_torch_is_left_out(asked):
    wheels = wheelhouse.fill("house", "clone")
    assert [path.name for path in wheels] == ["rich-1-py3-none-any.whl"]
    assert asked[0][:2] == ["clone[lab,test,instructor]", "--find-links"]
    assert asked[1] == ["--no-deps", "d2l==1.0.3"]


def test_torch_comes_where_it_is_asked_for(asked):
    wheelhouse.fill("house", "clone", "torch==2.13.0")
    assert asked[0] == ["clone[lab,test,instructor]", "torch==2.13.0"]


def test_pip_takes_the_stand_in_for_torch(tmp_path):
    wheelhouse.empty_wheel(tmp_path)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index"]
    command += ["--ignore-installed", "--find-links", str(tmp_path), "torch>=2.11"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert f"Would install torch-{wheelhouse.STAND_IN}" in done.stdout, done.stderr


def test_pip_fails_in_one_sentence(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: w\nERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(cli.Refused, match="^pip failed. ERROR: no network$"):
        CliRunner().invoke(cli.app, ["wheelhouse"], catch_exceptions=False)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("offline", "no_index"), [("OFFLINE=1", "1"), ("OFFLINE=", "")]
)
def test_make_installs_from_the_folder_alone(offline, no_index, monkeypatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    show = "show: ; @echo [$$PIP_NO_INDEX] [$$PIP_FIND_LINKS]"
    done = subprocess.run(
        ["make", "-s", "--eval", show, "show", offline],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    folder = f"{ROOT}/wheelhouse" if no_index else ""
    assert done.stdout.strip() == f"[{no_index}] [{folder}]"
