"""What every test finds: no window for figures, no world from the environment."""

import os
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings

import d2lpar
from d2lpar.launch import forks
from d2lpar.shared import notebooks

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted(ROOT.glob("chapters/*.ipynb"))
FURTHER = sorted(ROOT.glob("chapters/further/*.ipynb"))
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")  # on a busy machine, too, nothing fails for its slowness
WATCHDOG = 120.0  # seconds until a test gives up, however busy the machine is
RANKS = (1, 2, 3, 4, 5, 8)
WORLDS = ("sim", "gloo")
# The arithmetic is shown by simulated ranks; on processes three sizes are enough.
EVERYWHERE = [*(("sim", n) for n in RANKS), *(("gloo", n) for n in (2, 3, 5))]
# What serves many tests and takes long to make, the longest first.
SHARED = ["graded", "nbgrader_course", "site"]
forks.PRELOADED.append("tests.huge_pages")  # so that ranks are forked faster


class Takes(torch.autograd.Function):
    """x, after some virtual seconds; its gradient takes some, too."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_time = backward
        d2lpar.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        d2lpar.sleep(ctx.backward_time)
        return dy, None, None


def eventually(condition):
    """Return the first true value of `condition()`, or its value after WATCHDOG."""
    deadline = time.monotonic() + WATCHDOG
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def completed(command, **options):
    """A process of this command that has ended, with what it said as text."""
    usual = {"capture_output": True, "text": True, "timeout": 5 * WATCHDOG}
    return subprocess.run([*map(str, command)], **usual | options)


def inventory():
    """(running processes below this one, threads, open files) of this process."""
    me = psutil.Process()
    children = {p.pid for p in me.children(True) if p.status() != "zombie"}
    return children, threading.active_count(), me.num_fds()


def family_of(pid, size):
    """Return all processes below `pid`, as soon as there are `size` of them."""

    def family():
        found = psutil.Process(pid).children(recursive=True)
        return found if len(found) >= size else None

    return eventually(family) or psutil.Process(pid).children(recursive=True)


@pytest.hookimpl(trylast=True)  # what is not wanted has been left out
def pytest_collection_modifyitems(config, items):
    """Every worker starts with something that takes long, so that none ends with it."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = long_first(items, workers)


def shared(item):
    """The name of the fixture of SHARED that a test needs, or None."""
    names = getattr(item, "fixturenames", ())  # cells of notebooks have none
    return next((name for name in SHARED if name in names), None)


def long_first(items, workers):
    """The tests in an order for `--dist worksteal`, which cuts it in equal parts.

    Tests that share a fixture of SHARED come one after the other: the first makes it,
    and no other worker waits for that.
    """
    which = [shared(item) for item in items]
    tests = {
        name: [item for item, its in zip(items, which, strict=True) if its == name]
        for name in [*SHARED, None]
    }
    rest = tests.pop(None)
    ordered = []
    for worker in range(workers):
        first = sum([*tests.values()][worker::workers], [])
        size = (len(items) - len(ordered)) // (workers - worker) - len(first)
        ordered += first + rest[: max(size, 0)]
        del rest[: max(size, 0)]
    return ordered + rest


@pytest.fixture(autouse=True)
def no_overrides(monkeypatch):
    """A test names its world itself."""
    for name in ("D2LPAR_BACKEND", "D2LPAR_RANKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return ROOT


def whole(path):
    """A chapter as one notebook, with its Further part."""
    core, further = notebooks.read(path), notebooks.further(path)
    return core | {"cells": core["cells"] + (further or {"cells": []})["cells"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, in which the test is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
