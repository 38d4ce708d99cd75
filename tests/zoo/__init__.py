"""Wrong answers that learners give, and unusual right ones, a module per exercise.

`ZOO[name]` is a list of (function, mistake): the name of the mistake that its report
must tell, or None where the answer is right and must be accepted.
"""

import importlib
from collections import defaultdict
from pathlib import Path

from d2lpar.checks import solutions

ZOO = defaultdict(list)


def right(function):
    """This answer is right, if unusual."""
    ZOO[_exercise(function)].append((function, None))
    return function


def wrong(mistake):
    """This answer must be rejected, and the report must name this mistake."""

    def remember(function):
        ZOO[_exercise(function)].append((function, mistake))
        return function

    return remember


def _exercise(function):
    """ "05.1" for a function of the module zoo.ex_05_1."""
    return function.__module__.split(".ex_")[1].replace("_", ".")


def load():
    """All of the zoo: these modules, and the answers in the files of exercises."""
    for name in solutions.known():
        ZOO[name] = solutions.load(name).answers()
    for path in sorted(Path(__file__).parent.glob("ex_*.py")):
        importlib.import_module(f"zoo.{path.stem}")
    return ZOO
