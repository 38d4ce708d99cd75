"""17.2 Only the keys that it needs: needed(T, n, window, order)."""

import operator
from contextlib import suppress

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, both, wrong
from d2lpar.sequence.order import ORDERS, spans

# tokens, ranks, window
SIZES = ((4, 4, 2), (16, 4, 3), (8, 2, 1), (5, 1, 2), (3, 4, 2), (16, 4, 5))
SIZES += ((11, 4, 4), (13, 3, 13), (33, 8, 40), (32, 8, 2))


def agrees(came, wanted, case):
    """A sequence of sequences with the same whole numbers."""
    with suppress(TypeError):
        return [list(map(operator.index, ranks)) for ranks in came] == wanted
    return False


ex = Exercise("17.2", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """Both orders; lengths that do not divide, short windows and long ones."""
    for order in ORDERS:
        drawn = [[int(rng.integers(2, 9)), int(rng.integers(1, 20))] for _ in range(4)]
        sizes = [(int(rng.integers(n, 50)), n, window) for n, window in drawn]
        for T, n, window in [*SIZES, *sizes]:
            text = f"{T} tokens, {n} ranks, window {window}, {order}"
            given = T, n, window, order
            yield Case(1, text, [given], [owners_seen(*given)])


def owners_seen(T, n, window, order):
    """For each rank, the others that own a key which a query of it sees."""
    whose = {}
    for r, mine in enumerate(spans(T, n, order)):
        whose |= {i: r for start, stop in mine for i in range(start, stop)}
    pairs = {(whose[i], whose[j]) for i in whose for j in whose if 0 <= i - j < window}
    return [[s for s in range(n) if s != r and (r, s) in pairs] for r in range(n)]


given = lambda question: lambda case: question(*case.inputs[0])
ex.boundaries(
    one_rank=given(lambda T, n, window, order: n == 1),
    two_ranks=given(lambda T, n, window, order: n == 2),
    no_power_of_two=given(lambda T, n, window, order: n & (n - 1)),
    does_not_divide=given(lambda T, n, window, order: n < T and T % n),
    rank_without_tokens=given(lambda T, n, window, order: n > T),
    empty_span=given(lambda T, n, window, order: n <= T < 2 * n and order == "zigzag"),
    itself_only=given(lambda T, n, window, order: window == 1),
    piece_and_one=given(lambda T, n, window, order: window == T // n + 1),
    all_tokens=given(lambda T, n, window, order: window == T),
    more_than_all=given(lambda T, n, window, order: window > T),
)

# Texts of the answer, for edits

LOOP, WINDOW = "for i in pieces[r]", "range(max(0, i - window + 1), i + 1)"
SEEN, RETURN = "seen & pieces[s]", "return found"

# Mistakes of its own


sorts = lambda a: [sorted(x) for x in a.came[0]] == a.case.expected[0] != a.came[0]
backwards = {RETURN: "return [mine[::-1] for mine in found]"}
ex.mistake("order", always(both(wrong, sorts)), backwards).says("""
    The ranks are right, but they are not in rising order.
    Hint: `sorted` puts them in order.
""")
ex.slip("negative", {WINDOW: "range(T)[i - window + 1 : i + 1]"}).says("""
    For the first queries the window begins before token 0, at a negative number.
    Hint: In Python -1 is the last item of a list, and a slice that begins there is
    another one. Where does the window of query 0 begin?
""")
ex.slip("negative", {WINDOW: "[(i - k) % T for k in range(min(window, T))]"})
ex.slip("far end", {WINDOW: "[max(0, i - window + 1)]"}).says("""
    It looks only at the far end of each window.
    Hint: Keys of several ranks may lie between the first key of a window and the query.
""")
meet = "any(c < b and d > a - window + 1 for a, b in every[r] for c, d in every[s])"
ex.slip("empty span", {SEEN: meet}).says("""
    It lets an empty span ask for keys, or give some.
    Hint: With few tokens some spans have the same start and stop. They have no query
    and no key.
""")
stretch = "pieces = [{*range(min(x), max(x) + 1)} if x else x for x in pieces]"
ex.slip("one span", {"found = []": f"found = []; {stretch}"}).says("""
    It takes the tokens of a rank for a single span.
    Hint: In zigzag order a rank has two spans. The queries of both see keys, and the
    tokens between them belong to others.
""")
ex.slip("one span", {LOOP: "for i in range(*every[r][0])"})
asked = "return [[r for r in range(n) if s in found[r]] for s in range(n)]"
ex.slip("asked", {RETURN: asked}).says("""
    It lists the ranks that need this rank's keys.
    Hint: Wanted are the ranks whose keys this rank needs: exchange the two.
""")
ex.slip("itself", {"s != r and ": ""}).says("""
    A rank's list contains the rank itself.
    Hint: Its own keys need no message.
""")
ex.slip("length", {WINDOW: "range(max(0, i - window), i + 1)"}).says("""
    The window is too long or too short.
    Hint: Write down which keys query 5 sees with a window of 2. Does the query itself
    count as one of these 2?
""")
ex.slip("length", {WINDOW: "range(max(0, i - window + 2), i + 1)"})
ex.slip("length", {WINDOW: "range(i + 1)"})
ex.slip("future", {WINDOW: "range(max(0, i - window + 1), i + window)"}).says("""
    Queries see later tokens, too.
    Hint: The mask is causal. Which is the last token that query 5 sees?
""")

# Answers to which the general sentences apply

equal = "T -= T % (2 * n if order == 'zigzag' else n); every = spans"
ex.wrong("wrong", {"every = spans": equal})
ex.wrong("wrong", {"spans(T, n, order)": "spans(T, n)"})
ex.right({RETURN: "return tuple(map(tuple, found))"})
ex.right({SEEN: meet.replace("c < b", "a < b and c < d and c < b")})

ex.variation(
    "b",
    varied="a window counts the tokens before a query, without the query itself",
    differs="The query counts as one of its window, as in the public exercise; here it "
    "does not.",
    given=lambda n, T, p, window, order: (T, p, window - 1, order),
)
