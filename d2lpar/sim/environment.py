"""What a launcher tells its ranks: RANK, WORLD_SIZE and the like in `os.environ`.

A rank that is a process has an environment of its own.  Ranks that are threads share
that of the process, so here `os.environ` shows each of them a copy of its own, which it
may change; threads that are no ranks see the usual one.  A program that a rank starts
inherits the variables of the process, unless the rank hands it `env=os.environ`.
"""

import contextlib
import os
from collections.abc import MutableMapping

from .torch_private import current_engine

PORT = 29500  # torch's usual one; in the simulator nobody listens there


def of_rank(rank, n, port=PORT, node=None, per_node=None):
    """Return the variables that torchrun would set for this rank.

    `node` is where the rank is, if there are several; None on one machine, or in the
    simulator, where `per_node` ranks share a node.
    """
    per_node = node.per_node if node else min(per_node or n, n)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": node.store if node else "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@contextlib.contextmanager
def own_environments(n, per_node=None):
    """Give each of n ranks that are threads an environment; the caller's is kept."""
    views = [v for v in (os.environ, getattr(os, "environb", None)) if v is not None]
    usual = os.environ._data
    before, shown = dict(usual), _OfThisThread(usual, n, per_node)
    for view in views:
        view._data = shown
    try:
        yield
    finally:
        for view in views:
            view._data = usual
        _undo([*shown.ranks.values(), dict(usual)], before)
        usual.clear()
        usual.update(before)


def _undo(environments, before):
    """C code, which each change has reached, sees the variables of before again."""
    changed = {item for each in environments for item in each.items() ^ before.items()}
    for name in {name for name, _ in changed}:
        if name in before:
            os.putenv(name, before[name])
        else:
            os.unsetenv(name)


class _OfThisThread(MutableMapping):
    """The variables of the rank that this thread is, else those of the process."""

    def __init__(self, usual, n, per_node):
        self.usual, self.n, self.per_node = usual, n, per_node
        self.ranks = {}  # rank -> its variables, once it has looked at them

    def _mine(self):
        engine = current_engine()
        if engine is None:
            return self.usual
        if engine.rank not in self.ranks:
            key, value = os.environ.encodekey, os.environ.encodevalue
            told = of_rank(engine.rank, self.n, per_node=self.per_node).items()
            told = {key(name): value(text) for name, text in told}
            self.ranks[engine.rank] = {**self.usual, **told}
        return self.ranks[engine.rank]

    def __getitem__(self, name):
        return self._mine()[name]

    def __setitem__(self, name, value):
        self._mine()[name] = value

    def __delitem__(self, name):
        del self._mine()[name]

    def __iter__(self):
        return iter(self._mine())

    def __len__(self):
        return len(self._mine())


def working_directory():
    """Where this process is, or nothing where that folder was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
