"""Variations of exercises whose checks are in `rubrics`: see `varying`."""

import functools
import re

from .rubrics.ex_20_1 import cases as plan_cases
from .rubrics.ex_20_2 import D as FEATURES
from .rubrics.ex_20_4 import cases as table_cases
from .varying import Variation


def of(exercise):
    """{name: Variation} of an exercise."""
    return {name: it for name, it in VARIATIONS.items() if name[:-1] == exercise}


def _copies_are_neighbours(n, before, after, row):
    """Rank r of the public exercise is in place r % row * copies + r // row."""
    order = sorted(range(len(before)), key=lambda r: (r % row, r // row))
    return [before[r] for r in order], [after[r] for r in order], row


def _ranks_backwards(way, n):
    """The first of equally good placements becomes the last."""
    return [max(way) - r for r in way]


STEPS = 107  # of a run whose folders are named after what is left of them


def _steps_left(n, files):
    names = {path: re.sub(r"\d+", lambda k: str(STEPS - int(k[0])), path, count=1)
             for path in files}  # fmt: skip
    return ({names[path]: data for path, data in files.items()},)


def _steps_done(number, n):
    return STEPS - number


def _price_of_all(n, model, offers, *more):
    return model, [(cluster, price * cluster.n) for cluster, price in offers], *more


def _scaled(table, factor):
    return {
        term: told if term == "worst" else tuple(factor * each for each in told)
        for term, told in table.items()
    }


def _to_seconds(table, n):
    return _scaled(table, 1e-3)


def _to_milliseconds(table, n):
    return _scaled(table, 1e3)


MESSAGES_FIRST = ("tensor", "data", "compute")


def _larger_steps(n, *given):
    """A loss that is divided by the features needs a larger step for the same."""
    *rest, lr = given
    return *rest, lr * FEATURES


def _whole_loss(value, n):
    loss, new = value
    return loss * FEATURES, new


VARIATIONS = {
    "18.2b": Variation(given=_copies_are_neighbours),
    "18.3b": Variation(back=_ranks_backwards, shows=_ranks_backwards),
    "19.3b": Variation(given=_steps_left, back=_steps_done, shows=_steps_done),
    "20.1b": Variation(change={"cases": functools.partial(plan_cases, wanted="money")}),
    "20.1c": Variation(given=_price_of_all),
    "20.2b": Variation(given=_larger_steps, back=_whole_loss),
    "20.4b": Variation(
        change={"cases": functools.partial(table_cases, first=MESSAGES_FIRST)}
    ),
    "20.4c": Variation(back=_to_seconds, shows=_to_milliseconds),
}
