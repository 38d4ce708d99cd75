"""08.2 What is exposed."""

import numpy as np

from .. import signs
from ..judging import Case, Exercise, numbers


def exposed_cases(rng):
    """Layers with and without parameters; slow and fast networks."""
    rates = (1e9, 1e9, 2e8, 5e9, 1e9, 1e8, 3e9, 1e10, 6e8, 4e8)
    limits = (0, 2, 1, 1.5, 1000, 0.5, 1e-6, 2.5, 4, 5)  # in MB
    for i, (rate, limit) in enumerate(zip(rates, limits, strict=True)):
        count = int(rng.integers(3, 9)) if i < 8 else 8
        layers = []
        for _ in range(count):
            forward = float(rng.uniform(0.5e-3, 2e-3))
            size = int(rng.integers(200_000, 3_000_000))
            size = 0 if rng.random() < 0.25 else size
            layers.append((forward, 2 * forward, size))
        if i in (3, 7):
            layers[0] = (*layers[0][:2], 0)  # nothing left to send at the end
        yield case(layers, round(limit * 1e6), rate)
    sizes = 10**6, 0, 2 * 10**6, 0, 10**6, 10**6
    layers = [(1e-3, 2e-3, size) for size in sizes]
    yield case(layers, 2 * 10**6, 3e8)  # full to the byte
    yield case(layers, 2 * 10**6 + 1, 3e8)  # and not, for a byte
    yield case(layers, 0, 1e8)  # what has no parameters makes no bucket


def case(layers, limit, rate, alpha=5e-5):
    """The call with these arguments."""

    def seconds(size):
        return alpha + size / rate

    return Case(
        1,
        f"{len(layers)} layers, buckets of {limit:,} bytes, {rate / 1e9:g} GB/s",
        [(layers, limit, seconds)],
        truth=lambda slip="": [timing(layers, limit, seconds, slip)],
    )


def timing(layers, limit, seconds, slip=""):
    """(step, exposed) of a step."""
    clock = sum(forward for forward, _, _ in layers)
    ready, filling = [], []  # of buckets; of the one that fills: (moment, bytes)
    for _, backward, size in layers if "front" in slip else layers[::-1]:
        clock += backward
        empty = slip == "empty bucket" or (slip == "no limit" and not limit)
        if size or empty:
            filling.append((clock, size))
        total = sum(size for _, size in filling)
        if filling and (total > limit if slip == "overfull" else total >= limit):
            ready.append(filling)
            filling = []
    if sum(size for _, size in filling) and slip != "rest":
        ready.append(filling + [(clock, 0)] * ("late rest" in slip))
    free = clock if slip == "no overlap" else 0.0
    for bucket in ready:
        moment = bucket[0 if slip == "first gradient" else -1][0]
        start = moment if slip == "queue" else max(moment, free)
        took = seconds(sum(size for _, size in bucket))
        free = max(free, start + took)
    if slip == "last bucket" and ready:
        free = clock + took
    if slip == "network's end" and ready:
        return free, free - clock
    step, exposed = max(clock, free), max(0.0, free - clock)
    if slip == "swapped":
        return exposed, step
    return step, free - clock if slip == "negative" else exposed


def agrees(came, wanted, case):
    """Two numbers that are right to six digits."""
    came = numbers(came)
    return came.shape == (2,) and np.allclose(came, wanted, rtol=1e-6, atol=1e-12)


SLIPS = "swapped", "rest", "queue", "first gradient", "no overlap"
SLIPS += "last bucket", "overfull"

exercise = Exercise(
    "08.2",
    exposed_cases,
    [],
    {
        "no pair": signs.no_numbers,
        **signs.slips(*SLIPS),
        "late rest": signs.slip("late rest"),
        "negative": signs.slip("negative", "network's end"),
        "empty bucket": signs.slip("empty bucket", "no limit"),
        "front": signs.slip("front", "front, late rest"),
    },
    agrees=agrees,
    processes=(),
)
