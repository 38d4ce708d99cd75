"""Variations of exercises whose checks are in `rubrics`: see `varying`."""

import functools

from .rubrics.ex_20_1 import cases as plan_cases
from .rubrics.ex_20_2 import D as FEATURES
from .varying import Variation


def of(exercise):
    """{name: Variation} of an exercise."""
    return {name: it for name, it in VARIATIONS.items() if name[:-1] == exercise}


def _price_of_all(n, model, offers, *more):
    return model, [(cluster, price * cluster.n) for cluster, price in offers], *more


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
}
