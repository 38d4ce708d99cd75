"""How an answer is judged: cases, attempts, requirements, mistakes.

A case is one call of the learner's function on n ranks, with what must be true
afterwards.  An `Attempt` is what came of a case.  The requirements measure attempts;
the mistakes recognise them and say a sentence.
"""

import contextlib
import functools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..launch.limits import time_limit
from ..launch.run import run
from ..report.errors import RankError
from ..sim.cluster import Cluster
from ..sim.patching import FINITE, patched
from .equality import close, ordinary

PATIENCE = 10.0  # seconds without any call, then a rank counts as hanging
LONGEST = 30.0  # seconds for one case, and four times as many where processes start
NOISE = 48_000  # bytes of a rank's Python objects: its calls, its frames


@dataclass
class Case:
    """One call of the function on n ranks.

    text       the call in words, for the report; "" where the facts tell it
    inputs     per rank, the tuple of its arguments
    expected   per rank, what is true afterwards; `Exercise.outcome` says of what
    facts      what the requirements and mistakes need to know (sizes, root, ...)
    options    keywords for `d2lpar.run`, such as the cluster
    players    the rank that plays part i, where it is not rank i, in a variation
    traced     arrays and lists count as memory, too, not tensors alone
    fakes      what slips make of it, once they were asked
    """

    n: int
    text: str
    inputs: list
    expected: list | None = None
    facts: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    players: list | None = None
    traced: bool = False
    fakes: dict = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, n, inputs, expected, options=None, traced=False, **facts):
        """Return a Case that its facts describe, or its inputs that are numbers."""
        return cls(n, "", inputs, expected, facts, options or {}, traced=traced)

    @property
    def call(self):
        """The call in words."""
        return self.text or self.described(self.inputs)

    def described(self, inputs):
        """The call in words, with the inputs that its ranks get."""
        told = [f"{k} = {v}" for k, v in self.facts.items() if isinstance(v, int | str)]
        first = [values[0] for values in inputs if len(values) == 1][:4]
        if told or not all(isinstance(x, int | float) for x in first):
            return ", ".join([ranks(self.n), *told])
        some = ", ".join(f"{x:,}" for x in first)
        return f"{ranks(self.n)} with {some}" + ", ..." * (self.n > len(first))

    def rank(self, part):
        """The rank that plays this part."""
        return self.players[part] if self.players else part

    @property
    def noise(self):
        """Bytes of Python's objects that any answer needs, where they count."""
        return NOISE if self.traced else 0


@dataclass(eq=False)
class Attempt:
    """What came of a case: the Run, or the error with what was recorded before it."""

    case: Case
    run: object = None
    error: Exception | None = None
    values: list = None  # per rank, what the function returned
    args: list = None  # per rank, its arguments afterwards
    came: list = None  # per rank, the outcome: a value or an argument
    right: bool = False  # every rank's outcome is the expected one
    agrees: Callable | None = None  # the exercise's own
    recorded: object = None  # the Run as it was; `run` is in order of parts
    attempts: list = ()  # those at all cases of the check, this one among them

    @property
    def cause(self):
        """The exception that the function itself raised, or None."""
        return self.error.__cause__ if isinstance(self.error, RankError) else None

    def gives(self, outcomes):
        """Did every rank come to its one of these outcomes?  `...` stands for any."""
        fits = lambda came, wanted: (
            wanted is ... or (ordinary(came) and self.agrees(came, wanted, self.case))
        )
        return all(fits(*pair) for pair in zip(self.came, outcomes, strict=True))

    def meets(self, requirements):
        """Is the outcome right, and do these requirements hold?"""
        return self.right and all(row.holds(self) for row in requirements)


@dataclass
class Requirement:
    """A row of the report: a figure of the run, and the figure that is allowed.

    `measured(attempt)` and `allowed(case)` are numbers, or lists with one per rank.
    vital      it is part of the outcome: a call in which it fails is not right
    least      (case) -> the smallest figure allowed, where what is less shows that the
               work was done elsewhere
    instead    (attempt) -> has something forbidden done the work?  The figures of the
               other rows are not the answer's own then, and are not judged
    """

    label: str
    measured: Callable
    allowed: Callable
    exactly: bool = True
    show: Callable = "{:,}".format
    vital: bool = False
    instead: Callable | None = None
    least: Callable | None = None

    def holds(self, attempt):
        """The figure of this attempt is an allowed one, on every rank."""
        return all(self._fits(*figures) for figures in self.figures(attempt))

    def texts(self, attempt):
        """(measured, allowed) in words, for the rank that is farthest off."""
        figures = self.figures(attempt)
        far = max(range(len(figures)), key=lambda i: self._distance(*figures[i]))
        came, limit, least = figures[far]
        rank = f" (rank {attempt.case.rank(far)})" if len(figures) > 1 else ""
        limit = self.show(limit) if self.exactly else f"at most {self.show(limit)}"
        if least is not None:
            limit = f"at least {self.show(least)}, {limit}"
        return self.show(came) + rank, limit

    def figures(self, attempt):
        """(measured, allowed, at least) of each rank, or of all together."""
        came, limit = self.measured(attempt), self.allowed(attempt.case)
        least = self.least(attempt.case) if self.least else None
        if not isinstance(came, list):
            return [(came, limit, least)]
        limit = limit if isinstance(limit, list) else [limit] * len(came)
        return [(*pair, least) for pair in zip(came, limit, strict=True)]

    def _fits(self, came, limit, least):
        if least is not None and came < least:
            return False
        return close(came, limit) or (not self.exactly and came <= limit)

    def _distance(self, came, limit, least):
        fits = self._fits(came, limit, least)
        return (0 if fits else 1 + abs(came - limit), came)


class Mistake(NamedTuple):
    """A likely mistake: a sentence names it, a hint is a nudge towards the repair."""

    name: str
    sentence: str
    hint: str = ""

    @classmethod
    def of(cls, name, text):
        """Return the Mistake that a text tells, with its hint behind "Hint:"."""
        sentence, _, hint = " ".join(text.split()).partition(" Hint: ")
        return cls(name, sentence, hint)


def returned(attempt, rank):
    """What is compared is the value that the function returned."""
    return attempt.values[rank]


def argument(k):
    """What is compared is argument k after the call: the function works in place."""

    def after(attempt, rank):
        return attempt.args[rank][k]

    after.argument = k  # for hints
    return after


def on_ranks(fn, case, **options):
    """Tried by `run`, in the simulator on the CPU unless the options say otherwise."""
    usual = {"backend": "sim", "device": "cpu", "cluster": Cluster.plain}
    options = {**usual, "timeout": PATIENCE, **case.options, **options}
    attempt, longest = Attempt(case), LONGEST * (1 + 3 * (options["backend"] != "sim"))
    options |= {"world_size": case.n}
    try:
        with time_limit(longest), _tracing(case.traced), patched(*FINITE):
            attempt.run = run(_call, fn, _Own(case.inputs), **options)
        attempt.values, attempt.args = map(list, zip(*attempt.run.results, strict=True))
    except (RankError, TypeError) as error:
        attempt.error, attempt.run = error, getattr(error, "run", None)
    return attempt


def on_views(fn, case, **options):
    """Tried by `on_ranks`; `fn` gets views, so `x.data = ...` changes no argument."""
    return on_ranks(functools.partial(_with_views, fn), case, **options)


def _with_views(fn, *arguments):
    return fn(*map(_view, arguments))


def _view(x):
    """A view of a tensor, or of each in a list; anything else as it is."""
    if isinstance(x, list):
        return [_view(each) for each in x]
    return x.detach() if torch.is_tensor(x) else x


@contextlib.contextmanager
def _tracing(wanted):
    """Inside, memory outside of tensors is known, if that is wanted."""
    start = wanted and not tracemalloc.is_tracing()
    if start:
        tracemalloc.start()
    try:
        yield
    finally:
        if start:
            tracemalloc.stop()


def _call(fn, arguments):
    """What `fn` returns on this rank, and its arguments afterwards."""
    return fn(*arguments), arguments


_call.__name__ = "your function"  # in sentences about it


class _Own:
    """Arguments per rank; a rank's copy is its own, and holds none of the others."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __reduce__(self):
        return _of_this_rank, (self.inputs,)


def _of_this_rank(inputs):
    return inputs[dist.get_rank()]


def ranks(n):
    """ "1 rank", "3 ranks"."""
    return f"{n} rank{'s' * (n != 1)}"
