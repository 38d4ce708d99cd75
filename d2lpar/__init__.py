"""Multi-GPU deep learning from scratch: plain torch.distributed in three worlds."""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "checks": ["check"],
    "cluster": ["Cluster"],
    "errors": ["DeadlockError", "MismatchError", "RankError"],
    "launch": ["defaults", "device", "now", "run", "sleep"],
    "report": ["Report"],
    "runs": ["Run", "compare"],
    "timeline": ["Timeline"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {"schedule"}  # `d2lpar.schedule.make`, without an import of its own
__all__ = sorted(_HOME.keys() | _MODULES)


def __getattr__(name):
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
        from .backends import versions

        if not versions.newer_than_tried():
            raise
        raise ImportError(versions.failed(error)) from error


def __dir__():
    return sorted([*globals(), *__all__])
