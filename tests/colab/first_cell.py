"""Runs the first code cell of a notebook in a kernel, and says what it installed.

    python tests/colab/first_cell.py chapters/00_start.ipynb d2lpar-0.1.0-...whl

The cell gets the address of the wheel with its SHA-256.  Exit 1 if a package that was
there is gone or has another version, or if d2lpar was not installed.  The kernel runs
in an empty folder: from a clone it would find d2lpar there.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from jupyter_client.manager import start_new_kernel

THEN = "import d2lpar; print('imported', d2lpar.__version__)"


def packages(folder):
    """Name to version of everything that pip, run in the folder, finds."""
    pip = [sys.executable, "-m", "pip", "list", "--format=json"]
    done = subprocess.run(pip, cwd=folder, capture_output=True, check=True)
    found = json.loads(done.stdout)
    return {each["name"].lower(): each["version"] for each in found}


def first_cell(path, wheel):
    """The source of the first code cell, with the address of the wheel in it."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    source = next("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    address = Path(wheel).resolve().as_uri()
    address += "#sha256=" + hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
    line = re.compile(r'^address = ".*?"', re.MULTILINE)
    return line.sub(f'address = "{address}"', source, count=1)


def execute(folder, *sources):
    """What the cells have printed, in one fresh kernel that runs in the folder."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=folder)
    printed = []

    def keep(message):
        content = message["content"]
        printed.append(content.get("text") or "\n".join(content.get("traceback", [])))

    try:
        for source in sources:
            client.execute_interactive(source, output_hook=keep, timeout=600)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(printed)


def main(path, wheel):
    """The report, as text; whether all is well."""
    with tempfile.TemporaryDirectory() as folder:
        before = packages(folder)
        printed = execute(folder, first_cell(path, wheel), THEN)
        after = packages(folder)
    new = [f"{name} {after[name]}" for name in sorted(after.keys() - before.keys())]
    changed = [
        f"{name} {old} -> {after.get(name, 'gone')}"
        for name, old in sorted(before.items())
        if after.get(name) != old
    ]
    kept = [f"{name} {before[name]}" for name in ("torch", "numpy")]
    print("kept:     ", ", ".join(kept) if not changed else "not everything, see below")
    print("installed:", ", ".join(new) or "nothing")
    print("changed:  ", ", ".join(changed) or "nothing")
    print(printed.strip())
    return not changed and "d2lpar" in after and "imported" in printed


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
