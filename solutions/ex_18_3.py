"""18.3 Where the experts should live: placement(loads, n)."""

import functools
import itertools
import operator

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, wrong

SIZES = (1, 1), (4, 1), (2, 2), (3, 3), (4, 2), (6, 2), (6, 3), (8, 2), (8, 4)
LARGE = [2**24, 1, 0, 1]  # float32 takes the totals of two placements for equal


def ranks(came):
    """The whole numbers of a list or a tuple; None where it is something else."""
    try:
        return [*map(operator.index, came)] if isinstance(came, list | tuple) else None
    except TypeError:
        return None


agrees = lambda came, wanted, case: ranks(came) == wanted
ex = Exercise("18.3", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Random loads, one hot expert, two hot neighbours, equal loads, large ones."""
    for E, n in SIZES:
        every = [[int(x) for x in rng.integers(0, 30, size=E)] for _ in range(3)]
        every[1][int(rng.integers(E))] = 100
        every[2][:2] = [60, 50][:E]
        every += [[7] * E, [0] * E, *[LARGE] * ((E, n) == (4, 2))]
        for loads in every if E < 8 else every[1:3]:  # 65,536 ways take long
            costs = {way: busiest(way, loads, n) for way in full(E, n)}
            text = f"n = {n}, loads {loads}"
            first = [*min(costs, key=lambda way: (costs[way], way))]
            yield Case(1, text, [(loads, n)], [first], {"costs": costs})


@functools.cache
def full(E, n):
    """All placements with E/n experts on each rank."""
    return {*itertools.permutations([r for r in range(n) for _ in range(E // n)])}


def busiest(way, loads, n):
    """The tokens of the busiest rank."""
    totals = [0] * n
    for r, load in zip(way, loads, strict=True):
        totals[r] += load
    return max(totals)


loads = lambda case: case.inputs[0][0]
count = lambda case: case.inputs[0][1]
best = lambda case: min(case.facts["costs"].values())
ex.boundaries(
    one_rank=lambda case: count(case) == 1 < len(loads(case)),
    one_expert=lambda case: len(loads(case)) == 1,
    one_each=lambda case: count(case) == len(loads(case)) > 1,
    no_power_of_two=lambda case: count(case) == 3,
    most=lambda case: (len(loads(case)), count(case)) == (8, 4),
    ties=lambda case: [*case.facts["costs"].values()].count(best(case)) > 1,
    no_loads=lambda case: not any(loads(case)),
    no_float32=lambda case: best(case) == 2**24,
)

# Texts of the answer, for edits

RETURN, TOTAL = "return list(min(ways, key=busiest))", "return max(totals)"
EQUAL, PAIRS = " if all(way.count(r) == each for r in range(n))", "zip(loads, way"

# Mistakes of its own

neighbours = {RETURN: "return [e // each for e in range(len(loads))]"}
ex.slip("by number", neighbours).says("""
    It places the experts by their numbers alone, whatever their loads are.
    Hint: Where do two popular experts go that way, and could one of them live
    elsewhere? Ask for each possible placement how busy its busiest rank is.
""")
ex.slip("by number", {RETURN: "return [e % n for e in range(len(loads))]"})
heaviest = f"""way, totals, room = [0] * len(loads), [0] * n, [each] * n
    for e in sorted(range(len(loads)), key=lambda e: -loads[e]):
        r = min((r for r in range(n) if room[r]), key=totals.__getitem__)
        way[e], totals[r], room[r] = r, totals[r] + loads[e], room[r] - 1
    {RETURN.replace("min(ways, key=busiest)", "way")}"""
ex.slip("greedy", {RETURN: heaviest}).says("""
    It places the heaviest expert first and never looks back, which does not always find
    the best placement.
    Hint: Is there a placement that begins worse and ends better? There are few experts
    here, so all placements can be tried.
""")
ex.slip("unequal numbers", {EQUAL: ""}).says("""
    Its ranks may have different numbers of experts.
    Hint: How many experts fit on a rank? It has memory for exactly E / n.
""")
ex.slip("sorted loads", {PAIRS: "zip(sorted(loads), way"}).says("""
    It sorts the loads and returns the ranks in that order.
    Hint: Which expert does item e of the list belong to? The one with `loads[e]`. So
    sort the numbers of the experts, or nothing at all.
""")
ex.slip("sorted loads", {PAIRS: "zip(sorted(loads, reverse=True), way"})
spread = {TOTAL: f"{TOTAL} - min(totals)"}
ex.slip("most even", spread).says("""
    It looks for the most even placement, which is not always the one with the least
    busy rank.
    Hint: What decides how long the layer takes? Only the busiest rank, so compare the
    `max` of the ranks' totals, and nothing else.
""")
ex.slip("most even", {TOTAL: "return sum(x * x for x in totals)"})


def equally_good(attempt):
    """It is another one of the best placements."""
    way = tuple(ranks(attempt.came[0]) or ())
    return attempt.case.facts["costs"].get(way) == best(attempt.case)


last = {"range(n), repeat": "range(n)[::-1], repeat"}
ex.mistake("ties", always(equally_good, wrong), last).says("""
    Of several equally good placements it does not always return the first.
    Hint: In which order do you try them, and which of equal ones do you keep? `min`
    keeps the one that it meets first.
""")

# Answers to which the general sentences apply

lists = "return [[e for e, s in enumerate(min(ways, key=busiest)) if s == r] for r in "
ex.wrong("wrong", {RETURN: f"{lists}range(n)]"})
ex.wrong("wrong", {"totals = [0] * n": "totals = __import__('torch').zeros(n)"})
ex.wrong("wrong", {TOTAL: "return min(totals)"})
once = "sorted({*itertools.permutations([r for r in range(n) for _ in range(each)])})"
ex.right({"itertools.product(range(n), repeat=len(loads))": once})
ex.right({RETURN: "return min(ways, key=lambda way: (busiest(way), way))"})

ex.variation(
    "b",
    varied="which of several equally good placements is wanted",
    differs="Of equally good placements it returns the first, as in the public "
    "exercise; here it is the last.",
    turned=lambda way, n: [max(way) - r for r in way],
    says={
        "ties": "Of several equally good placements it does not always return the "
        "last. Hint: In which order do you try them, and which of equal ones do you "
        "keep? `min` keeps the one that it meets first, so the last must come first."
    },
)
