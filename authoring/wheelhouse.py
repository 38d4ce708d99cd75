"""A folder of wheels from which the course installs on a machine without a network.

Torch is large and differs from machine to machine, so it is left out unless asked for.
pip finds the other packages while a wheel without content stands in for torch.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

EXTRAS = "lab,test,instructor"  # `test` has what pip builds a clone with
D2L = "d2l==1.0.3"  # its metadata asks for packages that are too old: without them
STAND_IN = "2.11+none"


def fill(folder, root, torch=None):
    """`folder` holds the wheels of the clone at `root` and of all that it needs.

    `torch`, such as "torch==2.13.0", adds torch and what torch needs.  RuntimeError
    with pip's own words where pip fails.  Returns the wheels.
    """
    folder = Path(folder)
    wanted = [f"{root}[{EXTRAS}]"]
    with tempfile.TemporaryDirectory() as scratch:
        if torch:
            wanted.append(torch)
        else:
            wanted += ["--find-links", scratch, f"torch=={STAND_IN}"]
            empty_wheel(scratch)
        _pip_wheel(folder, *wanted)
    for left_out in folder.glob(f"torch-{STAND_IN}-*.whl"):
        left_out.unlink()
    _pip_wheel(folder, "--no-deps", D2L)
    return sorted(folder.glob("*.whl"))


def empty_wheel(folder):
    """`folder` holds a wheel that is called torch, needs nothing and has nothing."""
    info = f"torch-{STAND_IN}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {STAND_IN}\n"
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(f"{folder}/torch-{STAND_IN}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")


def _pip_wheel(folder, *wanted):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir"]
    done = subprocess.run(
        [*command, str(folder), *wanted], stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        lines = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
        raise RuntimeError(f"pip failed. {(lines or [done.stderr.strip()])[-1]}")
