"""01.2 Who does what?"""

from functools import partial
from itertools import product

from .. import signs
from ..judging import NO_NUMBER, Case, Exercise, close
from ..signs import wrong

WAYS = ("all or nothing", "each alone", "there and back", "greedy")
# The result of a long operation comes home for short ones, and goes there once more.
AGAIN = [(1e10, 1e3, 1e3), *[(10.0, 10.0, 1e3)] * 3, (1e10, 1e3, 1e3)]
TWICE = 1e3, AGAIN, (1e10, 1e10, 1e-6), (1e13, 1e12, 1e-3), (1e-5, 1e10)
TIE = 1e6, [(1e9, 1e6, 1e6)], (1e9, 1e9, 0.0), (2e9, 1e9, 0.0), (0.125, 8e6)


def cases(rng):
    """Chains that mislead one of the `WAYS`; two visits to the GPU; a tie."""
    chains = []
    for i, length in enumerate((1, 2, 3, 5, 6, 8, 4, 5)):
        chains.append(chain(rng, length))
        while length > 2 and not misled(WAYS[i % len(WAYS)], chains[i]):
            chains[i] = chain(rng, length)
    for inputs in [*chains, TWICE, TIE]:
        text = f"{len(inputs[1])} operations, {inputs[0] / 1e3:,.0f} kB at first"
        yield Case(1, text, [inputs], truth=partial(plan, inputs))


def chain(rng, length):
    """(start, ops, cpu, gpu, link) of so many operations."""
    start, ops = size(rng), []
    for _ in range(length):
        f, out = 10 ** rng.uniform(5, 9.5), size(rng)
        ops.append((f, 3 * out * rng.uniform(0.5, 1.5), out))
    cpu = 10 ** rng.uniform(10.5, 11.5), 10 ** rng.uniform(10, 10.7), 2e-6
    gpu = 10 ** rng.uniform(12.5, 13.5), 10 ** rng.uniform(11.5, 12.3), 5e-6
    return start, ops, cpu, gpu, (5e-6, 10 ** rng.uniform(9.8, 10.5))


def size(rng):
    return float(round(10 ** rng.uniform(3, 7.5)))


def misled(way, inputs):
    """This wrong way takes at least 2 % longer than the best one."""
    return plan(inputs, way)[0][0] > 1.02 * plan(inputs)[0][0]


def plan(inputs, slip=""):
    """[(seconds, places)] of the best way, or of what is taken for it."""
    every = list(map("".join, product("CG", repeat=len(inputs[1]))))
    if slip in WAYS:
        alike = [every[0], every[-1]]
        every = alike if slip == WAYS[0] else [one_by_one(inputs, slip)]
    if slip == "one visit":
        every = [places for places in every if "GC" not in places.rstrip("C")]
    seconds = partial(cost, inputs, slip=slip)
    best = min(every, key=seconds)
    return [(seconds(best), best)]


def one_by_one(inputs, slip):
    """The places, where each operation goes to the side that it finds faster."""
    held, ops, cpu, gpu, (latency, rate) = inputs
    places, here = "", "C"
    for op in ops:
        more = work(op, gpu) - work(op, cpu)  # than on the CPU
        if slip == "greedy":
            more += (latency + held / rate) * (1 if here == "C" else -1)
        elif slip == "there and back":
            more += 2 * latency + (held + op[2]) / rate
        here, held = "CG"[more < 0], op[2]
        places += here
    return places


def work(op, machine):
    """Seconds of an operation by the roofline."""
    (f, m, _), (peak, rate, launch) = op, machine
    return max(f / peak, m / rate) + launch


def cost(inputs, places, slip=""):
    """Seconds of the chain at these places."""
    held, ops, cpu, gpu, (latency, rate) = inputs
    total, here = 0.0, "C"
    for place, op in zip(places, ops, strict=True):
        if place != here and slip != "free moves":
            total += latency + held / rate
        total += work(op, {"C": cpu, "G": gpu}[place])
        here, held = place, op[2]
    stays = here == "C" or slip in ("free moves", "no way back")
    return total if stays else total + latency + held / rate


def answer(came, case):
    """(seconds, seconds that its places take), or None where it is something else."""
    try:
        seconds, places = came
        return float(seconds), cost(case.inputs[0], "".join(places))
    except (*NO_NUMBER, KeyError):
        return None


def agrees(came, wanted, case):
    """The same seconds, at places that take equally long: any of the best will do."""
    told = answer(came, case)
    return told is not None and all(map(close, told, answer(wanted, case)))


exercise = Exercise(
    "01.2",
    cases,
    [],
    {
        "form": lambda a: wrong(a) and answer(a.came[0], a.case) is None,
        **signs.slips("no way back", "free moves"),
        "other seconds": lambda a: wrong(a) and not close(*answer(a.came[0], a.case)),
        **signs.slips(*WAYS),
        **signs.slips("one visit"),
        "not the least": wrong,
    },
    agrees=agrees,
)
