"""03.3 When is the last sample done?"""

from functools import partial
from itertools import product

from .. import signs
from ..judging import Case, Exercise, near

LINES = (  # seconds of the stages, seconds of the links between them
    ((3.0,), ()),
    ((1.0, 1.0, 1.0), (0.0, 0.0)),
    ((1.0, 4.0, 2.0), (0.5, 0.25)),
    ((2.0, 1.0), (5.0,)),
    ((2.0, 3.0, 3.0, 1.0), (1.0, 4.5, 0.5)),
    ((6.0, 1.0, 1.0, 1.0, 2.0), (0.5, 2.0, 0.125, 2.5)),
)


def cases(rng):
    """Given lines and drawn ones, few samples and many, both ways to run them."""
    drawn = [
        (tuple(rng.uniform(1, 5, p).tolist()), tuple(rng.uniform(0, 6, p - 1).tolist()))
        for p in (2, 4, 7)
    ]
    for line, m, pipelined in product((*LINES, *drawn), (1, 3, 20), (True, False)):
        (times, links), p = map(list, line), len(line[0])
        way = "a pipeline" if pipelined else "one by one"
        yield Case(
            1,
            f"{p} stage{'s' * (p != 1)}, m = {m}, {way}",
            inputs=[(times, links, m, pipelined)],
            truth=partial(last_done, times, links, m, pipelined),
        )


def last_done(times, links, m, pipelined, slip=""):
    """When the last sample is done, for the one process that tells it."""
    p, stage, way = len(times), max(times), sum(times) + sum(links)
    behind = max(map(sum, zip(times, [*links, 0.0], strict=True)))
    in_a_pipeline = {
        "slots": (p + m - 1) * stage,
        "slots of the slowest": (p + m - 1) * max(times + links),
        "slots and links": (p + m - 1) * stage + sum(links),
        "fast links": way + (m - 1) * stage,
        "one too many": way + m * max(times + links),
        "links wait": way + (m - 1) * behind,
        "slowest of both": way + (m - 1) * (stage + max(links, default=0.0)),
        "mean": way + (m - 1) * way / len(times + links),
    }
    if pipelined and slip in in_a_pipeline:
        return [in_a_pipeline[slip]]
    links = [0.0] * len(links) if slip == "no links" else links
    return [simulated(times, links, m, pipelined or slip == "always a pipeline")]


def simulated(times, links, m, pipelined):
    """Seconds until the last of m samples leaves the last stage, slot by slot.

    Stages and links take turns on the way of a sample, each has one at a time.
    """
    spans = [times[0]]
    for link, time in zip(links, times[1:], strict=True):
        spans += [link, time]
    free, done = [0.0] * len(spans), 0.0
    for _ in range(m):
        ready = 0.0 if pipelined else done
        for k, span in enumerate(spans):
            ready = free[k] = max(ready, free[k]) + span
        done = ready
    return done


exercise = Exercise(
    "03.3",
    cases,
    mistakes={
        "no number": signs.no_numbers,
        **signs.slips("no links"),
        "slots": signs.slip("slots", "slots of the slowest", "slots and links"),
        **signs.slips("fast links", "one too many"),
        "links wait": signs.slip("links wait", "slowest of both"),
        **signs.slips("mean", "always a pipeline"),
    },
    agrees=lambda came, wanted, case: near(came, wanted, 1e-9),
)
