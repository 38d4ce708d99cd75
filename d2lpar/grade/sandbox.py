"""What the operating system keeps from a submission, where it can: bubblewrap.

Inside there are the system's libraries, Python and the course, to read, and one folder
to write into.  There are no solutions, no submissions of others, no other processes and
no network but the machine's own loopback.
"""

import functools
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/sys", "/opt/conda")
SYSTEM += ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
SYSTEM += ("/etc/alternatives",)
ALONE = ("user", "pid", "net", "ipc", "uts", "cgroup-try")
HERE = Path(__file__).resolve().parents[1]  # the package
# What a process of a submission keeps of the grader's environment.
KEPT = {"PATH", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"}
KEPT |= {"SYSTEMROOT", "COMSPEC", "PATHEXT", "WINDIR", "LD_LIBRARY_PATH"}
KEPT_FAMILIES = ("LC_", "PYTHON", "OMP_", "MKL_", "TORCH_", "GLOO_", "CONDA_")


@functools.cache
def problem():
    """Why bubblewrap does not protect here, in words, or "" where it does.

    It is tried: systems and containers may forbid what it needs.
    """
    if sys.platform != "linux":
        return "bubblewrap is for Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt install bubblewrap)"
    tried = [*wrapped(os.devnull), sys.executable, "-c", "import sys, socket"]
    try:
        done = subprocess.run(
            tried, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not start here: {error}"
    said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    return f"bubblewrap does not work here: {said}" if done.returncode else ""


def wrapped(work, secret=()):
    """The beginning of a command that runs inside, with one folder to write into.

    Folders that are `secret` are empty there, should they lie where Python lies.
    """
    command = [shutil.which("bwrap"), "--die-with-parent", "--cap-drop", "ALL"]
    command += [f"--unshare-{each}" for each in ALONE]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in readable():
        command += ["--ro-bind-try", path, path]
    for folder in map(Path, secret):
        if folder.is_dir() and any(map(folder.is_relative_to, readable())):
            command += ["--tmpfs", str(folder), "--remount-ro", str(folder)]
    if os.path.isdir(work):
        command += ["--bind", str(work), str(work), "--chdir", str(work)]
    return [*command, "--remount-ro", "/", "--"]


def readable():
    """Paths of the system, of Python with its packages, and of this package."""
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, site.getuserbase()]
    python += [os.path.dirname(os.path.realpath(sys.executable))]
    python += [sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")]
    packages = [p for p in sys.path if os.path.isdir(p) and not _of_the_clone(p)]
    paths = [*SYSTEM, *python, *packages, str(HERE)]
    paths = dict.fromkeys(os.path.abspath(p) for p in paths if p and os.path.exists(p))
    broad = {"/", "/tmp", os.path.expanduser("~")}
    return [path for path in sorted(paths) if path not in broad]


def _of_the_clone(folder):
    """In a clone of the course: beside its package there are its solutions."""
    folder, root = Path(folder).resolve(), HERE.parent
    installed = folder.is_relative_to(Path(sys.prefix).resolve())
    return folder.is_relative_to(root) and not installed


def environ(work):
    """The environment of a submission: none of the grader's secrets is in it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in KEPT or name.startswith(KEPT_FAMILIES)
    }
    home = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP", "D2LPAR_GRADED"), str(work))
    home |= {"IPYTHONDIR": f"{work}/.ipython", "MPLCONFIGDIR": f"{work}/.matplotlib"}
    home |= dict.fromkeys(("USER", "LOGNAME", "USERNAME"), "student")  # torch asks
    roots = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, roots))}
    path |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return kept | home | path | {"MPLBACKEND": "Agg", "D2LPAR_PROGRESS": "0"}


def in_force():
    """One line: what keeps submissions in their place on this machine."""
    guard = "Python's audit hook, limits on time and memory"
    if not problem():
        return f"Protection: bubblewrap (own files, no network), {guard}."
    return f"Protection: {guard}, and nothing else: {problem()}."
