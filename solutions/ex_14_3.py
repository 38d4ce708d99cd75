"""14.3 Scheme d: deal(rows, m)."""

from itertools import pairwise

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, wrong

# rows of the ranks, passes
SIZES = (((4,), 2), ((3, 3), 2), ((3, 3, 3), 3), ((5, 1, 6, 0), 4), ((2, 4, 3), 3))
SIZES += (((7,), 3), ((1, 1, 1), 2), ((5, 5, 5, 5), 3), ((1, 2), 5), ((0, 0, 4), 3))
SIZES += (((9, 2, 7), 1), ((3,) * 8, 4), ((1, 1, 1, 1, 1), 3), ((2, 2, 2, 2), 8))
SIZES += (((0, 0), 2), ((13, 11, 7, 5), 6))


class Even:
    """What is wanted, in words, since several answers are right."""

    def __init__(self, rows, m):
        self.rows, self.m = rows, m

    def __repr__(self):
        each, more = divmod(sum(self.rows), self.m)
        sizes = f"{each} or {each + 1}" if more else f"{each}"
        passes = "pass" if self.m == 1 else "passes"
        return f"{self.m} {passes} of {sizes} rows, evenly from each rank"


def agrees(came, wanted, case):
    """It has all four properties; several lists may have them."""
    return not flaws(came, case)


ex = Exercise("14.3", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Ranks with equal and unequal rows, also none; few passes and many."""
    sizes = zip((2, 3, 4, 6), rng.integers(2, 9, size=4).tolist(), strict=True)
    drawn = [(rng.integers(0, 12, size=k).tolist(), m) for k, m in sizes]
    for rows, m in [*SIZES, *drawn]:
        text = f"rows {list(rows)}, {m} pass{'es' * (m > 1)}"
        yield Case(1, text, [(list(rows), m)], [Even(list(rows), m)])


def flaws(came, case):
    """Which of the properties it lacks: names of mistakes, in their order."""
    rows, m = case.inputs[0]
    try:
        found = [[(int(a), int(b)) for a, b in ends] for ends in came]
        if any(len(ends) != len(rows) for ends in found):
            return ["form"]
    except (TypeError, ValueError):
        return ["form"]
    if len(found) != m:
        return ["number"]
    each = [[ends[r] for ends in found] for r in range(len(rows))]
    sizes = [[b - a for a, b in parts] for parts in each]
    return [
        *["lost rows"] * (not all(map(complete, each, rows))),
        *["uneven ranks"] * (not all(map(even, sizes))),
        *["uneven passes"] * (not even([sum(b - a for a, b in x) for x in found])),
    ]


def complete(parts, count):
    """They take a rank's rows once and in order; a part may be empty anywhere."""
    ends = [(a, b) for a, b in parts if a != b]
    joined = [0, *(at for pair in ends for at in pair), count]
    return all(a < b for a, b in ends) and joined[::2] == joined[1::2]


def even(sizes):
    """They differ by one at most."""
    return max(sizes) - min(sizes) <= 1


def lacks(*names):
    """Every wrong outcome lacks these properties, and no other."""
    return always(lambda a: {*flaws(a.came[0], a.case)} <= {*names}, wrong)


def first(name):
    """This is the first property that the outcome lacks."""
    return lambda a: wrong(a) and flaws(a.came[0], a.case)[:1] == [name]


given = lambda question: lambda case: question(*case.inputs[0])
ex.boundaries(
    one_rank=given(lambda rows, m: len(rows) == 1),
    one_pass=given(lambda rows, m: m == 1),
    more_ranks_than_passes=given(lambda rows, m: len(rows) > m > 1),
    more_passes_than_rows=given(lambda rows, m: m > sum(rows) > 0),
    divides=given(lambda rows, m: sum(rows) and sum(rows) % m == 0),
    does_not_divide=given(lambda rows, m: sum(rows) % m),
    no_rows_on_some=given(lambda rows, m: 0 in rows and sum(rows)),
    no_rows_at_all=given(lambda rows, m: not any(rows)),
)
