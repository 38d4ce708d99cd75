"""What exercise 01.2 asks for: which operations of a chain go to the GPU."""

from itertools import product

from ..judging import Case, Exercise, Mistake, close
from ..signs import raises, wrong


def place_cases(rng):
    """(start, ops, cpu, gpu, link): a chain of operations, at first on the host."""
    seen = {}  # what the function answers, case by case
    for i, length in enumerate((1, 2, 3, 5, 6, 8, 4, 5)):
        inputs = _chain(rng, length)
        while length > 2 and not _misled(WAYS[i % len(WAYS)], inputs):
            inputs = _chain(rng, length)
        places = ("".join(p) for p in product("CG", repeat=length))
        best = min(places, key=lambda p: cost(p, *inputs))
        yield Case(
            1,
            f"{length} operations, {inputs[0] / 1e3:,.0f} kB at first",
            inputs=[inputs],
            expected=[(cost(best, *inputs), best)],
            facts={"inputs": inputs, "seen": seen},
        )


def _chain(rng, length):
    """(start, ops, cpu, gpu, link) of so many operations."""
    start = _bytes(rng)
    ops = []
    for _ in range(length):
        f, out = 10 ** rng.uniform(5, 9.5), _bytes(rng)
        ops.append((f, 3 * out * rng.uniform(0.5, 1.5), out))
    cpu = 10 ** rng.uniform(10.5, 11.5), 10 ** rng.uniform(10, 10.7), 2e-6
    gpu = 10 ** rng.uniform(12.5, 13.5), 10 ** rng.uniform(11.5, 12.3), 5e-6
    link = 5e-6, 10 ** rng.uniform(9.8, 10.5)
    return start, ops, cpu, gpu, link


def _bytes(rng):
    return float(round(10 ** rng.uniform(3, 7.5)))


def work(op, machine):
    """Seconds of an operation by the roofline."""
    (f, m, _), (peak, rate, launch) = op, machine
    return max(f / peak, m / rate) + launch


def cost(places, start, ops, cpu, gpu, link, back=True, moves=True):
    """Seconds of the chain at these places; the last two can be wrong."""
    latency, rate = link
    total, here, held = 0.0, "C", start
    for place, op in zip(places, ops, strict=True):
        if place != here and moves:
            total += latency + held / rate
        total += work(op, cpu if place == "C" else gpu)
        here, held = place, op[2]
    return total + (latency + held / rate if here == "G" and back else 0.0)


def _answer(came, length):
    """(seconds, places), or None where it is something else."""
    try:
        seconds, places = came
        seconds, places = float(seconds), "".join(places)
    except (TypeError, ValueError):
        return None
    fits = len(places) == length and set(places) <= set("CG")
    return (seconds, places) if fits else None


def _best(came, wanted, case):
    """The least time, and places that take it."""
    inputs = case.facts["inputs"]
    answer = _answer(came, len(inputs[1]))
    if answer is None:
        return False
    case.facts["seen"][id(case)] = answer[1], inputs
    return close(answer[0], wanted[0]) and close(cost(answer[1], *inputs), wanted[0])


def _told(attempt):
    """(seconds, places, inputs) of a wrong answer in the right form."""
    inputs = attempt.case.facts["inputs"]
    answer = _answer(attempt.came[0], len(inputs[1])) if wrong(attempt) else None
    return (*answer, inputs) if answer else None


def _least(**fault):
    """The time is the least one by a cost that leaves something out."""

    def ask(attempt):
        told = _told(attempt)
        if told is None:
            return False
        seconds, _, inputs = told
        every = product("CG", repeat=len(inputs[1]))
        return close(seconds, min(cost(p, *inputs, **fault) for p in every))

    return ask


def _same_places(choose):
    """The places are `choose(inputs)`, here and in all other cases."""

    def ask(attempt):
        seen = attempt.case.facts["seen"].values()
        return _told(attempt) is not None and all(
            places == choose(inputs) for places, inputs in seen
        )

    return ask


def _alone(inputs):
    """Each operation goes where its work takes less."""
    _, ops, cpu, gpu, _ = inputs
    return "".join("CG"[work(op, gpu) < work(op, cpu)] for op in ops)


def _greedy(inputs):
    """Each operation goes where it is done first, seen from where the data are."""
    start, ops, cpu, gpu, (latency, rate) = inputs
    places, here, held = "", "C", start
    for op in ops:
        move = latency + held / rate
        times = {
            "C": work(op, cpu) + move * (here == "G"),
            "G": work(op, gpu) + move * (here == "C"),
        }
        here, held = min(times, key=times.get), op[2]
        places += here
    return places


def _there_and_back(inputs):
    """Each operation takes its input there and its output back."""
    start, ops, cpu, gpu, (latency, rate) = inputs
    places, held = "", start
    for op in ops:
        away = work(op, gpu) + 2 * latency + (held + op[2]) / rate
        places += "CG"[away < work(op, cpu)]
        held = op[2]
    return places


def _all_or_nothing(inputs):
    length = len(inputs[1])
    return min("C" * length, "G" * length, key=lambda p: cost(p, *inputs))


WAYS = (_all_or_nothing, _alone, _there_and_back, _greedy)


def _misled(way, inputs):
    """This wrong way takes at least 2 % longer than the best one."""
    every = product("CG", repeat=len(inputs[1]))
    least = min(cost(places, *inputs) for places in every)
    return cost(way(inputs), *inputs) > 1.02 * least


def _inconsistent(attempt):
    """The places are the best ones, and the seconds are not theirs."""
    told = _told(attempt)
    wanted = attempt.case.expected[0][0]
    return told is not None and close(cost(told[1], *told[2]), wanted)


place = Exercise(
    "01.2",
    "Who does what?",
    place_cases,
    [],
    [
        Mistake(
            "form",
            lambda a: raises(IndexError)(a) or (wrong(a) and _told(a) is None),
            "It does not return seconds and a text with one C or G per operation.",
            '`return seconds, "CGG"`.',
        ),
        Mistake(
            "no way back",
            _least(back=False),
            "The result is left on the GPU; it must end on the host.",
            "After the last operation there may be one more move.",
        ),
        Mistake(
            "free moves",
            _least(back=False, moves=False),
            "Moving is free here. It is not.",
            "A move of S bytes takes latency + S / rate.",
        ),
        Mistake(
            "other seconds",
            _inconsistent,
            "The places are the best ones, but they do not take so long.",
        ),
        Mistake(
            "all or nothing",
            _same_places(_all_or_nothing),
            "All operations are in one place, and a mixture takes less.",
        ),
        Mistake(
            "each alone",
            _same_places(_alone),
            "Each operation is where its own work takes less. The moves are forgotten.",
            "Where are the data when it starts, and who needs them next?",
        ),
        Mistake(
            "there and back",
            _same_places(_there_and_back),
            "It decides as if all data came back after each operation.",
            "Two operations on the GPU in a row need no move between them.",
        ),
        Mistake(
            "greedy",
            _same_places(_greedy),
            "Each operation looks at its own move only, not at those behind it.",
            "Keep two times: until now, ending on the CPU, and ending on the GPU.",
        ),
        Mistake(
            "not the least",
            lambda a: _told(a) is not None,
            "Other places take less time in all.",
            "Try your function on a chain of two: there are only four ways.",
        ),
    ],
    agrees=_best,
)
