"""01.3 Whose roof is it?: machine(rows)."""

import numpy as np

from zoo import right, wrong


def splits(rows, weigh=True, launch=True):
    rows = sorted(rows, key=lambda row: row[0] / row[1])
    f, m, t = map(np.array, zip(*rows, strict=True))
    found = []
    for k in range(1, len(rows)):
        above = np.arange(len(rows)) >= k
        scale = 1 / t if weigh else np.ones_like(t)
        columns = [f * above, m * ~above] + [np.ones_like(t)] * launch
        A = np.stack(columns, 1) * scale[:, None]
        u = np.linalg.lstsq(A, t * scale, rcond=None)[0]
        if (u[:2] > 0).all():
            found.append((float(((A @ u - t * scale) ** 2).sum()), k, u))
    u = min(found)[2]
    return 1 / u[0], 1 / u[1], u[2] if launch else 0.0


@right
def every_split(rows):
    return splits(rows)


@right
def back_and_forth(rows):
    """Guess who is bound by what, fit, guess again."""
    f, m, t = map(np.array, zip(*rows, strict=True))
    peak, rate = max(f / t), max(m / t)
    for _ in range(50):
        above = f / peak > m / rate
        A = np.stack([f * above, m * ~above, np.ones_like(t)], 1) / t[:, None]
        u = np.linalg.lstsq(A, np.ones_like(t), rcond=None)[0]
        peak, rate = 1 / u[0], 1 / u[1]
    return [peak, rate, float(u[2])]


@wrong("not three numbers")
def without_the_launch(rows):
    return every_split(rows)[:2]


@wrong("upside down")
def seconds_per_flop(rows):
    peak, rate, launch = every_split(rows)
    return 1 / peak, 1 / rate, launch


@wrong("exchanged")
def rate_first(rows):
    peak, rate, launch = every_split(rows)
    return rate, peak, launch


@wrong("summed")
def one_straight_line(rows):
    f, m, t = map(np.array, zip(*rows, strict=True))
    A = np.stack([f, m, np.ones_like(t)], 1) / t[:, None]
    u = np.linalg.lstsq(A, np.ones_like(t), rcond=None)[0]
    return 1 / u[0], 1 / u[1], u[2]


@wrong("no launch")
def two_unknowns(rows):
    return splits(rows, launch=False)


@wrong("best rates")
def the_best_of_each(rows):
    f, m, t = map(np.array, zip(*rows, strict=True))
    return max(f / t), max(m / t), min(t)


@wrong("unweighted")
def the_longest_decide(rows):
    return splits(rows, weigh=False)


@wrong("off")
def medians(rows):
    f, m, t = map(np.array, zip(*rows, strict=True))
    return np.median(f / t), np.median(m / t), min(t)


@right
def half_a_percent_too_fast(rows):
    return tuple(1.005 * number for number in every_split(rows))


@wrong("off")
def launches_two_percent_too_long(rows):
    peak, rate, launch = every_split(rows)
    return peak, rate, 1.02 * launch


@wrong("off")
def the_shortest_is_the_launch(rows):
    return *every_split(rows)[:2], min(row[2] for row in rows)


@wrong("off")
def launch_first(rows):
    return every_split(rows)[::-1]


@wrong("upside down")
def seconds_per_byte(rows):
    peak, rate, launch = every_split(rows)
    return peak, 1 / rate, launch


@wrong("off")
def three_zeros(rows):
    return 0, 0, 0.0


@wrong("raises")
def divides_where_it_should_multiply(rows):
    """One column of the fit has infinities, with which `lstsq` itself never ends."""
    rows = sorted(rows, key=lambda row: row[0] / row[1])
    f, m, t = map(np.array, zip(*rows, strict=True))
    above = np.arange(len(rows)) >= len(rows) // 2
    with np.errstate(divide="ignore"):
        A = np.stack([f / above, m / ~above, np.ones_like(t)], 1) / t[:, None]
    u = np.linalg.lstsq(A, np.ones_like(t), rcond=None)[0]
    return 1 / u[0], 1 / u[1], u[2]
