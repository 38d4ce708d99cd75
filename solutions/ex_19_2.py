"""19.2 From n ranks to m: moves(size, n, m)."""

import operator
from contextlib import suppress

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case

SIZES = ((12, 2, 3), (12, 3, 2), (10, 3, 4), (7, 4, 1), (7, 1, 4), (5, 5, 5))
SIZES += ((3, 5, 2), (3, 2, 5), (17, 4, 6), (100, 8, 3), (0, 2, 3), (1, 3, 3))


def agrees(came, wanted, case):
    """The same messages, in any order."""
    with suppress(TypeError):
        return sorted(tuple(map(operator.index, each)) for each in came) == wanted
    return False


ex = Exercise("19.2", "travelling_reference", agrees=agrees, processes=())


@ex.cases
def cases(rng, reference):
    """More and fewer ranks than before, also more ranks than numbers."""
    drawn = rng.integers((4, 1, 1), (60, 9, 9), size=(4, 3)).tolist()
    for size, n, m in [*SIZES, *drawn]:
        ways = {}
        for i, src, dst in reference(size, n, m):
            ways.setdefault((src, dst), []).append(i)
        found = [(*way, min(mine), max(mine) + 1) for way, mine in ways.items()]
        text = f"{size} numbers, from {n} to {m} ranks"
        yield Case(1, text, [(size, n, m)], [sorted(found)])


given = lambda question: lambda case: question(*case.inputs[0])
ex.boundaries(
    from_one=given(lambda size, n, m: n == 1 < m),
    to_one=given(lambda size, n, m: m == 1 < n),
    to_two=given(lambda size, n, m: m == 2 < n),
    more_ranks=given(lambda size, n, m: n < m),
    as_many_ranks=given(lambda size, n, m: n == m),
    no_power_of_two=given(lambda size, n, m: n & (n - 1) and m & (m - 1)),
    does_not_divide=given(lambda size, n, m: size % n and size % m),
    empty_share_before=given(lambda size, n, m: 0 < size < n),
    empty_share_behind=given(lambda size, n, m: 0 < size < m),
    no_numbers=given(lambda size, n, m: size == 0),
)

# Texts of the answer, for edits

CUT = "[r * each + min(r, more) for r in range(k + 1)]"
OTHERS, SOME = "src != dst and ", "start < stop"
FOUND, RETURN = "found.append((src, dst, start, stop))", "return found"

# Mistakes of its own

chunks = {CUT: "[min(r * -(-size // k), size) for r in range(k + 1)]"}
ex.slip("cut", chunks).says("""
    It cuts the vector at other places than `tensor_split` does.
    Hint: How long are the parts of 10 numbers on 4 ranks? The first parts have one
    number more, and none of them has two more than another.
""")
ex.slip("cut", {CUT: "[r * each + max(0, r - k + more) for r in range(k + 1)]"})
ex.slip("cut", {CUT: "[size * r // k for r in range(k + 1)]"})
ex.slip("stays", {OTHERS: ""}).says("""
    It sends numbers from a rank to itself.
    Hint: What stays on its rank needs no message.
""")
ex.slip("empty", {SOME: "True"}).says("""
    It has messages without numbers.
    Hint: Two parts that do not overlap have nothing to send to each other.
""")
ex.slip("empty", {SOME: "start <= stop"})
each = "found += [(src, dst, i, i + 1) for i in range(start, stop)]"
ex.slip("pieces", {FOUND: each}).says("""
    It sends the right numbers, but in several messages from one rank to another.
    Hint: The numbers that go from one rank to another are neighbours. So one message
    can hold all of them: from which number to which?
""")
local = "found.append((src, dst, start - before[src], stop - before[src]))"
ex.slip("local", {FOUND: local}).says("""
    It counts the numbers from the beginning of a part.
    Hint: start and stop are positions in the whole vector.
""")
ex.slip("local", {FOUND: local.replace("before[src]", "after[dst]")})
ex.slip("last", {FOUND: FOUND.replace("stop", "stop - 1")}).says("""
    The last entry of a message is not where its numbers stop.
    Hint: If the numbers 2, 3 and 4 travel, start is 2 and stop is 5.
""")
ex.slip("few", {"range(n)": "range(min(n, m))"}).says("""
    Some ranks send or receive nothing, although they should.
    Hint: A rank that leaves has numbers that others need, and a rank that is new needs
    some. How many ranks can send, and how many can receive?
""")
ex.slip("few", {"range(m)": "range(min(n, m))"})
ex.slip("back", {FOUND: FOUND.replace("src, dst", "dst, src")}).says("""
    Sender and receiver are exchanged.
    Hint: The sender is one of the n ranks that hold the vector now.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {FOUND: "found.append((src, dst, start, float(stop)))"})
ex.wrong("raises", {RETURN: "return found[0] and found"})
ex.right({RETURN: "return found[::-1]"})
ex.right({FOUND: "found.append([src, dst, start, stop])"})

ex.variation(
    "b",
    varied="how a message says where it ends",
    differs="Its messages end with a stop, as in the public exercise, but here with "
    "the count of their numbers.",
    says={
        "last": """The last entry of a message is not the count of its numbers.
        Hint: If the numbers 2, 3 and 4 travel, start is 2 and the count is 3."""
    },
    reads={"start and stop are positions": "start is a position"},
    back=lambda found, n: [(*way, a, a + count) for *way, a, count in found],
    shows=lambda found, n: [(*way, a, stop - a) for *way, a, stop in found],
)
