"""What a world hands back of a run, before it becomes a `Run` or an error."""

from dataclasses import dataclass, field

from ..report.engine import Status
from .ship import Packed


@dataclass
class RankReport:
    """All that is known of one rank at the end."""

    rank: int
    status: Status
    result: Packed | None = None  # the return value
    output: str = ""
    errors: str = ""  # what it wrote to sys.stderr, where that is kept apart
    entries: list = field(default_factory=list)
    events: list = field(default_factory=list)
    warnings: list = field(default_factory=list)
    peak_memory: int | None = None
    never_waited: list = field(default_factory=list)  # (kind, where) of calls
    aside: int = 0  # operations in threads that it has started
    error: BaseException | None = None  # what the function raised
    traceback: str = ""  # its traceback as text, the launcher's frames left out
    where: tuple = ("", 0)  # line of the function that raised


@dataclass
class Outcome:
    """Every rank's report, and the error to raise if the run failed."""

    reports: list
    elapsed: float
    failure: Exception | None = None  # a RankError, without its .run yet
    left_over: bool = True  # may messages be without their other end?
