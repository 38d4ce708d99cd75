"""14.3 Scheme d."""

from ..judging import Case, Exercise
from ..signs import always, both, wrong

# rows of the ranks, passes
SIZES = (((4,), 2), ((3, 3), 2), ((3, 3, 3), 3), ((5, 1, 6, 0), 4), ((2, 4, 3), 3))
SIZES += (((7,), 3), ((1, 1, 1), 2), ((5, 5, 5, 5), 3), ((1, 2), 5), ((0, 0, 4), 3))
SIZES += (((9, 2, 7), 1), ((3,) * 8, 4), ((1, 1, 1, 1, 1), 3), ((2, 2, 2, 2), 8))
SIZES += (((0, 0), 2), ((13, 11, 7, 5), 6))


def cases(rng):
    """Ranks with equal and unequal rows, also none; few passes and many."""
    drawn = [(rng.integers(0, 12, size=k).tolist(), int(m)) for k, m in
             zip((2, 3, 4, 6), rng.integers(2, 9, size=4), strict=True)]  # fmt: skip
    for rows, m in [*SIZES, *drawn]:
        text = f"rows {list(rows)}, {m} pass{'es' * (m > 1)}"
        yield Case(1, text, [(list(rows), m)], [Even(list(rows), m)])


class Even:
    """What is wanted, in words, since several answers are right."""

    def __init__(self, rows, m):
        self.rows, self.m = rows, m

    def __repr__(self):
        each, more = divmod(sum(self.rows), self.m)
        sizes = f"{each} or {each + 1}" if more else f"{each}"
        passes = "pass" if self.m == 1 else "passes"
        return f"{self.m} {passes} of {sizes} rows, evenly from each rank"


def parts(came, case):
    """Its passes, each [(start, stop) of every rank] in whole numbers; or None."""
    rows, _ = case.inputs[0]
    try:
        found = [[(int(a), int(b)) for a, b in ends] for ends in came]
    except (TypeError, ValueError):
        return None
    return found if all(len(ends) == len(rows) for ends in found) else None


def complete(found, rows):
    """Each rank's rows are taken once, in order, over all passes."""
    for r, count in enumerate(rows):
        at = 0
        for ends in found:
            start, stop = ends[r]
            if stop < start or (stop > start and start != at):
                return False
            at = stop if stop > start else at
        if at != count:
            return False
    return True


def even(sizes):
    """They differ by one at most."""
    return max(sizes) - min(sizes) <= 1


def passes_even(found):
    """The passes have equally many rows, or nearly."""
    return even([sum(b - a for a, b in ends) for ends in found])


def shares_even(found, rows):
    """Every rank sends equally much in each pass, or nearly."""
    each = range(len(rows))
    return all(even([ends[r][1] - ends[r][0] for ends in found]) for r in each)


def agrees(came, wanted, case):
    """It has all four properties; several lists may have them."""
    rows, m = case.inputs[0]
    found = parts(came, case)
    if found is None or len(found) != m or not complete(found, rows):
        return False
    return passes_even(found) and shares_even(found, rows)


def every(question):
    """True of each wrong answer to this exercise."""

    def all_of(attempt):
        fails = [a for a in attempt.attempts if wrong(a)]
        return wrong(attempt) and all(
            question(parts(a.came[0], a.case), *a.case.inputs[0]) for a in fails
        )

    return all_of


def turned(attempt):
    """Right, if it had a list for each pass instead of each rank."""
    try:
        other = [list(ends) for ends in zip(*attempt.came[0], strict=True)]
    except (TypeError, ValueError):
        return False
    return wrong(attempt) and agrees(other, None, attempt.case)


exercise = Exercise(
    "14.3",
    cases,
    mistakes={
        "rank by rank": always(turned, wrong),
        "form": every(lambda found, rows, m: found is None),
        "number": every(lambda found, rows, m: found is not None and len(found) != m),
        "lost rows": every(
            lambda found, rows, m: bool(found) and not complete(found, rows)
        ),
        "uneven ranks": both(
            every(lambda found, rows, m: bool(found) and complete(found, rows)),
            lambda a: not shares_even(parts(a.came[0], a.case), a.case.inputs[0][0]),
        ),
        "uneven passes": every(
            lambda found, rows, m: (
                bool(found)
                and len(found) == m
                and complete(found, rows)
                and shares_even(found, rows)
            )
        ),
    },
    agrees=agrees,
    processes=(),
)
