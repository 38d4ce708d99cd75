"""What a long run shows while it lasts: how many ranks have returned, what each does.

On a terminal it is a few lines that change, in a notebook a part of the cell's output
that is empty when the run has ended; elsewhere nothing.
"""

import contextlib
import os
import re
import sys
import time

from .limits import check_time

LATE = 3.0  # seconds after which a run is long
PAUSE = 0.5  # seconds between two looks at the ranks
ROWS = 16  # with more ranks, those that do the same share a row
EMPTY = {"text/plain": ""}
MARK = {"d2lpar": "progress"}  # no file of the course keeps an output with this


class Progress:
    """A context whose value is called now and then, while the run goes on."""

    def __enter__(self):
        self._shown = None if os.environ.get("D2LPAR_PROGRESS") == "0" else _where()
        self._next = LATE
        return self

    def __call__(self, seconds, activity, glance):
        """The run has taken `seconds`; `glance()` gives a Status per rank."""
        check_time(activity)
        if self._shown is not None and seconds > self._next:
            started = time.monotonic()
            try:
                self._shown.show(picture(glance(), seconds))
            except Exception:  # a terminal that went away: the run is what counts
                self._shown = None
            self._next = seconds + max(PAUSE, 10 * (time.monotonic() - started))

    def __exit__(self, *_):
        if self._shown is not None:
            with contextlib.suppress(Exception):
                self._shown.end()


def picture(statuses, seconds):
    """A bar, and a row for every rank, as something that rich can show."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    n = len(statuses)
    returned = sum(status.state == "returned" for status in statuses)
    head = Table.grid(padding=(0, 1))
    head.add_row(
        f"{seconds:.0f} s",
        ProgressBar(total=n, completed=returned, width=24),
        f"{returned} of {n} ranks returned",
    )
    table = Table.grid(padding=(0, 2))
    for name, doing, steps in _rows(statuses):
        table.add_row(name, doing, f"{steps:,} steps")
    return Group(head, table)


def _rows(statuses):
    """(rank, what it does, its steps); many ranks that do the same are one row."""
    if len(statuses) <= ROWS:
        return [(f"rank {s.rank}", doing(s), s.steps) for s in statuses]
    alike = {}
    for status in statuses:
        alike.setdefault(re.sub(r"\d+", "...", doing(status)), []).append(status)
    return [
        (f"{len(some)} ranks", text, sum(status.steps for status in some))
        for text, some in sorted(alike.items())
    ]


def doing(status):
    """What a rank is doing, in a few words."""
    if status.call is not None:
        return f"in {status.call.text}"
    if status.polls is not None:
        return f"polls {status.polls.text}"
    return "computing" if status.state == "running" else status.state


def in_notebook():
    """Does a kernel run this process?"""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _where():
    """What can show a picture here, or None."""
    if in_notebook():
        return _Cell()
    return _Terminal() if getattr(sys.stderr, "isatty", bool)() else None


class _Cell:
    """A part of the output of a notebook's cell."""

    handle = None

    def show(self, picture):
        from IPython.display import display

        if self.handle is None:
            self.handle = display(EMPTY, raw=True, metadata=MARK, display_id=True)
        self.handle.update(_as_html(picture), raw=True, metadata=MARK)

    def end(self):
        if self.handle is not None:
            self.handle.update(EMPTY, raw=True, metadata=MARK)


def _as_html(picture):
    """The picture as a cell shows it, and as text."""
    from rich.console import Console

    with open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, width=88, record=True, force_jupyter=False)
        console.print(picture)
    text = console.export_text(clear=False)
    html = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    return {"text/plain": text, "text/html": html}


class _Terminal:
    """Some lines at the end of a terminal that change."""

    live = None

    def show(self, picture):
        if self.live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            usual = {"redirect_stdout": False, "redirect_stderr": False}
            once = {"transient": True, "auto_refresh": False}
            self.live = Live(console=console, **once, **usual)
            self.live.start()
        self.live.update(picture, refresh=True)

    def end(self):
        if self.live is not None:
            self.live.stop()
