"""06.5 Be the checker."""

import threading

import numpy as np

from ...launch.limits import end_thread, time_limit
from ...report.errors import RankError
from ..judging import Attempt, Case, Exercise, words
from ..signs import both, raises, wrong
from .candidates import FAULTS, draw

LONGEST = 15.0  # seconds for one judgement


def cases(rng):
    """Three right all-reduces and the wrong ones, mixed."""
    for allreduce, kind in draw(rng):
        what = f"an all-reduce that is right, {kind}"
        if kind in FAULTS:
            what = words("06.5")[kind]["sentence"].removeprefix("It accepts ")
        yield Case(
            1,
            what.removesuffix("."),
            [(allreduce,)],
            expected=[kind not in FAULTS],
            facts={"kind": kind},
        )


def in_this_process(fn, case, **options):
    """Tried outside of the ranks, since a judge starts ranks itself.

    It runs in a thread of its own, so that it can be left where it does not end.
    """
    attempt = Attempt(case, args=case.inputs)

    def work():
        try:
            attempt.values = [fn(*case.inputs[0])]
        except BaseException as error:
            text = f"the judge raised {type(error).__name__}: {error}"
            attempt.error = RankError(text)
            attempt.error.__cause__ = error

    thread = threading.Thread(target=work, name="judge", daemon=True)
    with time_limit(LONGEST):
        thread.start()
        try:
            thread.join(LONGEST)
            if not thread.is_alive():
                return attempt
        finally:
            end_thread(thread, LONGEST)
    text = f"no progress: the judge is not at an end after {LONGEST:g} s"
    return Attempt(case, error=RankError(text))


def verdict(came):
    """True or False; None where it is neither."""
    return bool(came) if isinstance(came, bool | np.bool_) else None


def accepts(fault):
    """An all-reduce with this fault is taken for a right one."""
    return both(wrong, lambda a: a.case.facts["kind"] == fault)


exercise = Exercise(
    "06.5",
    cases,
    mistakes={
        "uncaught": raises(RankError),
        "raises": raises(BaseException),
        "no verdict": both(wrong, lambda a: verdict(a.came[0]) is None),
        "too strict": both(wrong, lambda a: a.case.expected == [True]),
        **{fault: accepts(fault) for fault in FAULTS},
    },
    agrees=lambda came, wanted, case: verdict(came) is wanted,
    perform=in_this_process,
)
