"""01.3 Whose roof is it?"""

from functools import partial

import numpy as np

from .. import signs
from ..judging import Case, Exercise, near, numbers
from ..signs import wrong


def cases(rng):
    """48 rows (FLOPs, bytes, seconds) of three machines, and of three with noise."""
    for i in range(6):
        peak, rate = 10 ** rng.uniform(10, 14.5), 10 ** rng.uniform(9.5, 12.5)
        launch = 10 ** rng.uniform(-5.7, -4.5)
        noise = 0.03 if i > 2 else 0
        rows = [row(rng, peak, rate, launch, noise) for _ in range(48)]
        yield Case(
            1,
            f"machine {i + 1}, " + ("3 % noise" if noise else "no noise"),
            [(rows,)],
            expected=[(peak, rate, launch)],
            facts={"within": 0.1 if noise else 0.01},
            truth=partial(fit, rows),
        )


def row(rng, peak, rate, launch, noise):
    """Work from a tenth of a launch to a thousand, on either side of the ridge."""
    long = launch * 10 ** rng.uniform(-1, 3)
    short = long * 10 ** -rng.uniform(0.05, 2)
    by_flops = rng.random() < 0.5
    f = peak * (long if by_flops else short)
    m = rate * (short if by_flops else long)
    return f, m, (long + launch) * (1 + noise * rng.uniform(-1, 1))


def fit(rows, slip):
    """[(peak, rate, launch)] as a wrong way finds them."""
    f, m, t = np.array(sorted(rows, key=lambda row: row[0] / row[1])).T
    if slip == "best rates":
        return [(max(f / t), max(m / t), min(t))]
    one, found = np.ones_like(t), []
    scale = one if slip == "unweighted" else 1 / t
    for cut in range(1, len(t)):
        above = np.arange(len(t)) >= cut
        lines = [f, m] if slip == "summed" else [f * above, m * ~above]
        A = np.stack(lines + [one] * (slip != "no launch"), axis=1) * scale[:, None]
        u = np.linalg.lstsq(A, t * scale, rcond=None)[0]
        if (u[:2] > 0).all():
            found.append((np.square(A @ u - t * scale).sum(), *u, 0.0))
    _, a, b, launch, *_ = min(found)
    return [(1 / a, 1 / b, launch)]


def agrees(came, wanted, case):
    """As near to the machine as is asked for; nearer to what a slip gives."""
    within = case.facts["within"] if wanted is case.expected[0] else 1e-4
    return near(came, wanted, within)


def once(turned):
    """The three numbers are right in all calls once they are turned like this."""

    def turns(attempt):
        came, wanted = attempt.came[0], attempt.case.expected[0]
        with np.errstate(divide="ignore"):  # a number may be 0
            return agrees(turned(*numbers(came)), wanted, attempt.case)

    return lambda a: wrong(a) and all(turns(x) for x in a.attempts if not x.error)


exercise = Exercise(
    "01.3",
    cases,
    [],
    {
        "not three numbers": signs.no_numbers,
        "upside down": signs.either(
            once(lambda peak, rate, launch: (1 / peak, 1 / rate, launch)),
            once(lambda peak, rate, launch: (1 / peak, rate, launch)),
            once(lambda peak, rate, launch: (peak, 1 / rate, launch)),
        ),
        "exchanged": once(lambda peak, rate, launch: (rate, peak, launch)),
        **signs.slips("summed", "no launch", "best rates", "unweighted"),
        "off": wrong,
    },
    agrees=agrees,
)
