"""Variations of exercises whose checks are in `rubrics`: see `varying`."""

import functools

from .rubrics.ex_20_1 import cases as plan_cases
from .rubrics.ex_20_2 import D as FEATURES
from .rubrics.ex_20_4 import cases as table_cases
from .varying import Variation


def of(exercise):
    """{name: Variation} of an exercise."""
    return {name: it for name, it in VARIATIONS.items() if name[:-1] == exercise}


STEPS = 107  # of a run whose folders are named after what is left of them


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
    "20.1b": Variation(change={"cases": functools.partial(plan_cases, wanted="money")}),
    "20.1c": Variation(given=_price_of_all),
    "20.2b": Variation(given=_larger_steps, back=_whole_loss),
    "20.4b": Variation(
        change={"cases": functools.partial(table_cases, first=MESSAGES_FIRST)}
    ),
    "20.4c": Variation(back=_to_seconds, shows=_to_milliseconds),
}
