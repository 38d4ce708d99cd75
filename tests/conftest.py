"""What every test finds: no window for figures, no world from the environment."""

import os
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parent.parent
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")  # on a busy machine, too, nothing fails for its slowness
WATCHDOG = 120.0  # seconds until a test gives up, however busy the machine is


def eventually(condition):
    """Return the first true value of `condition()`, or its value after WATCHDOG."""
    deadline = time.monotonic() + WATCHDOG
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def family_of(pid, size):
    """Return all processes below `pid`, as soon as there are `size` of them."""

    def family():
        found = psutil.Process(pid).children(recursive=True)
        return found if len(found) >= size else None

    return eventually(family) or psutil.Process(pid).children(recursive=True)


@pytest.fixture(autouse=True)
def no_overrides(monkeypatch):
    """A test names its world itself."""
    for name in ("D2LPAR_BACKEND", "D2LPAR_RANKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return ROOT
