"""What every test finds: no window for figures, no world from the environment."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def no_overrides(monkeypatch):
    """A test names its world itself."""
    for name in ("D2LPAR_BACKEND", "D2LPAR_RANKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return ROOT
