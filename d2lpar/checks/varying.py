"""How an exercise is varied: the same work in other roles, so a public answer fails.

Roles say how a variation becomes the public exercise: which part each rank plays there,
what the arguments are, what is returned.  So cases, requirements and mistakes stand
once, in the file of the exercise.  What `d2lpar assign` writes into notebooks is in
`solutions/variations.toml`.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Roles:
    """How a variation of an exercise becomes the public one.

    part      (r, n) -> the part of the public exercise that rank r plays
    given     (n, *arguments of the public exercise) -> the arguments here
    back      (value, n) -> what it would be in the public exercise
    shows     (outcome, n) -> what it is here; the report shows it
    call      a case -> its call in words
    """

    part: Callable | None = None
    given: Callable | None = None
    back: Callable | None = None
    shows: Callable | None = None
    call: Callable | None = None

    @classmethod
    def of(cls, turned=None, **how):
        """Return Roles; `turned` is `back` and `shows`, where it is its own inverse."""
        return cls(**({"back": turned, "shows": turned} if turned else {}), **how)

    def cases(self, draw, rng):
        """Yield those of the exercise; a report tells them as they are here."""
        for case in draw(rng):
            if self.part is not None:
                parts = [self.part(r, case.n) for r in range(case.n)]
                case.players = [parts.index(part) for part in range(case.n)]
            if self.call is not None:
                case.text = self.call(case)
            elif not case.text:
                inputs = _by_rank(case)
                if self.given:
                    inputs = [self.given(case.n, *arguments) for arguments in inputs]
                case.text = case.described(inputs)
            yield case

    def perform(self, perform, fn, case, **options):
        """Return the Attempt of `fn`, told as one at the public exercise."""
        order = case.players or range(case.n)  # the rank that plays part 0, 1, ...
        one = functools.partial(_call, fn, self.given, self.back, case.n)
        attempt = perform(one, replace(case, inputs=_by_rank(case)), **options)
        attempt.case = case
        if attempt.run is not None:
            attempt.recorded, attempt.run = attempt.run, _by_parts(attempt.run, order)
        if attempt.error is None:
            attempt.values = [attempt.values[r] for r in order]
            attempt.args = [attempt.args[r] for r in order]
        return attempt

    def shown(self, outcome, n):
        """Return an outcome of the public exercise as it is here."""
        return turned(self.shows, outcome, n) if self.shows else outcome


def _by_rank(case):
    """The arguments of rank 0, 1, ..., which are those of their parts."""
    order = list(case.players or range(case.n))
    return [case.inputs[order.index(r)] for r in range(case.n)]


def _call(fn, given, back, n, *arguments):
    value = fn(*given(n, *arguments)) if given else fn(*arguments)
    return turned(back, value, n) if back else value


def turned(way, value, n):
    """Return way(value, n), or the value itself where it is of a strange form."""
    try:
        return way(value, n)
    except Exception:
        return value


def _by_parts(run, order):
    """The Run with its figures in the order of parts."""
    run, order = copy.copy(run), list(order)
    for name in ("results", "bytes_sent", "messages", "peak_memory"):
        if getattr(run, name) is not None:
            setattr(run, name, [getattr(run, name)[r] for r in order])
    run.traffic = run.traffic[np.ix_(order, order)]
    return run


# The ways to vary


def mirror(r, n):
    """The last rank plays the part of rank 0, and so on."""
    return n - 1 - r


def next_one(r, n):
    """Rank r plays the part of rank r+1."""
    return (r + 1) % n
