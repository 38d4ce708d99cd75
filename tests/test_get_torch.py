"""Which torch `make` installs where there is none, and what it says before."""

import os
import re
import socket
import subprocess
import sys
import time

import pytest

from authoring import get_torch
from conftest import ROOT, WATCHDOG

CPU = "https://download.pytorch.org/whl/cpu"
PLAIN, SMALL = "torch==2.13.0", "torch==2.13.0+cpu"
OFFERED = "torch (2.14.0)\nAvailable versions: {}, 2.12.1\n  LATEST: 2.14.0\n"
WITH, WITHOUT = OFFERED.format("2.13.0+cpu, 2.13.0"), OFFERED.format("2.13.0")
INDEX, EXTRA, ALONE = (
    f"global.timeout='5'\n{key}='x'\n"
    for key in (":env:.index-url", "global.extra-index-url", "install.no-index")
)


@pytest.fixture
def pip(monkeypatch):
    """A pip with this configuration, and indexes that offer this; its calls."""
    calls, told = [], {"config": "", "own": WITHOUT, "pytorch": WITH}

    def run(command, **options):
        words = command[3:]
        assert command[1:3] == ["-m", "pip"] and "input" not in options
        if words[0] == "config":
            return subprocess.CompletedProcess(command, 0, told["config"])
        if words[0] == "index":
            assert words[3:7] == ["--timeout", "5", "--retries", "0"]
            asked = "pytorch" if "--index-url" in words else "own"
            calls.append(asked)
            if told[asked] is None:
                raise subprocess.TimeoutExpired(command, options["timeout"])
            return subprocess.CompletedProcess(command, 0, told[asked])
        assert words[:2] == ["install", "--no-compile"]
        calls.append(words[2:])
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(get_torch, "has_driver", lambda: False)
    return calls, told


FROM_PYTORCH = [SMALL, "--index-url", CPU]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"own": WITH}, ["own", [SMALL]]),
        ({"own": WITH, "config": INDEX}, ["own", [SMALL]]),
        ({"own": WITH, "config": ALONE}, ["own", [SMALL]]),
        ({}, ["own", "pytorch", FROM_PYTORCH]),
        ({"config": EXTRA}, ["own", "pytorch", FROM_PYTORCH]),
        ({"own": None}, ["own", "pytorch", FROM_PYTORCH]),
        ({"config": ALONE}, ["own", [PLAIN]]),
    ],
)
def test_the_build_for_the_cpu_where_it_is_offered(pip, capsys, told, expected):
    calls, answers = pip
    answers |= told
    assert get_torch.get(PLAIN) == 7  # as pip has it
    assert calls == expected
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ({"pytorch": WITHOUT}, ["own", "pytorch"]),
        ({"pytorch": None, "own": None}, ["own", "pytorch"]),
        ({"pytorch": ""}, ["own", "pytorch"]),
        ({"config": INDEX}, ["own"]),
    ],
)
def test_else_it_says_before_how_large_and_what_to_type(pip, capsys, told, asked):
    calls, answers = pip
    answers |= told
    assert get_torch.get(PLAIN) == 7
    assert calls == [*asked, [PLAIN]]
    said = capsys.readouterr().out
    assert "about 2.5 GB to download and 6 GB on disk" in said
    assert f"-m pip install {PLAIN} --index-url {CPU}\n" in said


@pytest.mark.parametrize("wanted", ["torch", "torch==2.12.0+cu130", "./torch.whl"])
def test_what_names_no_plain_version_is_installed_as_it_is(pip, capsys, wanted):
    assert get_torch.get(wanted) == 7
    assert (pip[0], capsys.readouterr().out) == ([[wanted]], "")


@pytest.mark.parametrize("system", ["darwin", "win32", "linux"])
def test_elsewhere_and_with_a_driver_torch_is_installed_as_it_is(
    pip, monkeypatch, system
):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(get_torch, "has_driver", lambda: system == "linux")
    assert get_torch.get(PLAIN) == 7
    assert pip[0] == [[PLAIN]]


@pytest.mark.skipif(sys.platform == "win32", reason="a program without .exe")
def test_a_driver_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if not os.path.exists("/proc/driver/nvidia"):
        assert not get_torch.has_driver()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert get_torch.has_driver()


def alone(monkeypatch):
    """pip without the configuration of this machine."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_a_folder_of_wheels_is_asked_by_the_real_pip(tmp_path, monkeypatch):
    alone(monkeypatch)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert get_torch.offered() == []
    (tmp_path / "torch-2.13.0+cpu-py3-none-any.whl").touch()
    assert get_torch.offered() == ["2.13.0+cpu"]
    assert ".no-index=" in get_torch._ask("config", "list")


@pytest.mark.night
def test_an_address_that_does_not_answer_is_not_waited_for(monkeypatch):
    alone(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        began = time.monotonic()
        assert get_torch.offered(["--index-url", url]) == []
    assert time.monotonic() - began < WATCHDOG


def test_make_calls_it_only_where_there_is_no_torch():
    """And it has no address of its own."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [line] = re.findall(r"^.*authoring/get_torch.py.*$", makefile, re.M)
    assert '"$(HAS)" torch || ' in line and line.endswith('get_torch.py "$(TORCH)"')
    assert "://" not in (ROOT / "authoring" / "get_torch.py").read_text()
    assert get_torch.address() == CPU
