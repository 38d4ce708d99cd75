"""Keep what was measured of this machine, so that it is measured only once.

The file is in the user's cache folder, and its name tells what makes it invalid:
processor, number of cores, device, torch, format.  D2LPAR_HERE in the environment
names a file that is read instead, whatever machine it is of; it is never written.
"""

import contextlib
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ..sim.cluster import Cluster
from ..sim.measured import FORMAT, load
from . import here as measuring
from .conditions import machine

try:
    import fcntl
except ImportError:  # Windows: there two that start at once both measure
    fcntl = None

VARIABLE = "D2LPAR_HERE"
SAME = ("name", "processor", "cores", "device", "torch")  # of a file that still holds
_measured = {}  # path: cluster of this process, where the folder cannot be written


def here(ranks=(2, 4), seconds=30.0, device="cpu", fresh=False):
    """Return this machine, measured once, as a cluster on which "sim" predicts runs.

    As many processes as `ranks` says compute and send for about so many seconds, on
    "cpu" or "cuda" (which nobody has tried yet).  Later calls load what the user's
    cache folder keeps; `fresh` measures anew.  Where D2LPAR_HERE in the environment
    names a file, it is loaded instead, whatever machine it is of.
    """
    ranks = measuring.checked(ranks, device)
    if not fresh and (found := _named(ranks, device)):
        return found
    path = path_for(about := machine(device))
    if not fresh and _holds(found := _kept(path, about), ranks, seconds):
        return found
    _not_by_a_launcher()
    kept = _writable(path.parent)
    with _one_at_a_time(path) if kept else contextlib.nullcontext():
        # a different process may have measured while this one waited
        found = _kept(path, about)
        if not fresh and _holds(found, ranks, seconds):
            return found
        where = f"kept in {path}" if kept else f"{path.parent} cannot be written"
        print(f"Measuring this machine, about a minute; {where}", flush=True)
        ranks = sorted({*ranks, *(_ranks_of(found) if found else ())})
        _measured[path] = measuring.measure(ranks, seconds, device)
        for sentence in _measured[path].disturbed:
            print(sentence, flush=True)
        if kept:
            _write(_measured[path], path)
    return _measured[path]


Cluster.here = staticmethod(here)


def path_for(about):
    """The file of the machine that `conditions.machine` describes."""
    name = "{name} {device} torch {torch}".format(**about)
    words = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return _folder() / f"here_{words}_{FORMAT}.json"


def _folder():
    """Where programs of this user keep what they can make anew."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():  # a user without a home
        home = Path(tempfile.gettempdir())
    usual = home / ".cache"
    if sys.platform == "darwin":
        usual = home / "Library" / "Caches"
    if sys.platform == "win32":
        usual = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "d2lpar"


def _named(ranks, device):
    """The cluster of the file that D2LPAR_HERE names; None without one."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        found = load(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"environment variable {VARIABLE}: {error}. Name a file that "
            "`Cluster.here().save(path)` has written, or unset the variable."
        ) from None
    if found.figures["machine"]["device"] != device:
        return None
    if missing := set(ranks) - _ranks_of(found):
        raise ValueError(
            f"environment variable {VARIABLE}: {path} was not measured with "
            f"{max(missing)} ranks. Unset the variable to measure this machine."
        )
    return replace(found, source=f"{Path(path).name}, which {VARIABLE} names")


def _kept(path, about):
    """What was measured on this machine before, or None."""
    found = _measured.get(path)
    with contextlib.suppress(Exception):  # whatever the file holds, it can be replaced
        found = load(path)
    known = found.figures["machine"] if found else {}
    return found if all(known.get(key) == about[key] for key in SAME) else None


def _holds(found, ranks, seconds):
    """Whether as many ranks were measured, for as long."""
    if found is None:
        return False
    enough = found.figures["machine"].get("allowed", seconds) >= seconds
    return enough and _ranks_of(found) >= set(ranks)


def _ranks_of(found):
    return {int(n) for n in found.figures["sharing"] if n != "1"}


def _writable(folder):
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


@contextlib.contextmanager
def _one_at_a_time(path):
    """Wait until no other process measures; the system ends the lock of a dead one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            file = stack.enter_context(open(path.with_suffix(".lock"), "w"))
            if fcntl:
                _lock(file)
        yield


def _lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Waiting for a process that measures this machine.", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)


def _write(found, path):
    """The file is there as a whole or not at all."""
    with contextlib.suppress(OSError):
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".json")
        os.close(handle)
        try:
            found.save(draft)
            os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)


def _not_by_a_launcher():
    """Raise RuntimeError inside torchrun or Slurm, whose ranks are all there are."""
    env = os.environ
    if ("TORCHELASTIC_RUN_ID" in env or "SLURM_PROCID" in env) and "RANK" in env:
        raise RuntimeError(
            "This machine was not measured yet, and ranks that a launcher started "
            "cannot do it. Before you start them, type once: "
            "python -c 'import d2lpar; d2lpar.Cluster.here()'"
        )
