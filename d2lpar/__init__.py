"""Multi-GPU deep learning from scratch: plain torch.distributed in three worlds."""

from .cluster import Cluster
from .errors import DeadlockError, MismatchError, RankError
from .launch import defaults, device, now, run, sleep
from .runs import Run, compare
from .timeline import Timeline

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "DeadlockError",
    "MismatchError",
    "RankError",
    "Run",
    "Timeline",
    "compare",
    "defaults",
    "device",
    "now",
    "run",
    "sleep",
]
