"""What exercise 04.4 asks for: alpha and beta from round trips on unknown clusters."""

import math

import numpy as np
import torch

from ..judging import Case, Exercise, Mistake
from ..signs import wrong

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
HOPS = (1, 2, 5)
REPEATS = 8  # trips of a row, besides the first
NOISE = 0.05
CLEAN, NOISY = 3, 5  # clusters


def weigh_cases(rng):
    """Some clusters without noise, then some with it."""
    for i in range(CLEAN + NOISY):
        noisy = i >= CLEAN
        alpha = 10 ** rng.uniform(-5.7, -4.5)  # 2 to 30 us
        beta = 10 ** rng.uniform(-10.5, -9)  # 1 to 30 GB/s
        rows = trips(rng, alpha, beta, rng.uniform(2, 6) * alpha, noisy)
        kind = "5 % noise" if noisy else "no noise"
        yield Case(
            1,
            f"cluster {i + 1}, {kind}, {len(rows)} rows",
            inputs=[(rows,)],
            expected=[(alpha, beta)],
            facts={"rows": rows, "within": 0.10 if noisy else 0.01, "noisy": noisy},
        )


def trips(rng, alpha, beta, overhead, noisy):
    """Rows (elements, dtype, hops, seconds) in any order; sizes around alpha / beta."""
    rows = []
    for S in np.geomspace(alpha / beta / 300, alpha / beta * 1000, 8):
        dtype = DTYPES[rng.integers(len(DTYPES))]
        elements = max(1, int(S) // dtype.itemsize)
        for hops in HOPS:
            one_way = hops * (alpha + beta * elements * dtype.itemsize)
            times = _times(rng, overhead + 2 * one_way, noisy)
            rows.append((elements, dtype, hops, times))
    return [rows[i] for i in rng.permutation(len(rows))]


def _times(rng, trip, noisy):
    """A warm-up, then the repeats: up to 5 % longer, at most two of them far longer."""
    times = np.full(1 + REPEATS, trip)
    if noisy:
        times *= 1 + rng.uniform(0, NOISE, size=len(times))
        disturbed = rng.integers(1, len(times), size=rng.integers(0, 3))
        times[disturbed] *= rng.uniform(2, 10)
    times[0] = trip * rng.uniform(2, 4)
    return times.tolist()


def _numbers(came):
    """(alpha, beta) as floats, or None where it is something else."""
    try:
        alpha, beta = map(float, came)
    except (TypeError, ValueError):
        return None
    return alpha, beta


def _near(came, wanted, case):
    """Both numbers are within the case's bound of the wanted ones."""
    numbers, within = _numbers(came), case.facts["within"]
    return numbers is not None and all(
        math.isclose(a, b, rel_tol=0, abs_tol=within * abs(b))
        for a, b in zip(numbers, wanted, strict=True)
    )


# Wrong ways to the two numbers


def _fastest(trip):
    return min(trip[1:])


def _fit(rows, ways=2, size=None, pick=_fastest, overhead=True, hop=True, weigh=True):
    """Least squares in which one thing can be wrong."""
    equations, times = [], []
    for elements, dtype, hops, trip in rows:
        time = pick(trip)
        scale = 1 / time if weigh else 1.0
        legs = ways * (hops if hop else 1) * scale
        bytes = elements * dtype.itemsize
        equations.append([legs, legs * (size or (lambda e, b: b))(elements, bytes)])
        equations[-1] += [scale] if overhead else []
        times.append(time * scale)
    solution, *_ = np.linalg.lstsq(np.array(equations), np.array(times), rcond=None)
    return float(solution[0]), float(solution[1])


def _like(noisy=False, **change):
    """The answer is what this wrong fit gives, or near to it, without or with noise."""

    def ask(attempt):
        if attempt.case.facts["noisy"] != noisy:
            return False
        fake = _fit(attempt.case.facts["rows"], **change)
        return wrong(attempt) and _near(attempt.came[0], fake, attempt.case)

    return ask


def _whole_trip(attempt):
    alpha, beta = attempt.case.expected[0]
    return wrong(attempt) and _near(
        attempt.came[0], (2 * alpha, 2 * beta), attempt.case
    )


def _warm_up(attempt):
    return any(_like(pick=pick)(attempt) for pick in (np.mean, lambda trip: trip[0]))


def _rate(attempt):
    alpha, beta = attempt.case.expected[0]
    numbers = _numbers(attempt.came[0]) if wrong(attempt) else None
    return numbers is not None and math.isclose(numbers[1] * beta, 1, rel_tol=0.1)


def _not_two(attempt):
    return wrong(attempt) and _numbers(attempt.came[0]) is None


def _noisy(attempt):
    return wrong(attempt) and attempt.case.facts["noisy"]


weigh = Exercise(
    "04.4",
    "Weigh the wire",
    weigh_cases,
    [],
    [
        Mistake(
            "not two numbers",
            _not_two,
            "It does not return two numbers.",
            "`return alpha, beta`, in seconds and in seconds per byte.",
        ),
        Mistake(
            "whole trip",
            _whole_trip,
            "Both numbers are twice too large: a trip goes there and back.",
            "Over how many hops does a message travel in one trip?",
        ),
        Mistake(
            "bandwidth",
            _rate,
            "The second number is bytes per second; beta is seconds per byte.",
        ),
        Mistake(
            "elements",
            _like(size=lambda elements, bytes: elements),
            "It counts elements, but a float64 has 8 bytes and a uint8 one.",
            "A dtype knows its `itemsize`.",
        ),
        Mistake(
            "no hops",
            _like(hop=False),
            "It takes every trip as one to the neighbour and back.",
            "Each hop costs a message of its own.",
        ),
        Mistake(
            "overhead",
            _like(overhead=False),
            "What the measurement itself costs is taken for the wire's.",
            "It is paid once a trip, for any number of hops: a third unknown.",
        ),
        Mistake(
            "warm-up",
            _warm_up,
            "The first trip of each row counts, and it takes far longer.",
            "It sets up the connection. Leave it out.",
        ),
        Mistake(
            "off",
            lambda attempt: wrong(attempt) and not attempt.case.facts["noisy"],
            "Even without noise it is off by more than 1 %.",
            "Write down what a trip of S bytes over h hops costs, with three unknowns.",
        ),
        Mistake(
            "mean",
            _like(noisy=True, pick=lambda trip: np.mean(trip[1:])),
            "A mean follows the disturbed trips.",
            "Noise only makes a trip longer. Which of eight is nearest to the truth?",
        ),
        Mistake(
            "unweighted",
            _like(noisy=True, weigh=False),
            "The longest trips decide alone, and alpha drowns in their noise.",
            "Divide each equation by its time, as the chapter does.",
        ),
        Mistake(
            "noise",
            _noisy,
            "Without noise it is right; with noise it is too far off.",
            "Two things: which of the eight times of a row counts, and how much the "
            "rows count.",
        ),
    ],
    agrees=_near,
)
