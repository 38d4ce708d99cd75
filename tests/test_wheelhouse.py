"""`make wheelhouse` and `OFFLINE=1`: what pip is asked for, and where it looks."""

import re
import shutil

import pytest

from conftest import ROOT, completed

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
FROZEN = "rich==15.0\ntorch==2.13.0+cpu\ntorchmetrics==1.8\nnvidia-nccl-cu13==2.28\n"
PIP = """#!/bin/sh
echo "$@" >> {log}
test "$1" != freeze || printf '{frozen}'
"""


def test_the_installed_packages_without_torch(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    for name in ("pip", "python"):
        frozen = FROZEN.replace("\n", "\\n")
        (tmp_path / "bin" / name).write_text(PIP.format(log=log, frozen=frozen))
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("installed", "grader", "site"):
        (tmp_path / name).touch()
    words = [f"VENV={tmp_path}", "--assume-old=pyproject.toml", "wheelhouse"]
    done = completed(["make", *words], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "make run OFFLINE=1" in done.stdout
    wanted = (tmp_path / "wheels.txt").read_text()
    assert re.findall(r"^[\w-]+", wanted, re.M) == ["rich", "torchmetrics"]
    freeze, wheel = [line for line in log.read_text().splitlines() if "-q" in line]
    assert "--exclude-editable" in freeze
    assert wheel.startswith("wheel -q --no-deps -w wheelhouse -r ")


@pytest.mark.parametrize(
    ("offline", "no_index"), [("OFFLINE=1", "1"), ("OFFLINE=", "")]
)
def test_make_installs_from_the_folder_alone(offline, no_index, monkeypatch):
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    show = "show: ; @echo [$$PIP_NO_INDEX] [$$PIP_FIND_LINKS]"
    done = completed(["make", "-s", "--eval", show, "show", offline], cwd=ROOT)
    folder = f"{ROOT}/wheelhouse" if no_index else ""
    assert done.stdout.strip() == f"[{no_index}] [{folder}]"
