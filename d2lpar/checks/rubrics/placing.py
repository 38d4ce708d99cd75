"""What exercise 11.1 asks for: nine layers on four unlike cards."""

import math

from ..judging import Case, Exercise, Mistake, close
from ..signs import endless, raises

BETA = 0.5  # seconds per unit that is moved
# ranks, layers, how much room the cards have together (in parts of what is needed)
SIZES = ((1, 3, 2.0), (2, 5, 2.0), (3, 7, 3.0), (4, 9, 4.0), (4, 9, 1.6))
SIZES += ((4, 9, 1.4), (3, 2, 4.0), (5, 9, 8.0), (6, 12, 1.7), (4, 9, 0.9))
SIZES += ((4, 9, 3.0), (4, 11, 5.0), (5, 12, 3.0), (4, 9, 6.0), (8, 40, 2.0))
WAYS = ("speeds", "outgoing", "incoming", "room", "empty", "sum")


def place_cases(rng):
    """Cards of many speeds, with and without enough room, and one large case."""
    for p, L, share in SIZES:
        seconds = [float(x) for x in rng.uniform(1, 9, size=L)]
        held = [float(x) for x in rng.uniform(1, 4, size=L)]
        moved = [float(x) for x in rng.uniform(0.5, 6, size=L)]
        speed = [float(x) for x in rng.choice([0.25, 0.5, 1, 2, 3], size=p)]
        room = rng.uniform(0.6, 1.4, size=p)
        room = [float(x) for x in room / room.sum() * sum(held) * share]
        given = seconds, held, moved, speed, room, BETA
        best = placed(*given)
        yield Case(
            1,
            f"{L} layers on {p} card{'s' * (p != 1)}, room {share:g} of what is needed",
            inputs=[given],
            expected=[best],
            facts={"given": given, "best": slowest(best, given)},
            options={"timeout": 3.0},
        )


def cost_of(given, way=None):
    """cost(a, b, r) in seconds, or as a mistake has it."""
    seconds, held, moved, speed, room, beta = given
    L = len(seconds)

    def cost(a, b, r):
        if a == b:
            return math.inf if way == "empty" else 0.0
        if way != "room" and sum(held[a:b]) > room[r]:
            return math.inf
        into = moved[a - 1] * (a > 0 and way != "outgoing")
        out = moved[b - 1] * (b < L and way != "incoming")
        work = sum(seconds[a:b]) / (1 if way == "speeds" else speed[r])
        return work + beta * (into + out)

    return cost


def placed(seconds, held, moved, speed, room, beta, way=None):
    """Where parts begin and end, [0, ..., L], or None where nothing fits."""
    cost = cost_of((seconds, held, moved, speed, room, beta), way)
    best = {0: (0.0, [0])}
    for r in range(len(speed)):
        longer = {}
        for a, (value, ends) in best.items():
            for b in range(a, len(seconds) + 1):
                here = cost(a, b, r)
                total = value + here if way == "sum" else max(value, here)
                if total < longer.get(b, (math.inf, None))[0]:
                    longer[b] = total, [*ends, b]
        best = longer
    return best.get(len(seconds), (math.inf, None))[1]


def slowest(ends, given, way=None):
    """Seconds of the slowest card; `None` is none at all."""
    if ends is None:
        return math.inf
    cost = cost_of(given, way)
    parts = zip(ends, ends[1:], strict=False)
    costs = [cost(a, b, r) for r, (a, b) in enumerate(parts)]
    return sum(costs) if way == "sum" else max(costs)


def _ends(came, given):
    """The answer as a list [0, ..., L] that rises, or None."""
    try:
        ends = [int(x) for x in came]
    except (TypeError, ValueError):
        return None
    fine = len(ends) == len(given[3]) + 1 and ends == sorted(ends) == list(came)
    return ends if fine and (ends[0], ends[-1]) == (0, len(given[0])) else None


def _agrees(came, wanted, case):
    if wanted is None or came is None:
        return wanted is came
    ends = _ends(came, case.facts["given"])
    return ends is not None and close(
        slowest(ends, case.facts["given"]), case.facts["best"]
    )


def _form(attempt):
    case = attempt.case
    if attempt.error or attempt.right or None in (attempt.came[0], case.expected[0]):
        return False
    return _ends(attempt.came[0], case.facts["given"]) is None


def _impossible(attempt):
    """Something else than None where nothing fits."""
    if attempt.case.expected[0] is not None:
        return False
    return attempt.error is not None or attempt.came[0] is not None


def _gave_up(attempt):
    """None where something fits, or a failure with more cards than layers."""
    few = len(attempt.case.facts["given"][3]) > len(attempt.case.facts["given"][0])
    nothing = attempt.error is None and attempt.came[0] is None
    return not attempt.right and few and (nothing or raises(Exception)(attempt))


def _like(way):
    """The answer is best for what this mistake takes for the cost, and no other."""

    def ask(attempt):
        given = attempt.case.facts["given"]
        if attempt.error or attempt.right or attempt.came[0] is None:
            return False
        ends = _ends(attempt.came[0], given)
        if ends is None or len(ends) < 5:  # with few cards several look alike
            return False
        return [w for w in WAYS if _best(ends, given, w)] == [way]

    return ask


def _best(ends, given, way):
    least = slowest(placed(*given, way), given, way)
    return least < math.inf and close(slowest(ends, given, way), least)


def _not_best(attempt):
    return attempt.error is None and not attempt.right


place = Exercise(
    "11.1",
    "Nine layers, four unlike cards",
    place_cases,
    [],
    [
        Mistake(
            "every way",
            endless,
            "It does not come to an end with 40 layers on eight cards.",
            "There are 62 million ways. What is best before a cut does not depend on "
            "what comes after it.",
        ),
        Mistake(
            "form",
            _form,
            "It does not return p + 1 numbers that rise from 0 to L.",
            "Card r has the layers from ends[r] to before ends[r + 1].",
        ),
        Mistake(
            "impossible",
            _impossible,
            "Nothing fits in this case, and the answer should be None.",
            "The least of all costs is infinite then.",
        ),
        Mistake(
            "empty",
            lambda a: _gave_up(a) or _like("empty")(a),
            "A card may stay empty, and here it should.",
            "A slow card with a message in and out may cost more than it helps. An "
            "empty one costs nothing.",
        ),
        Mistake(
            "speeds",
            _like("speeds"),
            "It takes all cards for equally fast.",
            "The cost of a part depends on the card that has it, so p cards need a "
            "table with p rows.",
        ),
        Mistake(
            "room",
            _like("room"),
            "A card holds more than it has room for.",
            "Such a part has an infinite cost.",
        ),
        Mistake(
            "outgoing",
            _like("outgoing"),
            "It counts what a card sends, and not what comes in.",
            "Both ends of a message are busy with it.",
        ),
        Mistake(
            "incoming",
            _like("incoming"),
            "It counts what comes in, and not what a card sends.",
            "Both ends of a message are busy with it.",
        ),
        Mistake(
            "sum",
            _like("sum"),
            "It makes the sum of all cards small, and not the slowest.",
            "The slowest card sets the pace.",
        ),
        Mistake(
            "not best",
            _not_best,
            "There is a better way to place the layers.",
            "Filling card after card decides too early. Keep the best for each number "
            "of layers, card by card.",
        ),
    ],
    agrees=_agrees,
    processes=(),
)
