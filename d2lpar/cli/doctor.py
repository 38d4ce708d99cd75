"""What this machine has for the course, what is missing and how to get it."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

PYTHON = (3, 11)
TORCH = (2, 11)
PACKAGES = {  # as they are imported, and as they are installed
    "numpy": "numpy",
    "matplotlib": "matplotlib",
    "ipywidgets": "ipywidgets",
    "sklearn": "scikit-learn",
    "cloudpickle": "cloudpickle",
}
GB = 1e9


@dataclass(frozen=True)
class Finding:
    """One fact about this machine.

    `state` is "ok", "note" (the course runs without it) or "missing" (it does not).
    `advice` is one sentence, empty where there is nothing to do.
    """

    topic: str
    value: str
    state: str = "ok"
    advice: str = ""


def examine():
    """All findings, in the order in which they matter."""
    found = [python(), machine(), *torch(), packages(), *gpus()]
    return [*found, auto(), scratch(), notebooks(), d2l()]


def can_run(findings):
    """Whether the course runs on a machine with these findings."""
    return all(finding.state != "missing" for finding in findings)


def obstacle():
    """Why the course cannot run here, in one sentence or two; "" where it can."""
    for finding in (python(), *torch(), packages(), scratch()):
        if finding.state == "missing":
            return f"{finding.topic}: {finding.value}. {finding.advice}"
    return ""


def python():
    """The version of this Python."""
    value = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.version_info[:2] < PYTHON:
        advice = f"Install Python {PYTHON[0]}.{PYTHON[1]} or newer."
        return Finding("Python", value, "missing", advice)
    return Finding("Python", value)


def machine():
    """Cores that this process may use, and memory."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    value = f"{count or os.cpu_count()} cores"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        value += f", {memory / GB:.0f} GB"
    return Finding("machine", value)


def torch():
    """Findings about torch and its backends."""
    module = _torch()
    if module is None:
        return [_no_torch()]
    version = module.__version__
    numbers = tuple(int(part) for part in version.split(".")[:2])
    build = module.version.cuda
    value = f"{version}, " + (f"CUDA {build}" if build else "no CUDA")
    if numbers < TORCH:
        advice = f"Install torch {TORCH[0]}.{TORCH[1]} or newer."
        return [Finding("torch", value, "missing", advice)]
    if not module.distributed.is_available():
        advice = "Install a torch that was built with torch.distributed."
        return [Finding("torch", f"{value}, not distributed", "missing", advice)]
    from ..launch import versions

    newer = versions.newer_than_tried(version)
    finding = Finding("torch", value, "note" if newer else "ok", newer)
    return [finding, gloo(module), nccl(module)]


def _no_torch():
    """torch is not installed, or it is there and cannot be imported."""
    try:
        importlib.import_module("torch").__version__  # noqa: B018
        importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return Finding("torch", "not installed", "missing", "pip install torch")
        value = _sentence(error)
    except Exception as error:  # whatever a broken wheel raises
        value = _sentence(error)
    else:
        value = "not installed"  # it is there now
    where = getattr(importlib.util.find_spec("torch"), "origin", None)
    value = f"{where or 'it'} cannot be imported: {value}"
    advice = "Install it again: pip install --force-reinstall torch"
    return Finding("torch", value, "missing", advice)


def _sentence(error):
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def packages():
    """Whether all other packages that the course imports are there."""
    lacking = [name for name in PACKAGES if not _has(name)]
    if lacking:
        names = " ".join(PACKAGES[name] for name in lacking)
        value = "without " + ", ".join(lacking)
        return Finding("packages", value, "missing", f"pip install {names}")
    return Finding("packages", "all there")


def gloo(module):
    """Whether ranks can be processes."""
    if module.distributed.is_gloo_available():
        return Finding("Gloo", "available")
    advice = "Only the simulator works: install a torch built with Gloo."
    return Finding("Gloo", "not in this torch", "note", advice)


def nccl(module):
    """Whether ranks can have a GPU each."""
    if module.distributed.is_nccl_available():
        return Finding("NCCL", "available")
    return Finding("NCCL", "not in this torch", "note", "Needed only for GPUs.")


def gpus():
    """A finding per GPU, and one about the links between them."""
    module = _torch()
    count = module.cuda.device_count() if module else 0
    if not count:
        return [Finding("GPUs", "none", *_why_no_gpu(module))]
    found = []
    for i in range(count):
        properties = module.cuda.get_device_properties(i)
        value = f"{properties.name}, {properties.total_memory / GB:.0f} GB"
        found.append(Finding(f"GPU {i}", value))
    if count > 1:
        found.append(links(module, count))
    return found


def _why_no_gpu(module):
    driver = shutil.which("nvidia-smi")
    if driver and module and not module.version.cuda:
        return "note", "There is an NVIDIA driver: a CUDA build of torch would use it."
    if driver:
        return "note", "There is an NVIDIA driver, but torch sees no GPU through it."
    return "note", "A CPU build of torch is enough: every chapter runs simulated."


def links(module, count):
    """Which GPUs reach each other's memory, and over what."""
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    direct = sum(module.cuda.can_device_access_peer(i, j) for i, j in pairs)
    value = f"{direct} of {len(pairs)} pairs reach each other's memory"
    rows = topology()
    if rows:
        value += "\n" + "\n".join(rows)
    return Finding("links", value)


def topology():
    """Heading and rows about GPUs of `nvidia-smi topo -m`, none where there is none."""
    return [line.rstrip() for line in _nvidia_smi("topo", "-m") if "GPU" in line[:4]]


def driver():
    """Return the version of NVIDIA's driver, "unknown" without nvidia-smi."""
    lines = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return ", ".join(dict.fromkeys(lines)) or "unknown"


def _nvidia_smi(*words):
    """Return the lines that nvidia-smi prints, none where it is not there or fails."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    how = {"capture_output": True, "text": True, "timeout": 20}
    try:
        done = subprocess.run([tool, *words], **how)
    except (OSError, subprocess.TimeoutExpired):
        return []
    printed = done.stdout if done.returncode == 0 else ""
    return re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()


def auto():
    """What `backend="auto"` chooses here."""
    module = _torch()
    count = module.cuda.device_count() if module else 0
    value = f"nccl up to world_size={count}, gloo above" if count else "gloo"
    return Finding('backend="auto"', value)


def scratch():
    """Whether a file can be written where processes exchange what they share."""
    try:
        folder = tempfile.gettempdir()
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"d2lpar")
    except OSError as error:
        advice = "Set TMPDIR to a folder that you may write to."
        return Finding("temporary files", error.strerror, "missing", advice)
    free = shutil.disk_usage(folder).free
    return Finding("temporary files", f"{folder}, {free / GB:.0f} GB free")


def notebooks():
    """Whether notebooks can be executed and opened."""
    lacking = [n for n in ("nbclient", "ipykernel", "jupyterlab") if not _has(n)]
    if lacking:
        value = "without " + ", ".join(lacking)
        return Finding("notebooks", value, "note", 'pip install "d2lpar[lab]"')
    return Finding("notebooks", "JupyterLab and nbclient")


def d2l():
    """Whether the helpers of Dive into Deep Learning are there."""
    if _has("d2l"):
        return Finding("d2l", "installed")
    advice = "pip install --no-deps d2l==1.0.3"
    return Finding("d2l", "not installed", "note", advice)


def table(findings):
    """The findings as a table of rich."""
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    shown = Table("", "found", "state", "what to do", title="d2lpar doctor")
    for finding in findings:
        state = Text(finding.state, style=colours[finding.state])
        shown.add_row(
            Text(finding.topic), Text(finding.value), state, Text(finding.advice)
        )
    return shown


def _has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # somebody keeps it from being found
        return False


def _torch():
    """The module, or None where it cannot be imported."""
    try:
        import torch
        import torch.distributed

        torch.__version__  # noqa: B018, a folder of that name has none
    except Exception:  # whatever a broken wheel raises
        return None
    return torch
