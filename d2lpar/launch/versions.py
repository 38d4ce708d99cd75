"""The newest torch that the course was tried with, and a warning about newer ones."""

import functools
import warnings
from importlib.metadata import PackageNotFoundError, version

NEWEST = (2, 15)


def newer_than_tried(installed=None):
    """Return a sentence if this or that torch is newer than `NEWEST`, else ""."""
    try:
        installed = (installed or version("torch")).split("+")[0]
        numbers = tuple(int(part) for part in installed.split(".")[:2])
    except (PackageNotFoundError, ValueError):  # built at home, named by hand
        return ""
    known = f"the newest that the course was tried with is {NEWEST[0]}.{NEWEST[1]}."
    return f"This is torch {installed}, and {known}" if numbers > NEWEST else ""


def failed(reason):
    """Return the sentences that say why a newer torch is of no use, and what to do."""
    return (
        f"{newer_than_tried()} An import from it failed ({reason}). Update d2lpar, or "
        "install an older torch into an environment of its own: pip install "
        f'"torch=={NEWEST[0]}.{NEWEST[1]}.*"'
    )


@functools.cache
def warn():
    """Warn once, in the line that calls `run`, if this torch is newer than `NEWEST`."""
    if newer := newer_than_tried():
        warnings.warn(newer, stacklevel=3)
