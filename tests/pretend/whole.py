"""`make gpus`: proofs on pretended GPUs, and every notebook's cells.

    python tests/pretend/whole.py [NOTEBOOK ...]

Each is a program of its own, so that none can end or change the others.  Prints a row
as each is through, then what went wrong; ends with 1 if anything did.  Processor time
is that of the program and its threads; ranks that are processes are not in it.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PATHS = str(HERE / "paths.py")
PROVE = "doctor --prove"
LIMIT = 1800  # seconds
COLUMNS = "{:34} {:>6} {:>10} {:>9}  {}"


def commands(notebooks):
    """{name: the words of its program}."""
    found = {PROVE: ["-m", "d2lpar", *PROVE.split()]}
    return found | {each: [PATHS, "--whole", "--strict", each] for each in notebooks}


def ran(words):
    """(exit status, what was printed), None for the status if the time was over."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": LIMIT}
    how |= {"text": True, "errors": "replace"}
    try:
        done = subprocess.run([sys.executable, *words], **how)
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout


def told(name, status, printed):
    """(the number of cells or paths, what went wrong: "" if nothing did)."""
    lines = printed.splitlines()
    reports = [json.loads(line) for line in lines if line.startswith('{"path"')]
    end = "\n".join(lines[-15:])
    if status is None:
        return "", f"not through after {LIMIT} s\n{end}"
    if name == PROVE:
        rows = [line for line in lines if line.count("|") >= 6]
        wrong = "\n".join(row for row in rows if "| FAILED |" in row)
        return sum("| passed |" in row for row in rows), status and (wrong or end)
    if not reports:
        return "", f"ended with {status}\n{end}"
    hasty = [f"the clock does not wait: {line}" for line in reports[0]["hasty"]]
    wrong = [reports[0]["failed"] or "", *hasty]
    return len(reports[0]["cells"]), "\n".join(filter(None, wrong))


def main(notebooks):
    """The table; was all well?"""
    print(COLUMNS.format("on pretended GPUs", "cells", "processor", "seconds", ""))
    failures, every = {}, commands(notebooks)
    for name, words in every.items():
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        count, wrong = told(name, *ran(words))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        worked = sum(after[:2]) - sum(before[:2])
        took = f"{worked:.1f} s", f"{time.monotonic() - began:.1f} s"
        row = COLUMNS.format(name, count, *took, "FAILED" if wrong else "passed")
        print(row, flush=True)
        if wrong:
            failures[name] = wrong
    for name, wrong in failures.items():
        print(f"\n{name}\n{wrong}")
    print(f"\n{len(failures)} of {len(every)} failed")
    return not failures


if __name__ == "__main__":
    raise SystemExit(not main(sys.argv[1:]))
