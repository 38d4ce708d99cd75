"""Multi-GPU deep learning from scratch: plain torch.distributed in three worlds."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .shared import moved

__version__ = "0.1.0"

if TYPE_CHECKING:  # what an editor and a type checker see
    from .checks.checker import check as check
    from .checks.report import Report as Report
    from .launch.run import defaults as defaults
    from .launch.run import device as device
    from .launch.run import now as now
    from .launch.run import run as run
    from .launch.run import sleep as sleep
    from .pipeline import schedule as schedule
    from .report.errors import DeadlockError as DeadlockError
    from .report.errors import MismatchError as MismatchError
    from .report.errors import RaceError as RaceError
    from .report.errors import RankError as RankError
    from .report.runs import Run as Run
    from .report.runs import compare as compare
    from .report.timeline import Timeline as Timeline
    from .sim.cluster import Cluster as Cluster
    from .sim.labels import label as label
    from .sim.labels import label_layers as label_layers

_HOMES = {
    "checks.checker": ["check"],
    "report.errors": ["DeadlockError", "MismatchError", "RaceError", "RankError"],
    "sim.cluster": ["Cluster"],
    "sim.labels": ["label", "label_layers"],
    "launch.run": ["defaults", "device", "now", "run", "sleep"],
    "checks.report": ["Report"],
    "report.runs": ["Run", "compare"],
    "report.timeline": ["Timeline"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {"schedule"}  # `d2lpar.schedule.make`, without an import of its own
sys.meta_path.insert(0, moved.Finder())
__all__ = sorted(_HOME.keys() | _MODULES)


def __getattr__(name: str) -> Any:
    """A public name is loaded when first used: ranks start without the most of it."""
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_imported(_HOME[name]), name)
    globals()[name] = value
    return value


def _imported(module):
    try:
        return importlib.import_module(f".{module}", __name__)
    except (AttributeError, ImportError) as error:
        from .launch import versions

        if not versions.newer_than_tried():
            raise
        raise ImportError(versions.failed(error)) from error


def __dir__():
    return sorted([*globals(), *__all__])
