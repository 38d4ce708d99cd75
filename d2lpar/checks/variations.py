"""Variations of exercises whose checks are in `rubrics`: see `varying`."""

import functools
import math
import re

from ..mesh.costs import bytes_per_step
from ..mesh.grid import AXES, Mesh
from .rubrics.ex_20_1 import cases as plan_cases
from .rubrics.ex_20_2 import D as FEATURES
from .varying import Variation, mirror


def of(exercise):
    """{name: Variation} of an exercise."""
    return {name: it for name, it in VARIATIONS.items() if name[:-1] == exercise}


def _two_off(answer, n=0):
    """The pairs of all programs, with rank r in the place of r^2."""
    return {letter: _pairs_two_off(pairs) for letter, pairs in answer.items()}


def _pairs_two_off(pairs, n=0):
    return pairs and [(int(a) ^ 2, int(b) ^ 2) for a, b in pairs]


def _frozen_mirrored(case):
    frozen = list(case.facts["frozen"])
    there = [case.n - 1 - r for r in reversed(frozen)]
    return case.text.replace(f"ranks {frozen}", f"ranks {there}")


def _shared_and_turned(n, parameters, sizes):
    return [(name, x, not cut) for name, x, cut in parameters], sizes[::-1]


def _in_float64(n, config, sizes, N, T, counted):
    """The bytes of the same step with twice as large numbers; the loss stays."""
    short, long = (bytes_per_step(config, Mesh(*sizes), N, T, size) for size in (4, 8))
    seen = {axis: long[axis] - 2 * (short[axis] - counted[axis]) for axis in AXES}
    return config, sizes, N, T, seen


def _to_base_2(n, out, lse):
    return out, lse / math.log(2)


def _backwards(order, n):
    return order[::-1]


def _copies_are_neighbours(n, before, after, row):
    """Rank r of the public exercise is in place r % row * copies + r // row."""
    order = sorted(range(len(before)), key=lambda r: (r % row, r // row))
    return [before[r] for r in order], [after[r] for r in order], row


def _ranks_backwards(way, n):
    """The first of equally good placements becomes the last."""
    return [max(way) - r for r in way]


def _with_counts(messages, n):
    return [(src, dst, start, stop - start) for src, dst, start, stop in messages]


def _with_stops(messages, n):
    return [(src, dst, start, start + count) for src, dst, start, count in messages]


STEPS = 107  # of a run whose folders are named after what is left of them


def _steps_left(n, files):
    names = {path: re.sub(r"\d+", lambda k: str(STEPS - int(k[0])), path, count=1)
             for path in files}  # fmt: skip
    return ({names[path]: data for path, data in files.items()},)


def _steps_done(number, n):
    return STEPS - number


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
    "04.3b": Variation(back=_two_off, shows=_pairs_two_off),
    "11.2b": Variation(part=mirror, call=_frozen_mirrored),
    "12.3b": Variation(part=mirror),
    "14.1b": Variation(part=mirror),
    "15.1b": Variation(given=_shared_and_turned),
    "15.2b": Variation(given=_in_float64),
    "15.3b": Variation(back=_backwards, shows=_backwards),
    "17.1b": Variation(given=_to_base_2),
    "17.2b": Variation(given=lambda n, T, p, window, order: (T, p, window - 1, order)),
    "17.3b": Variation(back=_backwards, shows=_backwards),
    "18.2b": Variation(given=_copies_are_neighbours),
    "18.3b": Variation(back=_ranks_backwards, shows=_ranks_backwards),
    "19.2b": Variation(back=_with_stops, shows=_with_counts),
    "19.3b": Variation(given=_steps_left, back=_steps_done, shows=_steps_done),
    "20.1b": Variation(change={"cases": functools.partial(plan_cases, wanted="money")}),
    "20.1c": Variation(given=_price_of_all),
    "20.2b": Variation(given=_larger_steps, back=_whole_loss),
}
