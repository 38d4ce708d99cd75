"""13.4 From its text: forecast(text, steps, forward, backward, weight, comm, kept,
late), a function of numbers."""

import functools
import math
from contextlib import suppress
from itertools import accumulate, pairwise

from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, ranks
from d2lpar.pipeline.schedule import make, needs, parse

# name, ranks, micro-batches, steps
SIZES = [("naive", 1, 1, 1), ("gpipe", 2, 2, 1), ("1f1b", 2, 3, 1)]
SIZES += [("gpipe", 3, 4, 3), ("zb-h1", 3, 6, 2), ("interleaved", 2, 4, 3)]
SIZES += [("zb-h2", 3, 6, 4), ("1f1b", 4, 6, 5), ("interleaved", 3, 6, 1)]
EQUAL = 1, 6  # of these, all stages take equal times, and messages none
LARGE = 7  # the one whose bytes are no float32
BY_HAND = """
0F0 0F1 3F1 3B1 3F0 3B0 0B1 3W1 0B0 0W1 3W0 0W0
1F0 1F1 2F1 2F0 2B1 1B1 2W1 2B0 1B0 1W1 2W0 1W0"""
SPANS = (0.8, 1.6), (0.8, 1.6), (0.5, 1.2)  # of F, B and W


def agrees(came, wanted, case):
    """The bubble to six digits, and the same bytes; `...` stands for any."""
    with suppress(*NO_NUMBER):
        bubble, held = came
        bubble, held = float(bubble), [float(x) for x in held]
        near = wanted[0] is ... or math.isclose(bubble, wanted[0], abs_tol=1e-6)
        return near and (wanted[1] is ... or held == wanted[1])
    return False


ex = Exercise("13.4", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Schedules by name and by hand, of equal and of unequal stages."""
    named = [(make(name, p, m), steps) for name, p, m, steps in SIZES]
    for i, (made, steps) in enumerate([*named, (parse(BY_HAND), 3)]):
        drawn, alike = (1, made.stages) if i in EQUAL else (made.stages, 1)
        times = [rng.uniform(*x, size=drawn).round(3).tolist() * alike for x in SPANS]
        comm = 0.0 if i in EQUAL else round(float(rng.uniform(0.05, 0.4)), 3)
        kept = rng.integers(500, 3000, size=made.stages).tolist()
        late = [int(x * rng.uniform(0.2, 0.7)) for x in kept]
        kept = [x + 2**24 | 1 if i == LARGE else x for x in kept]  # odd
        text = f"{made.name}, {ranks(made.p)}, {steps} step{'s' * (steps > 1)}"
        text += f", a message takes {comm:g}"
        costs = dict(zip("FBW", times, strict=True))
        if not made.splits:
            costs["B"] = [b + w for b, w in zip(*times[1:], strict=True)]
        truth = bubble(made, steps, costs, comm), held(made, kept, late)
        yield Case(1, text, [(str(made), steps, *times, comm, kept, late)], [truth])


def bubble(made, steps, costs, comm):
    """The share of the time of all ranks; an action ends after all it waits for."""
    rows = [[(k, a) for k in range(steps) for a in row] for row in made.ranks]
    before = {later: first for row in rows for first, later in pairwise(row)}
    cost, home = lambda a: costs[a.kind][a.stage], made.home

    @functools.cache
    def end(k, a):
        way = lambda need: comm * (home[need.stage] != home[a.stage])
        ready = [end(k, need) + way(need) for need in needs(a, made.stages)]
        ready += [end(*before[k, a])] if (k, a) in before else [0.0]
        return max(ready) + cost(a)

    work = steps * sum(map(cost, made.every))
    return 1 - work / made.p / max(end(*row[-1]) for row in rows)


def held(made, kept, late):
    """The most bytes of each rank: those after each of its actions."""
    change = {"F": kept, "B": [-x for x in kept]}
    if made.splits:
        change["W"] = [-x for x in late]
        change["B"] = [x - y for x, y in zip(late, kept, strict=True)]
    return [max(accumulate(change[a.kind][a.stage] for a in row)) for row in made.ranks]


made = lambda case: parse(case.inputs[0][0])
home = lambda case, stage: made(case).home.get(stage)
steps = lambda case: case.inputs[0][1]
ex.boundaries(
    one_rank=lambda case: made(case).p == 1,
    two_ranks=lambda case: made(case).p == 2,
    no_power_of_two=lambda case: made(case).p == 3,
    one_step=lambda case: steps(case) == 1 < made(case).p,
    steps_with_w=lambda case: steps(case) > 1 and made(case).splits,
    steps_without_w=lambda case: steps(case) > 1 and not made(case).splits,
    stages_in_turn=lambda case: home(case, made(case).p) == 0,
    neighbours_on_one_rank=lambda case: home(case, 2) == home(case, 1) == 1,
    free_messages=lambda case: case.inputs[0][5] == 0,
    no_float32=lambda case: max(case.inputs[0][6]) > 2**24,
)

# Texts of the answer, for edits

STEPS, WORK, WAY = "range(steps)", "steps * sum(", "comm).elapsed"
WHOLE = "backward = [b + w for b, w in zip(backward, weight, strict=True)]"
F, B, W = '"F": kept[s]', '"B": late[s] - kept[s]', '"W": -late[s]'
TIME, RETURN = "elapsed = simulate(", "return 1 - work"
of_bubble = {"about": lambda pair: (pair[0], ...)}
of_bytes = {"about": lambda pair: (..., pair[1])}

# Mistakes of its own

ex.slip("one step", {STEPS: "range(1)", WORK: "sum("}, **of_bubble).says("""
    It makes every rank wait between two steps until all others are done.
    Hint: When does a rank begin its next step? As soon as its own row is over. A text
    in which each row appears once for every step describes the whole run.
""")
ex.slip("B alone", {WHOLE: "pass"}, **of_bubble).says("""
    Where the text has no W, it counts a B as less work than it is.
    Hint: What does a B compute there? Also the gradients of the weights, so it takes
    `backward` plus `weight`.
""")
ex.slip("free messages", {WAY: "0).elapsed"}, **of_bubble).says("""
    It lets messages arrive at once, but each of them takes `comm`.
    Hint: When can an action begin that needs a tensor from a different rank? Only
    `comm` after that tensor was made.
""")
chapters = "return simulate(schedule, *cost.values(), comm).bubble, held"
ex.slip("longest span", {TIME: f"{chapters}\n    {TIME}"}, **of_bubble).says("""
    It computes the bubble of the chapter, for the one rank with the longest span.
    Hint: Whose time counts here? That of all ranks, from the start of the run to its
    end.
""")
ex.slip("late", {B: '"B": 0', W: '"W": 0'}, **of_bytes).says("""
    It does not free the right bytes after B, or after W.
    Hint: When is a micro-batch no longer kept? `late[s]` bytes of it stay until its W
    is over, and all others can be freed after B.
""")
ex.slip("late", {B: '"B": -kept[s]', W: '"W": 0'})
ex.slip("late", {B: '"B": 0 if schedule.splits else -kept[s]', W: '"W": -kept[s]'})

# Answers to which the general sentences apply

EXACT, ROUNDED = "elapsed), held", "return round(1 - work"
ex.wrong("wrong", {RETURN: ROUNDED, EXACT: "elapsed), 3), held"})
short = "held.append(float(__import__('numpy').float32(most)))"
ex.wrong("wrong", {"held.append(most)": short})
ex.wrong("wrong", {EXACT: "elapsed)"})
ex.right({RETURN: ROUNDED, EXACT: "elapsed), 6), tuple(held)"})
