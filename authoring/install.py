"""pip, with the versions that were tested: `python authoring/install.py -e ".[lab]"`.

`constraints.txt` has them for every package; `-c FILE` takes another file.  A version
that no index has here is named, and the newest that is allowed is taken in its place.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "install", "--no-compile"]
NAMED = r"The user requested \(constraint\) ([\w.-]+)==(\S+)"
GONE = (
    "{} {} is not to be had here, or does not fit: the newest that is allowed is taken."
)
FAILED = """\
pip could not install the versions in {0}. To try the newest of everything instead, add
CONSTRAINTS= to the command of make.\
"""


def install(words, constraints):
    """Call pip with these words; return its exit code.

    constraints   a file of `name==version` lines, or None for whatever is newest
    """
    if constraints is None:
        return subprocess.run([*PIP, "-q", *words]).returncode
    lines = Path(constraints).read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "constraints.txt")
        while True:
            file.write_text("\n".join(lines), encoding="utf-8")
            call = [*PIP, "-c", str(file), *words]
            done = subprocess.run(call, capture_output=True, text=True)
            named = dict(re.findall(NAMED, done.stdout)) if done.returncode else {}
            gone = [line for line in lines if name_of(line) in map(name_of, named)]
            if not gone:
                break
            for name, version in named.items():
                print(GONE.format(name, version), flush=True)
            lines = [line for line in lines if line not in gone]
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode:
        print(
            done.stdout[-2000:], FAILED.format(constraints), sep="\n", file=sys.stderr
        )
    return done.returncode


def name_of(line):
    """The package that a line of constraints is about, however it is spelled."""
    return re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()


if __name__ == "__main__":
    given = sys.argv[1:]
    file = str(ROOT / "constraints.txt")
    if given[:1] == ["-c"]:
        file, given = given[1], given[2:]
    raise SystemExit(install(given, file or None))
