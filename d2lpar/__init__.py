"""Multi-GPU deep learning from scratch: plain torch.distributed in three worlds."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what an editor and a type checker see
    from . import schedule as schedule
    from .checks.checker import check as check
    from .checks.report import Report as Report
    from .errors import DeadlockError as DeadlockError
    from .errors import MismatchError as MismatchError
    from .errors import RankError as RankError
    from .show.timeline import Timeline as Timeline
    from .world.cluster import Cluster as Cluster
    from .world.labels import label as label
    from .world.labels import label_layers as label_layers
    from .world.launch import defaults as defaults
    from .world.launch import device as device
    from .world.launch import now as now
    from .world.launch import run as run
    from .world.launch import sleep as sleep
    from .world.predictions import Prediction as Prediction
    from .world.predictions import predict as predict
    from .world.runs import Run as Run
    from .world.runs import compare as compare

_HOMES = {
    "checks.checker": ["check"],
    "world.cluster": ["Cluster"],
    "errors": ["DeadlockError", "MismatchError", "RankError"],
    "world.labels": ["label", "label_layers"],
    "world.launch": ["defaults", "device", "now", "run", "sleep"],
    "world.predictions": ["Prediction", "predict"],
    "checks.report": ["Report"],
    "world.runs": ["Run", "compare"],
    "show.timeline": ["Timeline"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {"schedule"}  # `d2lpar.schedule.make`, without an import of its own
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
        from .world import versions

        if not versions.newer_than_tried():
            raise
        raise ImportError(versions.failed(error)) from error


def __dir__():
    return sorted([*globals(), *__all__])
