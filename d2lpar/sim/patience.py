"""How long a run may go on without anything that counts."""

import time

TALK = 10  # so many timeouts a rank may only print
NAPS = 1_000_000  # so often ranks may sleep between two calls
IMPORT = 120.0  # seconds that ranks may import beyond the timeout, as torch does


class Patience:
    """Sees what the ranks have done so far, and says when it is enough.

    Calls that start or end and ranks that return are progress.  What is printed is
    progress for TALK timeouts: then a rank that only prints is one that never ends.  To
    sleep, and to look whether a call is complete, is none.  Time in which a rank waits
    for a processor, because other programs have it, does not count.
    """

    def __init__(self, timeout):
        self.timeout = timeout
        self._steps = self._printed = -1
        self._step = self._print = time.monotonic()
        self._import = self._step
        self._naps, self._delayed, self._delay = 0, 0.0, {}

    def over(self, steps, printed, naps=0, importing=lambda: False, tasks=()):
        """What the run has gone on without, "no progress for 60 s", or None.

        `tasks` are the numbers of the threads or processes that could go on.
        """
        now = time.monotonic() - self._waited(tasks)
        if steps != self._steps:
            self._steps, self._step, self._naps = steps, now, naps
        if printed != self._printed:
            self._printed, self._print = printed, now
        quiet = now - max(self._step, self._print)
        if quiet > self.timeout:
            if quiet < IMPORT + self.timeout and importing():
                self._import = now
            elif now - self._import > self.timeout:
                return f"no progress for {self.timeout:g} s"
        if now - self._step > TALK * self.timeout:
            return f"nothing but prints for {TALK * self.timeout:g} s"
        if naps - self._naps > NAPS:
            return f"no progress in {NAPS:,} sleeps"
        return None

    def _waited(self, tasks):
        """Seconds for which those that could go on have waited for a processor, so far.

        Of several the one counts that has waited the longest since the last look.
        """
        delay = {task: processor_delay(task) for task in tasks}
        known = delay.keys() & self._delay.keys()
        self._delayed += max([0.0, *(delay[t] - self._delay[t] for t in known)])
        self._delay = delay
        return self._delayed


def processor_delay(task):
    """Seconds for which a thread or process waited for a processor; 0 if not known."""
    try:
        with open(f"/proc/{task}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # not Linux, or it has ended
        return 0.0
