"""09.3 The fair mean."""

from dataclasses import replace
from functools import partial
from itertools import product

import torch

from ...allreduce.costs import ring_cost
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, argument, ranks
from ..signs import both, breaks


def cases(rng):
    """Ranks with different numbers of rows; some have none, once all have none."""
    kinds = ((1, False), (7, True), (16, False))
    plans = [(n, *kind, None) for n, kind in product((1, 2, 3, 4, 5, 8), kinds)]
    plans.append((3, 7, False, [0, 1, 0]))  # a single row in all
    plans.append((3, 7, False, [2**24, 1, 0]))  # the sum is no float32
    for n, D, empty, counts in plans:
        drawn = rng.integers(1, 9, size=n).tolist()
        if empty:  # every second one; from four ranks on, all
            drawn = [0 if n > 3 or r % 2 else drawn[r] for r in range(n)]
        counts = counts or drawn
        values = torch.from_numpy(rng.normal(size=(n, D)))
        yield Case(
            n,
            f"{ranks(n)}, {D} element{'s' * (D > 1)}, rows {counts}",
            [(x.clone(), count) for x, count in zip(values, counts, strict=True)],
            facts={"S": D, "rows": sum(counts)},
            truth=partial(means, values, counts),
        )


def means(values, counts, slip=""):
    """On every rank the mean over all rows; what it was where there are none."""
    n, weights = len(counts), values.new_tensor(counts)
    if slip == "unchanged" or not (slip or sum(counts)):
        return list(values)
    if not sum(counts):
        return [...] * n
    rounded = torch.tensor(float(sum(counts))).item()
    over = {"over n": n, "plain mean": n, "float32": rounded}.get(slip, sum(counts))
    return [(values.sum(0) if slip == "plain mean" else weights @ values) / over] * n


def no_rows(case):
    return case.facts["rows"] == 0


BYTES = rows.bytes_sent(
    lambda case: ring_cost(case.facts["S"] + 1, case.n, 8).busiest, exactly=False
)
ROUNDS = rows.rounds(lambda case: 2 * (case.n - 1), exactly=False)
SAME = rows.same_bits()
BITS = replace(SAME, measured=lambda a: 0 if no_rows(a.case) else SAME.measured(a))

exercise = Exercise(
    "09.3",
    cases,
    [BYTES, ROUNDS, BITS, rows.from_messages()],
    {
        "rebinding": signs.slip("unchanged"),
        "nobody": both(signs.wrong, signs.only(no_rows)),
        **signs.slips("plain mean", "over n", "float32"),
        "two all-reduces": breaks(ROUNDS),
        "too many bytes": breaks(BYTES),
    },
    outcome=argument(0),
)
