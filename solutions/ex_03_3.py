"""03.3 When is the last sample done? last_done(times, links, m, pipelined)."""

from itertools import product

from d2lpar.checks import signs
from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import both, only, wrong

ex = Exercise("03.3", agrees=lambda came, wanted, case: near(came, wanted, 1e-9))

# seconds of the stages, seconds of the links between them
LINES = [([3], []), ([1, 1, 1], [0, 0]), ([1, 4, 2], [0.5, 0.25]), ([2, 1], [5])]
LINES += [([2, 3, 3, 1], [1, 4.5, 0.5]), ([6, 1, 1, 1, 2], [0.5, 2, 0.125, 2.5])]
LINES += [([1, 2, 5], [5, 1])]


@ex.cases
def cases(rng):
    """Given lines and drawn ones, few samples and many, both ways to run them."""
    drawn = [(rng.uniform(1, 5, p), rng.uniform(0, 6, p - 1)) for p in (2, 4, 7)]
    for line, m, pipelined in product((*LINES, *drawn), (1, 2, 20), (True, False)):
        times, links = ([float(s) for s in some] for some in line)
        p, way = len(times), "a pipeline" if pipelined else "one by one"
        yield Case(
            1,
            f"{p} stage{'s' * (p != 1)}, m = {m}, {way}",
            [(times, links, m, pipelined)],
            [simulated(times, links, m, pipelined)],
        )


def simulated(times, links, m, pipelined):
    """Seconds until the last of m samples leaves the last stage, slot by slot.

    Stages and links take turns on the way of a sample, each has one at a time.
    """
    spans = [s for pair in zip(times, [*links, 0.0], strict=True) for s in pair]
    free, done = [0.0] * len(spans), 0.0
    for _ in range(m):
        ready = 0.0 if pipelined else done
        for k, span in enumerate(spans):
            ready = free[k] = max(ready, free[k]) + span
        done = ready
    return done


def where(condition):
    """A condition of times, links, m, pipelined, as one of a case."""
    return lambda case: condition(*case.inputs[0])


behind = where(lambda times, links, m, pipelined: m > 1)
alone = where(lambda times, links, m, pipelined: not pipelined)
slow_link = where(lambda times, links, m, pipelined: max(times) < max([0, *links]))
ex.boundaries(
    one_stage=where(lambda times, *more: len(times) == 1),
    two_stages=where(lambda times, *more: len(times) == 2),
    one_sample=where(lambda times, links, m, pipelined: m == 1),
    two_samples=where(lambda times, links, m, pipelined: m == 2),
    equal_stages=where(lambda times, *more: times.count(max(times)) > 1),
    equal_link=where(lambda times, links, *more: max(times) == max([0, *links])),
    free_links=where(lambda times, links, *more: links and not any(links)),
    slow_link=slow_link,
    slow_last_stage=where(lambda times, *more: times[0] < max(times) == times[-1]),
    one_by_one=lambda case: behind(case) and alone(case),
)

# Texts of the answer, for edits

WAY, ALONE, PACE = "sum(times) + sum(links)", "return m * way", "max(times + links)"
LATER = f"way + (m - 1) * {PACE}"

# Mistakes of its own

every_time = {LATER: f"[way + k * {PACE} for k in range(m)]"}
ex.mistake("no number", signs.no_numbers, every_time).says("""
    It does not return a number, but the answer is a number of seconds.
    Hint: Return one number, which says when the last sample is done.
""")
ex.wrong("no number", {ALONE: "return m * way, way"})
ex.slip("slots", {LATER: "(len(times) + m - 1) * max(times)"}).says("""
    It counts equal slots, but the stages may all take different times.
    Hint: Not every step takes as long as the slowest one. Add up the time of the first
    sample from end to end, and find out how much later each next sample is done.
""")
ex.slip("slots", {LATER: f"(len(times) + m - 1) * {PACE}"})
ex.slip("slots", {LATER: "(len(times) + m - 1) * max(times) + sum(links)"})
ex.slip("slots", {LATER: f"(len(times + links) + m - 1) * {PACE}"})
pairs = "max(map(sum, zip(times, [*links, 0])))"
ex.slip("links wait", {PACE: pairs}).says("""
    It makes each stage wait while its result travels, but the stage can go on.
    Hint: A stage and the link behind it work at the same time, on different samples.
""")
ex.slip("links wait", {PACE: "(max(times) + max(links, default=0))"})
ex.mistake("fast links", both(wrong, only(slow_link)), {PACE: "max(times)"}).says("""
    It is right only while no link is slower than the slowest stage.
    Hint: A link carries one sample at a time, just as a stage works on one, so either
    can hold up the samples.
""")
always = {"not pipelined": "False"}
ex.mistake("one by one", both(wrong, only(alone)), always).says("""
    It is right in a pipeline, and wrong where `pipelined` is False.
    Hint: Nothing overlaps there: a sample starts when the one before it has left the
    last stage.
""")
ex.wrong("one by one", {ALONE: "return m * sum(times)"})
mean = {PACE: "way / len(times + links)"}
ex.mistake("pace", both(wrong, only(behind)), mean).says("""
    It is right for one sample, but those behind it follow at a wrong pace.
    Hint: What is always busy, once the pipeline is full? The slowest stage or link
    holds all samples up, wherever it is.
""")
for pace in ("times[0]", "times[-1]", "min(times + links)", "way"):
    ex.wrong("pace", {PACE: pace})
ex.wrong("pace", {"not pipelined": "pipelined"})
no_links = {WAY: "sum(times)"}
at_once = both(wrong, lambda attempt: not behind(attempt.case))
ex.mistake("first sample", at_once, no_links).says("""
    It is wrong even for one sample, which nothing holds up.
    Hint: Follow this sample first: it passes every stage and every link, each of them
    once.
""")
ex.wrong("first sample", {"(m - 1)": "m"})
ex.wrong("first sample", {LATER: f"m * {PACE}"})
ex.wrong("pace", {LATER: "m * sum(links) + sum(times) + (m - 1) * max(times)"})

# Answers to which the general sentences apply

ex.wrong("raises", {PACE: "max(max(times), max(links))"})
ex.wrong("no number", {ALONE: "m * way", "return way + (m": "way + (m"})
ex.right(simulated)
ex.right({"if not pipelined:": "if not pipelined or m == 1:"})
