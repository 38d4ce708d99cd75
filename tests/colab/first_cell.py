"""Runs the first code cell of a notebook in a kernel, and says what it installed.

    python tests/colab/first_cell.py chapters/00_start.ipynb

Exit 1 if a package that was there is gone or has another version, or if d2lpar cannot
be imported afterwards.
"""

import json
import subprocess
import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

THEN = "import d2lpar; print('imported', d2lpar.__version__)"


def packages():
    """Name to version of everything that pip finds in this Python."""
    pip = [sys.executable, "-m", "pip", "list", "--format=json"]
    found = json.loads(subprocess.run(pip, capture_output=True, check=True).stdout)
    return {each["name"].lower(): each["version"] for each in found}


def first_cell(path):
    """The source of the first code cell."""
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return next("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def execute(*sources):
    """What the cells have printed, in one fresh kernel."""
    manager, client = start_new_kernel(kernel_name="python3")
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


def main(path):
    """The report, as text; whether all is well."""
    before = packages()
    printed = execute(first_cell(path), THEN)
    after = packages()
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
    return not changed and "imported" in printed


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
