"""09.2 Which server is the bottleneck?"""

import math
from functools import partial

from .. import signs
from ..judging import Case, Exercise

SLIPS = ("one way", "no notes", "rounded down")
PER_LAYER = "layers", "layers only"  # a server without layers gets messages, or none
# By slip: messages and bytes of a note
NOTES = {"no notes": (0, 0), "empty notes": (1, 0), "free notes": (0, 16)}
PLANS = ((1, 1), (1, 5), (2, 3), (3, 2), (3, 9), (4, 12), (8, 20))  # servers, layers
# Two servers are equally busy, 1 s each, and a task takes as long as four gradients.
# Four servers of six have no layer; their messages cost a worker alpha each.
IDLE = ([3_000_000, 2_900_000], [1, 3], 6, 1e-3, 1e-9, 8.5e-3)
EVEN = ([524_177, 524_277, 100], [1, 0, 1], 2, 2.0**-19, 2.0**-20, 2.0)


def cases(rng):
    """Layers of very different size, dealt to servers; some servers have none."""
    for arguments in [*(draw(rng, *plan) for plan in PLANS), IDLE, EVEN]:
        sizes, owner, servers, *pace = arguments
        truth = partial(limits, servers, sizes, owner, *pace)
        yield Case(
            1,
            f"{len(sizes)} layer{'s' * (len(sizes) > 1)}, {servers} "
            f"server{'s' * (servers > 1)}, compute {pace[-1] * 1e3:.1f} ms",
            [arguments],
            truth=lambda slip="", truth=truth: [truth(slip)],
        )


def draw(rng, servers, layers):
    """A plan in which the answer does not hang on the last digit."""
    while True:
        sizes = [int(x) for x in 10 ** rng.uniform(4, 8, size=layers)]
        owner = [int(x) for x in rng.integers(servers, size=layers)]
        alpha = float(10 ** rng.uniform(-5.3, -3))
        beta = float(10 ** rng.uniform(-10, -9))
        pace = alpha, beta, float(rng.uniform(5e-3, 0.2))
        answer = limits(servers, sizes, owner, *pace)
        others = [limits(servers, sizes, owner, *pace, slip) for slip in SLIPS]
        exact = limits(servers, sizes, owner, *pace, "exact")[2]
        if 0.2 < exact % 1 < 0.8 and (answer not in others or servers == 1):
            return sizes, owner, servers, *pace


def limits(servers, sizes, owner, alpha, beta, pause, slip=""):
    """(server that limits, gradients a second at most, workers that reach it)."""
    ways, (notes, note) = 2 - (slip == "one way"), NOTES.get(slip, (1, 16))
    parts = [0] * servers  # bytes of each server
    for size, j in zip(sizes, owner, strict=True):
        parts[j] += size
    if slip == "equal parts":
        parts = [sum(sizes) / servers] * servers
    calls = [ways + notes] * servers
    if slip in PER_LAYER:
        least = int(slip == "layers")
        calls = [notes + ways * max(owner.count(j), least) for j in range(servers)]
    busy = [
        k * alpha + beta * (ways * part + note)
        for k, part in zip(calls, parts, strict=True)
    ]
    server = busy.index(max(busy))
    if slip == "last of equals":
        server = servers - 1 - busy[::-1].index(max(busy))
    port = max(busy) if slip == "one server" else sum(busy)  # a worker's only one
    if slip == "no empty messages":
        port = sum(time for time, part in zip(busy, parts, strict=True) if part)
    workers = (pause + port) / max(busy)
    rounded = {"rounded down": math.floor(workers), "exact": workers}
    rounded["one too many"] = math.floor(workers) + 1
    return server, 1 / max(busy), rounded.get(slip, math.ceil(workers))


exercise = Exercise(
    "09.2",
    cases,
    [],
    {
        "not three": signs.no_numbers,
        "no notes": signs.slip(*NOTES),
        **signs.slips("one way", "one server", "equal parts", "last of equals"),
        **signs.slips("rounded down", "one too many", "exact", "no empty messages"),
        "message a layer": signs.slip(*PER_LAYER),
    },
    processes=(),
)
