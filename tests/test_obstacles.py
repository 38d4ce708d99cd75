"""Machines on which the course cannot run: a sentence and exit 1, never a traceback.

Each is a real process that meets a torch, a Python or a disk that is not as it should.
"""

import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, completed

BROKEN = 'raise OSError("libtorch.so: cannot open shared object file\\nmore")'
OLD = """
from types import SimpleNamespace as Some
__version__, version = "2.4.1", Some(cuda=None)
cuda = Some(device_count=lambda: 0)
"""
NONE = 'raise ModuleNotFoundError("No module named torch", name="torch")'
GOOD = OLD.replace("2.4.1", "2.13.0")
OBSTACLES = {
    "broken": (BROKEN, "__init__.py cannot be imported: OSError: libtorch.so"),
    "old": (OLD, "torch: 2.4.1, no CUDA. Install torch 2.11 or newer."),
    "none": (NONE, "torch: not installed. pip install torch"),
    "folder": ("", "__init__.py cannot be imported: AttributeError"),
}
TESTED = 'import sys; sys.argv[0] = "d2lpar"; from d2lpar.__main__ import main; main()'


def call(*words, path=(), python=sys.executable, before=""):
    """What a process of the command line says: (exit code, printed, errors)."""
    paths = os.pathsep.join(map(str, [*path, ROOT]))
    environ = os.environ | {"PYTHONPATH": paths, "COLUMNS": "200"}
    done = completed([python, "-c", before + TESTED, *words], env=environ, cwd=ROOT)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def stub(tmp_path):
    """A folder with this text as its torch."""

    def make(text):
        package = tmp_path / "torch"
        package.mkdir()
        (package / "__init__.py").write_text(text)
        (package / "distributed.py").write_text(
            "is_available = is_gloo_available = is_nccl_available = lambda: True"
        )
        return [tmp_path]

    return make


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_torch_that_is_of_no_use(stub, name):
    text, sentence = OBSTACLES[name]
    path = stub(text)
    code, printed, errors = call("doctor", path=path)
    assert (code, errors) == (1, "")
    assert printed.count("missing") == 1
    words = ["grade", "exercises"] if name == "broken" else ["run", "00"]
    code, printed, errors = call(*words, path=path)
    assert (code, printed) == (1, "")
    assert errors.startswith("d2lpar: torch: ")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of Unix")
def test_a_disk_to_which_nothing_can_be_written(stub):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    code, printed, errors = call("lab", path=stub(GOOD), before=limit)
    assert (code, printed) == (1, "")
    assert errors.startswith("d2lpar: temporary files: No usable temporary directory")
    assert errors.endswith("Set TMPDIR to a folder that you may write to.\n")


def test_packages_that_are_not_there(stub):
    path = stub(GOOD)
    hide = "import sys; sys.modules.update(cloudpickle=None, d2l=None, {}=None); "
    code, printed, _ = call("doctor", path=path, before=hide.format("sklearn"))
    assert code == 1
    assert "without sklearn, cloudpickle" in printed
    assert "pip install scikit-learn cloudpickle" in printed
    assert printed.count("missing") == 1  # without d2l the course runs
    code, _, errors = call("doctor", before=hide.format("typer"))
    assert (code, errors[:31]) == (1, "d2lpar: typer is not installed.")


def test_an_old_python():
    old = [shutil.which(f"python3.{minor}") for minor in (10, 9, 8, 7)]
    works = ["-c", "pass"]
    old = [p for p in old if p and subprocess.run([p, *works]).returncode == 0]
    if old:
        code, _, errors = call("doctor", python=old[0])
    else:
        before = "import sys; sys.version_info = (3, 10, 4); "
        code, _, errors = call("doctor", before=before)
    assert code == 1
    assert errors.startswith("d2lpar: This is Python 3.")
    assert errors.endswith("Install Python 3.11 or newer.\n")
