"""04.4 Weigh the wire."""

from functools import partial

import numpy as np
import torch

from .. import signs
from ..equality import near
from ..judging import Case, Exercise
from ..signs import both, wrong

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
HOPS = (1, 2, 5)
REPEATS = 8  # trips of a row, besides the first
NOISE = 0.05
CLEAN, NOISY = 3, 5  # clusters


def cases(rng):
    """Some clusters without noise, then some with it."""
    for i in range(CLEAN + NOISY):
        noisy = i >= CLEAN
        alpha = 10 ** rng.uniform(-5.7, -4.5)  # 2 to 30 us
        beta = 10 ** rng.uniform(-10.5, -9)  # 1 to 30 GB/s
        trips = measured(rng, alpha, beta, rng.uniform(2, 6) * alpha, noisy)
        kind = "5 % noise" if noisy else "no noise"
        yield Case(
            1,
            f"cluster {i + 1}, {kind}, {len(trips)} rows",
            inputs=[(trips,)],
            facts={"within": 0.10 if noisy else 0.01, "noisy": noisy},
            truth=partial(weighed, trips, alpha, beta, noisy),
        )


def measured(rng, alpha, beta, overhead, noisy):
    """Rows (elements, dtype, hops, seconds) in any order; sizes around alpha / beta."""
    rows = []
    for S in np.geomspace(alpha / beta / 300, alpha / beta * 1000, 8):
        dtype = DTYPES[rng.integers(len(DTYPES))]
        elements = max(1, int(S) // dtype.itemsize)
        for hops in HOPS:
            one_way = hops * (alpha + beta * elements * dtype.itemsize)
            times = repeated(rng, overhead + 2 * one_way, noisy)
            rows.append((elements, dtype, hops, times))
    return [rows[i] for i in rng.permutation(len(rows))]


def repeated(rng, trip, noisy):
    """A warm-up, then the repeats: up to 5 % longer, at most two of them far longer."""
    times = np.full(1 + REPEATS, trip)
    if noisy:
        times *= 1 + rng.uniform(0, NOISE, size=len(times))
        disturbed = rng.integers(1, len(times), size=rng.integers(0, 3))
        times[disturbed] *= rng.uniform(2, 10)
    times[0] = trip * rng.uniform(2, 4)
    return times.tolist()


def weighed(trips, alpha, beta, noisy, slip=""):
    """Alpha and beta, or what a fit makes of the trips in which one thing is wrong.

    Anything where that slip is lost in noise; two slips show there only.
    """
    if noisy and slip not in ("", "mean", "unweighted"):
        return [...]
    if slip in ("", "bandwidth"):
        return [(alpha, 1 / beta if slip else beta)]
    equations, right = [], []
    for elements, dtype, hops, times in trips:
        picks = {"warm-up": times[0], "mean of all": np.mean(times)}
        picks["mean"] = np.mean(times[1:])
        time = picks.get(slip, min(times[1:]))
        size = elements if slip == "elements" else elements * dtype.itemsize
        legs = {"no hops": 2, "whole trip": hops}.get(slip, 2 * hops)
        scale = 1 if slip == "unweighted" else 1 / time
        row = legs, legs * size, slip != "overhead"
        equations.append([scale * x for x in row])
        right.append(scale * time)
    return [np.linalg.lstsq(np.array(equations), np.array(right), rcond=None)[0][:2]]


exercise = Exercise(
    "04.4",
    cases,
    mistakes={
        "not two numbers": signs.no_numbers,
        **signs.slips("whole trip", "bandwidth", "elements", "no hops", "overhead"),
        "warm-up": signs.slip("warm-up", "mean of all"),
        "off": both(wrong, lambda a: not a.case.facts["noisy"]),
        **signs.slips("mean", "unweighted"),
        "noise": wrong,
    },
    agrees=lambda came, wanted, case: near(came, wanted, case.facts["within"]),
)
