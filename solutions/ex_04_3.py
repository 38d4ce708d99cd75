"""04.3 Name the cycle: cycles() names who waits for whom in four programs.

The truth is what the simulator reports when it runs the programs, so it cannot drift.
"""

from d2lpar.checks import solutions
from d2lpar.checks.equality import NO_NUMBER
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case, on_ranks
from d2lpar.checks.signs import hangs, waiting, wrong


def cases(rng):
    """A case per program; nothing is drawn."""
    for letter in "ABCD":
        program = solutions.of("04.3").reference(f"program_{letter.lower()}")
        facts = {"letter": letter, "truth": knots(program)}
        yield Case(1, f"program {letter}", [()], [Secret()], facts)


def knots(program):
    """The pairs (who, waits for whom) in cycles; None where the program ends."""
    attempt = on_ranks(program, Case(4, "", [()] * 4))
    if not hangs(attempt):
        return None
    pairs = {(who, whom) for who, _, whom in waiting(attempt)}
    for _ in range(4):  # nobody waits for one who is behind a cycle
        pairs = {(a, b) for a, b in pairs if a in {whom for _, whom in pairs}}
    return pairs


class Secret:
    """Stands in a report where the answer would be given away."""

    def __repr__(self):
        return "what the simulator reports"


def answer(attempt, rank):
    """What the dictionary says of this program."""
    letter, answers = attempt.case.facts["letter"], attempt.values[rank]
    if isinstance(answers, dict) and letter in answers:
        return answers[letter]
    return f"no entry for {letter!r}"


def pairs(answer):
    """The pairs as a set, None for None, False where the answer has another form."""
    try:
        return None if answer is None else {(int(a), int(b)) for a, b in answer}
    except NO_NUMBER:
        return False


def agrees(came, wanted, case):
    """Are these the pairs, each named once?"""
    return pairs(came) == case.facts["truth"]


ex = Exercise("04.3", outcome=answer, agrees=agrees)
ex.cases(cases)
truth = lambda case: case.facts["truth"]
ex.boundaries(
    ends=lambda case: truth(case) is None,
    two_ranks_in_it=lambda case: len(truth(case) or ()) == 2,
    three_ranks_in_it=lambda case: len(truth(case) or ()) == 3,
    two_circles=lambda case: len(truth(case) or ()) == 4,
)

# Texts of the answer, for edits

A, B = "[(0, 1), (1, 0), (2, 3), (3, 2)]", "[(1, 2), (2, 1)]"
C, NONE = "[(0, 3), (3, 1), (1, 0)]", '"D": None'

# Mistakes of its own: questions about what is named, and what is true


def says(question):
    """`question(named, truth)` about a wrong answer."""
    return lambda a: wrong(a) and question(pairs(a.came[0]), truth(a.case))


no_form = says(lambda named, truth: named is False or (truth is None and not named))
ex.mistake("form", no_form, {A: "[0, 1, 2, 3]", B: "[1, 2]"}).says("""
    It does not give a list of pairs, or None, for each of the four letters.
    Hint: Return a dictionary like {"A": [(0, 3), (3, 0)], "B": None, ...}, with None
    where the program ends.
""")
ex.wrong("form", {NONE: '"D": []'})
ex.wrong("form", {NONE: '"E": None'})
ring = '"D": [(0, 1), (1, 2), (2, 3), (3, 0)]'
ends = says(lambda named, truth: truth is None)
ex.mistake("one by one", ends, {NONE: ring}).says("""
    It names ranks that are stuck, but this program comes to an end.
    Hint: Which rank can be sent to from the start? `irecv` returns at once, and from
    then on its message can be sent.
""")
nobody = says(lambda named, truth: not named)
ex.mistake("buffered", nobody, {A: "None", C: "None"}).says("""
    It says that no rank is stuck, but this program never ends, because each send waits
    for its receive.
    Hint: Write down the first call of each rank, and which rank it needs for that.
""")
swap = says(lambda named, truth: {(b, a) for a, b in named} == truth)
ex.mistake("swapped", swap, {C: "[(3, 0), (1, 3), (0, 1)]"}).says("""
    Every pair is the wrong way round, because the rank that waits must come first.
    Hint: A rank in `recv` waits for its sender. A rank in `send` waits for its
    receiver.
""")
more = says(lambda named, truth: named > truth)
queue = {B: "[(0, 1), (1, 2), (2, 1), (3, 0)]"}
ex.mistake("queue", more, queue).says("""
    It also names ranks that only wait behind a circle and are not in it.
    Hint: Follow the arrows from a rank. It is in a circle only if they lead back to it.
""")
less = says(lambda named, truth: named < truth)
ex.mistake("part", less, {A: "[(0, 1), (1, 0)]"}).says("""
    The pairs that it names are right, but some are missing.
    Hint: A circle has as many pairs as ranks, and there may be two circles.
""")
stuck = lambda pairs: {who for who, _ in pairs}
later = says(lambda named, truth: stuck(named - truth) & stuck(truth))
ex.mistake("later call", later, {C: "[(0, 1), (1, 2), (2, 0)]"}).says("""
    It names a rank that is stuck, but says that it waits for a different rank than it
    does.
    Hint: The first call that does not end decides. A rank never gets to the calls after
    that.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {B: "[(0, 1), (3, 0)]"})
ex.wrong("raises", {NONE: '"D": nothing'})
ex.right({B: "{(1, 2), (2, 1)}", C: "([3, 1], [1, 0], [0, 3])"})
ex.right({NONE: '"D": None, "E": "not asked"'})


def two_off(pairs, n=0):
    """The pairs with rank r in the place of r^2."""
    return pairs and [(int(a) ^ 2, int(b) ^ 2) for a, b in pairs]


ex.variation(
    "b",
    varied="numbers: the ranks of programs B and C",
    differs="It names the circles of the public programs; in these programs different "
    "ranks are in them.",
    back=lambda named, n: {letter: two_off(each) for letter, each in named.items()},
    shows=two_off,
)
