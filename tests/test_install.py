"""Installing the versions that were tested, and others where an index lacks them."""

import subprocess
from pathlib import Path

import pytest

from authoring import install

LOCKED = "# tested\nflit-core==3.9\nSix==1.17.0 ; python_version < '4'\nzipp==4.1\n"
CONFLICT = """
The conflict is caused by:
    d2lpar 0.1.0 depends on {0}>=1
    The user requested (constraint) {0}=={1}
"""


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A pip that refuses some lines with a text; `calls` are what it was told."""
    calls, refused = [], []

    def run(command, **options):
        words = command[len(install.PIP) :]
        assert command[: len(install.PIP)] == install.PIP
        lines = Path(words[1]).read_text().splitlines() if words[0] == "-c" else []
        calls.append((words[2:] if lines else words, lines[1:]))
        for start, text in refused:
            if any(line.startswith(start) for line in lines):
                return subprocess.CompletedProcess(command, 1, text, "ERROR\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    file = tmp_path / "constraints.txt"
    file.write_text(LOCKED)
    return calls, refused, file


def test_the_tested_versions_are_installed(pip, capsys):
    calls, _, file = pip
    assert install.install(["-e", "."], file) == 0
    assert calls == [(["-e", "."], LOCKED.splitlines()[1:])]
    assert install.install(["-e", "."], None) == 0
    assert calls[1] == (["-q", "-e", "."], [])
    assert capsys.readouterr() == ("", "")


def test_a_version_that_is_not_to_be_had_is_named_and_the_newest_taken(pip, capsys):
    calls, refused, file = pip
    refused += [("Six", CONFLICT.format("six", "1.17.0"))]
    refused += [("flit-core", CONFLICT.format("flit_core", "3.9"))]
    assert install.install(["."], file) == 0
    assert calls[-1] == (["."], ["zipp==4.1"])
    said = capsys.readouterr().out
    for each in ("six 1.17.0", "flit_core 3.9"):
        assert f"{each} is not to be had here, or does not fit: the newest" in said


@pytest.mark.parametrize("text", [CONFLICT.format("torch", "2"), "No space left\n"])
def test_any_other_error_is_pips_own(pip, capsys, text):
    calls, refused, file = pip
    refused.append(("", text))
    assert install.install(["."], file) == 1
    assert len(calls) == 1
    said = capsys.readouterr().err
    assert text in said and "CONSTRAINTS= to the command" in said
