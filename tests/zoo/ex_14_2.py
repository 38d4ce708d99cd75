"""14.2 Which split?: choose(n, N, D, O)."""

from fractions import Fraction

from zoo import right, wrong


def counted(n, N, D, O, there=1, back=1, part=None, adds=1):  # noqa: E741
    share = Fraction(n - 1, n)
    part = Fraction(1, n) if part is None else part
    found = {"data": 2 * share * D * O}
    if O % n == 0:
        found["out"] = (
            share * N * (there * D + back * adds * D + (there + back) * part * O)
        )
    if D % n == 0:
        found["in"] = (
            share * N * ((there + back) * part * D + there * adds * O + back * O)
        )
    return found


def least(found):
    split = min(found, key=found.get)
    return split, found[split]


@right
def by_fractions(n, N, D, O):  # noqa: E741
    return least(counted(n, N, D, O))


@right
def by_floats(n, N, D, O):  # noqa: E741
    g = (n - 1) / n
    ways = [(2 * g * D * O, 0, "data")]
    if O % n == 0:
        ways.append((g * (2 * N * D + 2 * N * O / n), 1, "out"))
    if D % n == 0:
        ways.append((g * (2 * N * D / n + 2 * N * O), 2, "in"))
    count, _, split = min((round(c, 6), k, s) for c, k, s in ways)
    return [split, count]


@wrong("there only")
def no_way_back(n, N, D, O):  # noqa: E741
    return least(counted(n, N, D, O, back=0))


@wrong("joined")
def gathers_all(n, N, D, O):  # noqa: E741
    return least(counted(n, N, D, O, part=1))


@wrong("summed")
def sums_everywhere(n, N, D, O):  # noqa: E741
    return least(counted(n, N, D, O, adds=2))


@wrong("any width")
def divides_or_not(n, N, D, O):  # noqa: E741
    share = Fraction(n - 1, n)
    out = share * N * (2 * D + Fraction(2, n) * O)
    into = share * N * (Fraction(2, n) * D + 2 * O)
    return least({"data": 2 * share * D * O, "out": out, "in": into})


@wrong("later")
def the_last_of_equals(n, N, D, O):  # noqa: E741
    found = counted(n, N, D, O)
    return least(dict(reversed(found.items())))


@wrong("all ranks")
def of_all_together(n, N, D, O):  # noqa: E741
    split, count = least(counted(n, N, D, O))
    return split, n * count


@wrong("later")
def by_the_alphabet(n, N, D, O):  # noqa: E741
    return min(counted(n, N, D, O).items(), key=lambda pair: (pair[1], pair[0]))


def without(n, N, D, O, dx=0, y=0):  # noqa: E741
    """Leaves out the gradient of x, or the outputs of "out"."""
    share, found = Fraction(n - 1, n), counted(n, N, D, O)
    less = {"out": share * N * (dx * D + y * Fraction(2, n) * O)}
    less["in"] = share * N * dx * Fraction(1, n) * D
    return least({split: found[split] - less.get(split, 0) for split in found})


@wrong("no dx")
def forgets_the_gradient_of_x(n, N, D, O):  # noqa: E741
    return without(n, N, D, O, dx=1)


@wrong("no y")
def leaves_y_in_channels(n, N, D, O):  # noqa: E741
    return without(n, N, D, O, y=1)


@wrong("once")
def an_allreduce_like_a_gather(n, N, D, O):  # noqa: E741
    found = counted(n, N, D, O)
    return least(found | {"data": found["data"] / 2})


@wrong("bytes")
def four_bytes_each(n, N, D, O):  # noqa: E741
    split, count = least(counted(n, N, D, O))
    return split, 4 * count


@wrong("other width")
def divides_the_other_width(n, N, D, O):  # noqa: E741
    g = Fraction(n - 1, n)
    found = {"data": 2 * g * D * O}
    if D % n == 0:
        found["out"] = 2 * g * N * (D + Fraction(1, n) * O)
    if O % n == 0:
        found["in"] = 2 * g * N * (Fraction(1, n) * D + O)
    return least(found)


@wrong("whole rows")
def equal_rows_only(n, N, D, O):  # noqa: E741
    found = counted(n, N, D, O)
    if N % n and len(found) > 1:
        del found["data"]
    return least(found)


@wrong("no pair")
def the_name_alone(n, N, D, O):  # noqa: E741
    return least(counted(n, N, D, O))[0]
