"""Variations of exercises whose checks are in `rubrics`: see `varying`."""

import functools
import math

from .rubrics.ex_20_1 import cases as plan_cases
from .rubrics.ex_20_2 import D as FEATURES
from .rubrics.ex_20_4 import cases as table_cases
from .varying import Variation, mirror


def of(exercise):
    """{name: Variation} of an exercise."""
    return {name: it for name, it in VARIATIONS.items() if name[:-1] == exercise}


def _last_stage_first(value, n):
    """The rows of a schedule, from the last to the first."""
    rows = str(value).strip().split("\n") if hasattr(value, "home") else value
    rows = rows.strip().split("\n") if isinstance(rows, str) else list(rows)
    return "\n".join(rows[::-1]) if isinstance(rows[0], str) else rows[::-1]


def _shared_and_turned(n, parameters, sizes):
    return [(name, x, not cut) for name, x, cut in parameters], sizes[::-1]


def _to_base_2(n, out, lse):
    return out, lse / math.log(2)


def _backwards(order, n):
    return order[::-1]


def _with_a_reserve(n, model, plan, batch, memory):
    """An eighth stays free: whatever fits has exactly as much room as in public."""
    return model, plan, batch, -(-8 * memory // 7)


def _of_all_gpus(n, rows):
    return ([(*row[:5], row[5] * row[3], row[6]) for row in rows],)


def _with_counts(messages, n):
    return [(src, dst, start, stop - start) for src, dst, start, stop in messages]


def _with_stops(messages, n):
    return [(src, dst, start, start + count) for src, dst, start, count in messages]


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
    "13.1b": Variation(back=_last_stage_first),
    "14.1b": Variation(part=mirror),
    "15.1b": Variation(given=_shared_and_turned),
    "16.1b": Variation(given=lambda n, *given: (*given[:-1], given[-1][::-1])),
    "16.2b": Variation(given=_with_a_reserve),
    "16.3b": Variation(given=_of_all_gpus),
    "17.1b": Variation(given=_to_base_2),
    "17.2b": Variation(given=lambda n, T, p, window, order: (T, p, window - 1, order)),
    "17.3b": Variation(back=_backwards, shows=_backwards),
    "19.1b": Variation(given=lambda n, x: (x.flip(0),)),
    "19.2b": Variation(back=_with_stops, shows=_with_counts),
    "20.1b": Variation(change={"cases": functools.partial(plan_cases, wanted="money")}),
    "20.1c": Variation(given=_price_of_all),
    "20.2b": Variation(given=_larger_steps, back=_whole_loss),
    "20.4b": Variation(
        change={"cases": functools.partial(table_cases, first=MESSAGES_FIRST)}
    ),
    "20.4c": Variation(back=_to_seconds, shows=_to_milliseconds),
}
