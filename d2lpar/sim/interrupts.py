"""Ctrl-C that arrives only where it is asked for."""

import signal
import threading


class Interrupts:
    """Inside, Ctrl-C is noted, and raised by `check()` or at the end.

    So it never comes between starting a process and remembering that it was started.
    """

    def __init__(self):
        self.noted, self._usual = False, None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            usual = signal.getsignal(signal.SIGINT)
            if callable(usual):
                self._usual = usual
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number, frame):
        self.noted = True

    def check(self):
        """Raise KeyboardInterrupt if there was one."""
        if self.noted:
            raise KeyboardInterrupt

    def __exit__(self, kind, error, trace):
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)
        if self.noted and kind is None:
            raise KeyboardInterrupt
