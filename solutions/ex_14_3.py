"""14.3 Scheme d: deal(rows, m)."""

from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, both, wrong

# rows of the ranks, passes
SIZES = (((4,), 2), ((3, 3), 2), ((3, 3, 3), 3), ((5, 1, 6, 0), 4), ((2, 4, 3), 3))
SIZES += (((7,), 3), ((1, 1, 1), 2), ((5, 5, 5, 5), 3), ((1, 2), 5), ((0, 0, 4), 3))
SIZES += (((9, 2, 7), 1), ((3,) * 8, 4), ((1, 1, 1, 1, 1), 3), ((2, 2, 2, 2), 8))
SIZES += (((0, 0), 2), ((13, 11, 7, 5), 6), ((1000, 1, 998), 7))


class Words(str):
    """What is wanted, in words, since several answers are right."""

    __repr__ = str.__str__  # without quotation marks


# Several lists may have all properties.
agrees = lambda came, wanted, case: not flaws(came, case)
ex = Exercise("14.3", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Ranks with equal and unequal rows, also none; few passes and many."""
    sizes = zip((2, 3, 4, 6), rng.integers(2, 9, size=4).tolist(), strict=True)
    drawn = [(rng.integers(0, 12, size=k).tolist(), m) for k, m in sizes]
    for rows, m in [*SIZES, *drawn]:
        passes, (each, more) = f"{m} pass{'es' * (m > 1)}", divmod(sum(rows), m)
        some = f"{each} or {each + 1}" if more else f"{each}"
        wanted = Words(f"{passes} of {some} rows, evenly from each rank")
        text = f"rows {list(rows)}, {passes}"
        yield Case(1, text, [(list(rows), m)], [wanted])


def flaws(came, case):
    """Which of the properties it lacks: names of mistakes, in their order."""
    rows, m = case.inputs[0]
    try:
        found = [[(int(a), int(b)) for a, b in ends] for ends in came]
        whole = all(int(x) == x for ends in came for pair in ends for x in pair)
    except NO_NUMBER:
        whole = False
    if not whole or len(found) != m or any(len(ends) != len(rows) for ends in found):
        return ["form"]
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


even = lambda sizes: max(sizes) - min(sizes) <= 1


def first(*names):
    """One of these is the first property that the outcome lacks."""
    return lambda a: wrong(a) and flaws(a.came[0], a.case)[0] in names


def turned(attempt):
    """It would be right if it had a list for each pass instead of each rank."""
    return agrees([*zip(*attempt.came[0], strict=True)], None, attempt.case)


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

# Texts of the answer, for edits

DEALT, NEXT = "dealt[g % m] += 1", "first += count"
PASSES, PAIR = "[[part[k] for part in parts] for k in range(m)]", "part[k] for"

# Mistakes of its own

ex.mistake("rank by rank", always(turned, wrong), {PASSES: "parts"}).says("""
    It returns a list for each rank, and not for each pass.
    Hint: Item k is pass k, and has a pair for each rank. `zip(*lists)` exchanges the
    two.
""")
numbers = {PAIR: "part[k][1] - part[k][0] for"}
ex.mistake("form", first("form"), numbers).says("""
    It does not return m passes with a (start, stop) in whole numbers for every rank.
    Hint: Print what it returns for `deal([5, 5, 5], 3)` and `deal([1, 2], 5)`. Where
    there are fewer rows than passes, some passes are empty.
""")
ex.wrong("form", {PAIR: "(part[k][0] / 2, part[k][1] / 2) for"})
ex.wrong("form", {PASSES: PASSES.replace("(m)", "(min(m, sum(rows)))")})
whole = {DEALT: "dealt[g % m] = count // m"}
ex.mistake("lost rows", always(first("lost rows"), wrong), whole).says("""
    Some rows are in no pass, or in two.
    Hint: A rank's parts follow each other. Where does each of them start, and where
    does the last one stop?
""")
all_taken = always(first("uneven ranks", "uneven passes"), wrong)
in_turn = {DEALT: "dealt[g * m // sum(rows)] += 1"}
ex.mistake("uneven ranks", both(all_taken, first("uneven ranks")), in_turn).says("""
    In some pass a rank sends at least two rows more than in another.
    Hint: Each rank's rows are dealt out over all passes, as evenly as possible.
""")
rest = "dealt[min((g - first) // max(count // m, 1), m - 1)] += 1"
ex.wrong("uneven ranks", {DEALT: rest})
uneven = always(first("uneven passes"), wrong)
ex.mistake("uneven passes", uneven, {NEXT: "pass"}).says("""
    Each rank's rows are dealt out evenly, but the passes are not equally long.
    Hint: Which passes get the rows that are left over, if every rank begins with pass
    0? Think of where the next rank could begin to deal.
""")
ex.wrong("uneven passes", {DEALT: "dealt[(g - first) * m // count] += 1"})

# Answers to which the general sentences apply

ex.wrong("raises", {DEALT: "dealt[g] += 1"})
ex.right({DEALT: "dealt[-g % m] += 1"})
ex.right({DEALT: "dealt[(g + 1) % m] += 1", PAIR: "[*map(float, part[k])] for"})
