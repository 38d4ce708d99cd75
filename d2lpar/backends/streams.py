"""What the ranks of the simulator print, kept apart by rank."""

import os
import sys

from .torch_private import current_engine


class PerRankOutput:
    """Stands in for sys.stdout: a rank's text is kept, the caller's goes through."""

    def __init__(self, sim):
        self._sim = sim
        self._texts = [[] for _ in range(sim.n)]
        self._live = os.environ.get("D2LPAR_LIVE") == "1"

    def __enter__(self):
        self._usual = sys.stdout
        sys.stdout = self
        return self

    def __exit__(self, *_):
        sys.stdout = self._usual

    def write(self, text):
        engine = current_engine()
        if engine is None:
            return self._usual.write(text)
        self._sim.activity += 1
        self._texts[engine.rank].append(text)
        if self._live:
            self._usual.write(text)
        return len(text)

    def flush(self):
        if current_engine() is None or self._live:
            self._usual.flush()

    def close(self):
        """It stays open: it is the caller's."""

    def __getattr__(self, name):
        return getattr(self._usual, name)

    def text(self, rank):
        """All that this rank has printed."""
        return "".join(self._texts[rank])
