"""10.3 Which stage?"""

from functools import partial

from .. import signs
from ..equality import same
from ..judging import Case, Exercise
from .chapter_10 import floats

STAGES = (1, 2, 3)
# By slip: from which stage on parameters and gradients are sharded
SHARDED = {"late": (3, 3), "early": (2, 2), "at once": (3, 1), "never": (4, 2)}
WHOLE = {"held only": (0, 0, 0), "one gathered": (0, 2, 3)}  # units while it works
FREE = "sent", "one flat", "fractions", "rounded down"  # whatever is sent


def stage_cases(rng, state=12):
    """Models of some units, on cards where another stage fits each time.

    The optimizer holds `state` bytes an element.
    """
    for _ in range(40):
        units = [int(x) for x in rng.integers(1, 3000, size=rng.integers(1, 7))]
        n = int(rng.choice([1, 2, 3, 4, 7, 8, 64]))
        needs = [need(units, n, stage, state) for stage in STAGES]
        target = int(rng.integers(0, 4))  # the stage that just fits; 0: none
        card = needs[target - 1] if target else min(needs) - 1
        yield Case(
            1,
            f"units of {units}, n = {n}, GPUs with {card:,} bytes",
            [(units, n, card)],
            truth=partial(choice, units, n, card, state),
        )


def need(units, n, stage, state, slip=""):
    """Bytes that a rank needs."""
    cut = {"fractions": lambda x: x / n, "rounded down": lambda x: x // n}
    shards = list(map(cut.get(slip, lambda x: -(-x // n)), units))
    k = -(-sum(units) // n) if slip == "one flat" else sum(shards)
    largest = max(units) if slip == "no padding" else n * max(shards)
    parameters, gradients = SHARDED.get(slip, (3, 2))
    held = 2 * k * (1 if stage >= parameters else n)
    held += 2 * k * (1 if stage >= gradients else n)
    whole = WHOLE.get(slip, (0, 2, 4))[stage - 1]
    return held + state * k + 2 * whole * largest


def choice(units, n, card, state, slip=""):
    """[(stage, bytes of memory, bytes sent)] of the first stage that fits, or None."""
    needs = {stage: need(units, n, stage, state, slip) for stage in STAGES}
    order = {"last": STAGES[::-1], "leanest": sorted(STAGES, key=needs.get)}
    if slip == "only if 3 fits" and needs[3] > card:
        return [None]
    for stage in order.get(slip, STAGES):
        moves, k = 3 if stage == 3 else 2, sum(-(-x // n) for x in units)
        sent = ... if slip in FREE else moves * (n - 1) * k * 2
        if needs[stage] <= card - (slip == "tight"):
            return [(stage, needs[stage], sent)]
    return [None]


def sent_is_wrong(attempt):
    """In every call the stage and the memory are right."""
    calls = [x for x in attempt.attempts if x.error is None]
    return signs.wrong(attempt) and all(x.gives(x.case.truth("sent")) for x in calls)


exercise = Exercise(
    "10.3",
    stage_cases,
    [],
    {
        **signs.slips("only if 3 fits", "tight", "no padding", "one flat"),
        **signs.slips("held only", "one gathered"),
        "leanest": signs.slip("last", "leanest"),
        "not rounded up": signs.slip("fractions", "rounded down"),
        "sharded": signs.slip(*SHARDED),
        "bytes sent": sent_is_wrong,
    },
    agrees=lambda came, wanted, case: same(floats(came), wanted),
    processes=(),
)
