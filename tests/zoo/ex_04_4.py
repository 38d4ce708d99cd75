"""04.4 Weigh the wire: weigh(trips) gives alpha and beta."""

from collections import defaultdict
from statistics import median

import numpy as np
import torch

from d2lpar.messages import fit_alpha_beta
from zoo import right, wrong


def solve(trips, pick, weighted=True, legs=lambda hops: 2 * hops, overhead=True):
    """Least squares for alpha, beta and what a measurement costs."""
    rows, times = [], []
    for elements, dtype, hops, seconds in trips:
        time, size = pick(seconds), elements * dtype.itemsize
        row = [legs(hops), legs(hops) * size, 1.0][: 3 if overhead else 2]
        scale = 1 / time if weighted else 1.0
        rows.append([scale * x for x in row])
        times.append(scale * time)
    return np.linalg.lstsq(np.array(rows), np.array(times), rcond=None)[0]


@right
def medians_instead_of_minima(trips):
    alpha, beta, _ = solve(trips, lambda seconds: median(seconds[1:]))
    return alpha, beta


@right
def differences_then_the_fit_of_the_library(trips):
    """What is paid once falls out between trips that differ in their hops only."""
    same = defaultdict(list)
    for elements, dtype, hops, seconds in trips:
        same[elements, dtype].append((hops, min(seconds)))
    sizes, times = [], []
    for (elements, dtype), rows in same.items():
        (few, fast), (many, slow) = min(rows), max(rows)
        sizes.append(elements * dtype.itemsize)
        times.append((slow - fast) / (2 * (many - few)))
    return list(fit_alpha_beta(sizes, times))


@right
def normal_equations_in_torch(trips):
    rows, ones = [], []
    for elements, dtype, hops, seconds in trips:
        t = min(seconds[1:])
        rows.append([2 * hops / t, 2 * hops * elements * dtype.itemsize / t, 1 / t])
        ones.append(1.0)
    a = torch.tensor(rows, dtype=torch.float64)
    scale = a.norm(dim=0)
    b = torch.tensor(ones, dtype=torch.float64)
    x = torch.linalg.solve((a / scale).T @ (a / scale), (a / scale).T @ b) / scale
    return x[0], x[1]


@wrong("overhead")
def the_fit_of_the_library(trips):
    sizes = [elements * dtype.itemsize for elements, dtype, _, _ in trips]
    times = [min(seconds[1:]) / (2 * hops) for _, _, hops, seconds in trips]
    return fit_alpha_beta(sizes, times)


@wrong("whole trip")
def there_but_not_back(trips):
    return tuple(solve(trips, lambda seconds: min(seconds[1:]), legs=int)[:2])


@wrong("no hops")
def always_to_the_neighbour(trips):
    solution = solve(trips, lambda seconds: min(seconds[1:]), legs=lambda hops: 2)
    return tuple(solution[:2])


@wrong("elements")
def elements_for_bytes(trips):
    plain = [(elements, torch.uint8, hops, s) for elements, _, hops, s in trips]
    return tuple(solve(plain, min)[:2])


@wrong("bandwidth")
def bytes_per_second(trips):
    alpha, beta, _ = solve(trips, min)
    return alpha, 1 / beta


@wrong("mean")
def mean_of_the_repeats(trips):
    return tuple(solve(trips, lambda seconds: np.mean(seconds[1:]))[:2])


@wrong("warm-up")
def mean_with_the_warm_up(trips):
    return tuple(solve(trips, np.mean)[:2])


@wrong("warm-up")
def the_warm_up_only(trips):
    return tuple(solve(trips, lambda seconds: seconds[0])[:2])


@wrong("unweighted")
def the_largest_decides(trips):
    return tuple(solve(trips, min, weighted=False)[:2])


@wrong("noise")
def mean_and_unweighted(trips):
    solution = solve(trips, lambda seconds: np.mean(seconds[1:]), weighted=False)
    return tuple(solution[:2])


@wrong("not two numbers")
def three_numbers(trips):
    return tuple(solve(trips, min))


@wrong("off")
def the_default_cluster(trips):
    return 10e-6, 1e-10
