"""What exercise 01.3 asks for: peak, bandwidth and launch from a table of timings."""

import math

import numpy as np

from ..judging import Case, Exercise, Mistake
from ..signs import wrong

CLEAN, NOISY = 3, 3  # machines
ROWS = 48
NOISE = 0.03


def roof_cases(rng):
    """Rows (FLOPs, bytes, seconds) of an unknown machine, in any order."""
    for i in range(CLEAN + NOISY):
        peak, rate = 10 ** rng.uniform(10, 14.5), 10 ** rng.uniform(9.5, 12.5)
        launch = 10 ** rng.uniform(-5.7, -4.5)
        rows = [_row(rng, peak, rate, launch, i >= CLEAN) for _ in range(ROWS)]
        kind = "3 % noise" if i >= CLEAN else "no noise"
        yield Case(
            1,
            f"machine {i + 1}, {kind}",
            inputs=[(rows,)],
            expected=[(peak, rate, launch)],
            facts={"rows": rows, "noisy": i >= CLEAN},
        )


def _row(rng, peak, rate, launch, noisy):
    """Work from a tenth of a launch to a thousand, on either side of the ridge."""
    long = launch * 10 ** rng.uniform(-1, 3)
    short = long * 10 ** -rng.uniform(0.05, 2)
    by_flops = rng.random() < 0.5
    f = peak * (long if by_flops else short)
    m = rate * (short if by_flops else long)
    seconds = long + launch
    return f, m, seconds * (1 + noisy * rng.uniform(-NOISE, NOISE))


def _numbers(came):
    """(peak, rate, launch) as floats, or None where it is something else."""
    try:
        peak, rate, launch = map(float, came)
    except (TypeError, ValueError):
        return None
    return peak, rate, launch


def _near(came, wanted, case):
    numbers, within = _numbers(came), 0.1 if case.facts["noisy"] else 0.01
    return numbers is not None and all(
        math.isclose(a, b, rel_tol=within) for a, b in zip(numbers, wanted, strict=True)
    )


# Wrong ways to the three numbers


def _solve(columns, times, weigh=True):
    """Least squares; each equation divided by its time, or not."""
    scale = 1 / times if weigh else np.ones_like(times)
    equations = np.stack(columns, 1) * scale[:, None]
    found = np.linalg.lstsq(equations, times * scale, rcond=None)
    unknowns = found[0]
    return unknowns, float(np.sum((equations @ unknowns - times * scale) ** 2))


def fit(rows, weigh=True, launch=True):
    """The best of all splits by intensity: memory below, arithmetic above."""
    rows = sorted(rows, key=lambda row: row[0] / row[1])
    f, m, t = map(np.array, zip(*rows, strict=True))
    best = None
    for split in range(1, len(rows)):
        above = np.arange(len(rows)) >= split
        columns = [f * above, m * ~above] + [np.ones_like(t)] * launch
        unknowns, error = _solve(columns, t, weigh)
        if (best is None or error < best[0]) and (unknowns[:2] > 0).all():
            best = error, unknowns
    u = best[1]
    return 1 / u[0], 1 / u[1], u[2] if launch else 0.0


def _summed(rows):
    f, m, t = map(np.array, zip(*rows, strict=True))
    u, _ = _solve([f, m, np.ones_like(t)], t)
    return 1 / u[0], 1 / u[1], u[2]


def _best_rates(rows):
    f, m, t = map(np.array, zip(*rows, strict=True))
    return max(f / t), max(m / t), min(t)


def _like(fake, noisy=None):
    """The answer is what a wrong way gives, or near to it."""

    def ask(attempt):
        facts = attempt.case.facts
        if not wrong(attempt) or noisy not in (None, facts["noisy"]):
            return False
        came, false = _numbers(attempt.came[0]), fake(facts["rows"])
        return came is not None and all(
            math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-12)
            for a, b in zip(came, false, strict=True)
        )

    return ask


def _upside_down(attempt):
    """Seconds per FLOP in place of FLOPs per second."""
    came = _numbers(attempt.came[0]) if wrong(attempt) else None
    return came is not None and 0 < came[0] < 1e-3


def _exchanged(attempt):
    """Peak and rate have changed places."""
    came = _numbers(attempt.came[0]) if wrong(attempt) else None
    peak, rate, launch = attempt.case.expected[0]
    return came is not None and _near(came, (rate, peak, launch), attempt.case)


roof = Exercise(
    "01.3",
    "Whose roof is it?",
    roof_cases,
    [],
    [
        Mistake(
            "not three numbers",
            lambda a: wrong(a) and _numbers(a.came[0]) is None,
            "It does not return three numbers.",
            "`return peak, rate, launch`.",
        ),
        Mistake(
            "upside down",
            _upside_down,
            "The first number is seconds per FLOP; FLOPs per second are wanted.",
        ),
        Mistake(
            "exchanged",
            _exchanged,
            "Peak and bandwidth have changed places.",
        ),
        Mistake(
            "summed",
            _like(_summed),
            "It adds the two times, but the longer one hides the other.",
            "The roofline has a max. Which rows are bound by what?",
        ),
        Mistake(
            "no launch",
            _like(lambda rows: fit(rows, launch=False)),
            "Every operation also takes its launch: a third unknown.",
        ),
        Mistake(
            "best rates",
            _like(_best_rates),
            "The best rate of all rows still has a launch in it.",
            "Fit all rows together: three unknowns, many equations.",
        ),
        Mistake(
            "unweighted",
            _like(lambda rows: fit(rows, weigh=False), noisy=True),
            "The longest rows decide alone, and the launch drowns in their noise.",
            "Divide each equation by its time.",
        ),
        Mistake(
            "off",
            wrong,
            "It is farther off than is allowed: 1 % without noise, 10 % with it.",
        ),
    ],
    agrees=_near,
)
