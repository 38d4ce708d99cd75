"""What exercise 13.4 asks for: bubble and bytes of a training run, from a text."""

import math

from ...schedule import Schedule, make, parse, simulate
from ..judging import Case, Exercise, Mistake, ranks
from ..signs import wrong

# name, ranks, micro-batches, steps
SIZES = [("naive", 1, 1, 1), ("gpipe", 2, 2, 1), ("1f1b", 2, 3, 1)]
SIZES += [("gpipe", 3, 4, 3), ("zb-h1", 3, 6, 2), ("interleaved", 2, 4, 3)]
SIZES += [("zb-h2", 3, 6, 4), ("1f1b", 4, 6, 5), ("interleaved", 3, 6, 1)]
BY_HAND = """
0F0 0F1 3F1 3B1 3F0 3B0 0B1 3W1 0B0 0W1 3W0 0W0
1F0 1F1 2F1 2F0 2B1 1B1 2W1 2B0 1B0 1W1 2W0 1W0"""


def forecast_cases(rng):
    """Schedules by name and by hand, of equal and of unequal stages."""
    for i, (name, p, m, steps) in enumerate(SIZES):
        yield _case(rng, make(name, p, m), steps, equal=i in (1, 6))
    yield _case(rng, parse(BY_HAND), 3, equal=False)


def _case(rng, made, steps, equal):
    draw = lambda low, high: _times(rng, low, high, made.stages, equal)
    times = draw(0.8, 1.6), draw(0.8, 1.6), draw(0.5, 1.2)
    comm = 0.0 if equal else round(float(rng.uniform(0.05, 0.4)), 3)
    kept = [int(x) for x in rng.integers(500, 3000, size=made.stages)]
    late = [int(x * rng.uniform(0.2, 0.7)) for x in kept]
    given = (*times, comm, kept, late)
    told = f"{steps} step{'s' * (steps > 1)}"
    return Case(
        1,
        f"{made.name}, {ranks(made.p)}, {told}, a message takes {comm:g}",
        inputs=[(str(made), steps, *given)],
        expected=[forecast(made, steps, *given)],
        facts={"schedule": made, "steps": steps, "given": given},
    )


def _times(rng, low, high, stages, equal):
    count = 1 if equal else stages
    drawn = [round(float(x), 3) for x in rng.uniform(low, high, size=count)]
    return drawn * (stages // count)


def forecast(made, steps, F, B, W, comm, kept, late, way=""):
    """(bubble, [bytes]); `way` makes one of the usual mistakes."""
    steps = 1 if way == "one step" else steps
    sim = simulate(_again_and_again(made, steps), F, B, W, comm * (way != "free"))
    work = sum(_work(row, F, B, W, made.splits) for row in made.ranks)
    bubble = 1 - steps * work / (made.p * sim.elapsed)
    bubble = sim.bubble if way == "longest" else bubble
    stays = made.splits and way != "gone with B"
    return bubble, [_peak(row, kept, late, stays, way) for row in made.ranks]


def _again_and_again(made, steps):
    """The rows one after the other; micro-batch i of step k has the number km + i."""
    shifts = [k * made.m for k in range(steps)]
    rows = [
        tuple(a._replace(micro=a.micro + shift) for shift in shifts for a in row)
        for row in made.ranks
    ]
    return Schedule(tuple(rows))


def _work(row, F, B, W, splits):
    times = {"F": F, "B": B, "W": W}
    total = sum(times[a.kind][a.stage] for a in row)
    return total + sum(W[a.stage] for a in row if a.kind == "B" and not splits)


def _peak(row, kept, late, stays, way):
    """The most bytes of this row, action by action."""
    held, most = 0, 0
    for stage, kind, _ in row:
        rest = (kept if way == "all until W" else late)[stage] if stays else 0
        if kind == "F":
            held += kept[stage]
        elif way != "never gone":
            held -= kept[stage] - rest if kind == "B" else rest
        most = max(most, held)
    return most


def _parts(came):
    """(bubble, [bytes]), or None where it is something else."""
    try:
        bubble, held = came
        return float(bubble), [float(x) for x in held]
    except (TypeError, ValueError):
        return None


def _near(came, wanted, case=None):
    parts = _parts(came)
    return parts is not None and all(_same_part(k, parts, wanted) for k in (0, 1))


WAYS = (
    ("one step", "free", "longest"),
    ("gone with B", "all until W", "never gone"),
)


def _like(part, way):
    """This part of the answer, 0 or 1, is wrong as this mistake alone makes it."""

    def ask(attempt):
        facts = attempt.case.facts
        parts = _parts(attempt.came[0]) if wrong(attempt) else None
        if parts is None or _same_part(part, parts, attempt.case.expected[0]):
            return False
        given = facts["schedule"], facts["steps"], *facts["given"]
        fakes = {other: forecast(*given, other) for other in WAYS[part]}
        return [w for w, x in fakes.items() if _same_part(part, parts, x)] == [way]

    return ask


def _same_part(part, came, wanted):
    if part == 1:
        return came[1] == wanted[1]
    return math.isclose(came[0], wanted[0], abs_tol=1e-6)


def _no_parts(attempt):
    return wrong(attempt) and _parts(attempt.came[0]) is None


predicted = Exercise(
    "13.4",
    "From its text",
    forecast_cases,
    [],
    [
        Mistake(
            "not two",
            _no_parts,
            "It does not return a number and a list of numbers.",
            "`return bubble, held`: a share, and bytes for each rank.",
        ),
        Mistake(
            "one step",
            _like(0, "one step"),
            "It lets each step wait until all ranks have ended the one before.",
            "A rank begins its next step as soon as its own row is over. What would a "
            "text look like in which each row stands twice?",
        ),
        Mistake(
            "free messages",
            _like(0, "free"),
            "The messages take no time.",
            "Between actions of two ranks `comm` passes.",
        ),
        Mistake(
            "longest span",
            _like(0, "longest"),
            "It is the bubble of the chapter, on the one rank with the longest span.",
            "Here the time of all ranks counts, from the begin of the run to its end.",
        ),
        Mistake(
            "never gone",
            _like(1, "never gone"),
            "It adds up what all forwards keep, and nothing is ever freed.",
            "The most at any one time is asked for.",
        ),
        Mistake(
            "gone with B",
            _like(1, "gone with B"),
            "All bytes are gone after B, also where W still needs some.",
            "Where W stands apart, `late` bytes stay until it is over.",
        ),
        Mistake(
            "all until W",
            _like(1, "all until W"),
            "All bytes stay until W is over.",
            "B frees what W does not need: only `late` bytes stay.",
        ),
    ],
    agrees=_near,
    processes=(),
)
