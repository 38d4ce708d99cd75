"""How long a run may go on without anything that counts."""

import time

TALK = 10  # so many timeouts a rank may only print
NAPS = 1_000_000  # so often ranks may sleep between two calls
IMPORT = 120.0  # seconds that ranks may import beyond the timeout, as torch does


class Patience:
    """Sees what the ranks have done so far, and says when it is enough.

    Calls that start or end and ranks that return are progress.  What is printed is
    progress for TALK timeouts: then a rank that only prints is one that never ends.  To
    sleep, and to look whether a call is complete, is none.
    """

    def __init__(self, timeout):
        self.timeout = timeout
        self._steps = self._printed = -1
        self._step = self._print = time.monotonic()
        self._naps = 0

    def over(self, steps, printed, naps=0, importing=lambda: False):
        """What the run has gone on without, "no progress for 60 s", or None."""
        now = time.monotonic()
        if steps != self._steps:
            self._steps, self._step, self._naps = steps, now, naps
        if printed != self._printed:
            self._printed, self._print = printed, now
        quiet = now - max(self._step, self._print)
        if quiet > self.timeout and not (quiet < IMPORT + self.timeout and importing()):
            return f"no progress for {self.timeout:g} s"
        if now - self._step > TALK * self.timeout:
            return f"nothing but prints for {TALK * self.timeout:g} s"
        if naps - self._naps > NAPS:
            return f"no progress in {NAPS:,} sleeps"
        return None
