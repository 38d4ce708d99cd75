"""Install torch where there is none: `python authoring/get_torch.py torch==2.13.0`.

With CUDA it is thirteen times as much to download as without.  So on Linux without an
NVIDIA driver the build for the CPU is preferred, where it is offered: first by what pip
is configured with, then, unless pip has an index of its own, by PyTorch's index, whose
address is in pyproject.toml.  Nobody is asked, and no address is waited for that does
not answer.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip"]
QUICK = ["--timeout", "5", "--retries", "0"]
MOST = 30  # seconds to ask one address, also where no name server answers
LARGE = """\
There is no NVIDIA driver here, and no small build of torch was found. The build that
comes now may be the one for CUDA: about 2.5 GB to download and 6 GB on disk. The build
for the CPU, about 0.2 GB and 0.7 GB, is all that the course needs. To get it instead,
press Ctrl-C, type the line below, and then the same command again.

    {python} -m pip install {wanted} --index-url {address}
"""


def get(wanted):
    """Install `wanted`, such as torch==2.13.0; return the exit code of pip."""
    exact = re.fullmatch(r"torch==(\d[0-9.]*)", wanted)
    if not exact or not sys.platform.startswith("linux") or has_driver():
        return _install(wanted)
    configured = _ask("config", "list")
    alone = re.search(r"\.no-index=", configured)
    own = alone or re.search(r"\.index-url=", configured)
    for source in [[], *([] if own else [["--index-url", address()]])]:
        if f"{exact[1]}+cpu" in offered(source):
            return _install(f"{wanted}+cpu", *source)
    if not alone:
        python = os.path.relpath(sys.executable)
        print(LARGE.format(python=python, wanted=wanted, address=address()), flush=True)
    return _install(wanted)


def has_driver():
    """Whether this machine has NVIDIA's driver."""
    return bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia").exists()


def address():
    """PyTorch's index of builds for the CPU, as uv reads it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.search(r'^url = "(.*)"$', text, re.MULTILINE)[1]


def offered(source=()):
    """The versions of torch that pip sees there; none where nobody answers."""
    told = _ask("index", "versions", "torch", *QUICK, *source)
    listed = re.search(r"^Available versions: (.*)$", told, re.MULTILINE)
    return listed[1].split(", ") if listed else []


def _ask(*words):
    """What pip prints, or nothing where it takes too long."""
    try:
        done = subprocess.run(
            [*PIP, *words],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=MOST,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _install(*words):
    return subprocess.run([*PIP, "install", "--no-compile", *words]).returncode


if __name__ == "__main__":
    raise SystemExit(get(sys.argv[1]))
