"""01.2 Who does what?: plan(start, ops, cpu, gpu, link)."""

from itertools import product

from d2lpar.checks.equality import NO_NUMBER, close
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import wrong


def agrees(came, wanted, case):
    """The same seconds, at places that take equally long: any of the best will do."""
    told = answer(came, case)
    return told is not None and all(map(close, told, answer(wanted, case)))


def answer(came, case):
    """(seconds, seconds that its places take), or None where it is something else."""
    try:
        seconds, places = came
        letters = isinstance(places, str | list | tuple) and {*places} <= {*"CG"}
        if not letters or isinstance(seconds, str):
            return None
        return float(seconds), cost(places, *case.inputs[0])
    except NO_NUMBER:
        return None


def cost(places, start, ops, cpu, gpu, link, home=True):
    """Seconds of the chain at these places, and of the way home."""
    total, here, held = 0.0, "C", start
    for place, (f, m, out) in zip(places, ops, strict=True):
        peak, rate, launch = cpu if place == "C" else gpu
        total += (link[0] + held / link[1]) * (place != here)
        total += max(f / peak, m / rate) + launch
        here, held = place, out
    return total + (link[0] + held / link[1]) * (here == "G" and home)


ex = Exercise("01.2", reference="seconds_of", agrees=agrees)

CPU, GPU, LINK = (1e11, 2e10, 2e-6), (1e13, 1e12, 5e-6), (5e-6, 1e10)
# The result of a long operation comes home for short ones, and goes there once more.
AGAIN = [(1e10, 1e3, 1e3), *[(10.0, 10.0, 1e3)] * 3, (1e10, 1e3, 1e3)]
FIXED = (
    (1e3, AGAIN, (1e10, 1e10, 1e-6), (1e13, 1e12, 1e-3), (1e-5, 1e10)),
    (1e6, [(1e9, 1e6, 1e6)], (1e9, 1e9, 0.0), (2e9, 1e9, 0.0), (0.125, 8e6)),  # a tie
    (1e9, [(1e6, 1e6, 1e9), (1e9, 1e6, 1e9)], CPU, GPU, LINK),  # moves cost too much
    (0.0, [(1e9, 1e6, 1e9), (1e9, 1e6, 0.0)], CPU, GPU, LINK),  # to there and back
)


@ex.cases
def cases(rng, reference):
    """Chains of all lengths, from three on those that mislead; and some fixed ones."""
    chains = []
    for length in (1, 2, 3, 5, 6, 8, 4, 5):
        given = chain(rng, length)
        while length > 2 and not misleads(*given):
            given = chain(rng, length)
        chains.append(given)
    for given in [*chains, *FIXED]:
        ways = map("".join, product("CG", repeat=len(given[1])))
        best = min((reference(places, *given), places) for places in ways)
        text = f"{len(given[1])} operations, {given[0] / 1e3:,.0f} kB at first"
        yield Case(1, text, [given], [best])


def chain(rng, length):
    """(start, ops, cpu, gpu, link) of so many operations."""
    size = lambda: float(round(10 ** rng.uniform(3, 7.5)))
    start, ops = size(), []
    for _ in range(length):
        f, out = 10 ** rng.uniform(5, 9.5), size()
        ops.append((f, 3 * out * rng.uniform(0.5, 1.5), out))
    cpu = 10 ** rng.uniform(10.5, 11.5), 10 ** rng.uniform(10, 10.7), 2e-6
    gpu = 10 ** rng.uniform(12.5, 13.5), 10 ** rng.uniform(11.5, 12.3), 5e-6
    return start, ops, cpu, gpu, (5e-6, 10 ** rng.uniform(9.8, 10.5))


def misleads(*given):
    """One side, each alone, there and back, greedy: all are at least 1 % too slow."""
    start, ops, cpu, gpu, link = given
    sides, held = (cpu, gpu), [start, *(out for _, _, out in ops)]
    alone = back = greedy = ""
    for k, op in enumerate(ops):
        now = ops[: k + 1], *sides, link, False
        alone += min("CG", key=lambda p: cost(p, 0, [op], *sides, (0, 1), False))
        back += min("CG", key=lambda p: cost(p, held[k], [op], *sides, link))
        greedy += min("CG", key=lambda p: cost(greedy + p, start, *now))
    tempting = "C" * len(ops), "G" * len(ops), alone, back, greedy
    best = min(cost(places, *given) for places in product("CG", repeat=len(ops)))
    return min(cost(places, *given) for places in tempting) > 1.01 * best


length = lambda case: len(case.inputs[0][1])
seconds = lambda case: case.expected[0][0]
best = lambda case: case.expected[0][1]
ex.boundaries(
    one_operation=lambda case: length(case) == 1,
    all_on_the_cpu=lambda case: length(case) > 1 and "G" not in best(case),
    all_on_the_gpu=lambda case: length(case) > 1 and "C" not in best(case),
    two_visits=lambda case: "GC" in best(case).rstrip("C"),
    tie=lambda case: all(
        agrees((seconds(case), p), *case.expected, case) for p in "CG"
    ),
    nothing_to_move=lambda case: case.inputs[0][0] == 0,
)

# Texts of the answer, for edits

MOVE, WORK = "link[0] + held / link[1], {}", "max(f / peak, m / rate)"
HOME, NEXT = 'best["G"][0] + link[0] + held / link[1]', "best, held = new, out"
RETURN = 'return min(best["C"], (home, best["G"][1]))'


def among(ways):
    """An edit: the best of these ways."""
    pair = "seconds_of(p, start, ops, cpu, gpu, link), p"
    return {RETURN: f"L = len(ops); return min(({pair}) for p in {ways})"}


# Mistakes of its own


def no_answer(attempt):
    return wrong(attempt) and answer(attempt.came[0], attempt.case) is None


def other_seconds(attempt):
    return wrong(attempt) and not close(*answer(attempt.came[0], attempt.case))


only_seconds = {RETURN: f"{RETURN}[0]"}
ex.mistake("form", no_answer, only_seconds).says("""
    It does not return the seconds and one C or G per operation.
    Hint: For a chain of three operations, end with a line such as
    `return seconds, "CGG"`.
""")


ex.slip("no way home", {HOME: 'best["G"][0]'}).says("""
    The move of the result to the host at the end takes no time.
    Hint: Where are the data when the last operation ran on the GPU?
""")
ex.slip("other bytes", {MOVE: "link[0] + out / link[1], {}"}).says("""
    A move is charged for other bytes than those that are moved.
    Hint: An operation gets the result of the one before. How many bytes has that?
""")
ex.slip("other bytes", {NEXT: "best = new"})
added = {WORK: "f / peak + m / rate"}
ex.mistake("other seconds", other_seconds, added).says("""
    The seconds it returns are not the time that its own places take.
    Hint: `seconds_of` computes the time of your places. Which term does your function
    count differently? Every move takes time.
""")
roof = "(lambda side: max(op[0] / side[0], op[1] / side[1]) + side[2])"
alone = among(f"[''.join('CG'[{roof}(gpu) < {roof}(cpu)] for op in ops)]")
ex.slip("each alone", alone).says("""
    It puts each operation where its own work is faster, and ignores the time of the
    moves.
    Hint: Where are the data of an operation when it starts, and where are they needed
    next?
""")
near = "held, near, far = out, *sorted(new, key=new.get)"
greedy = f"{near}\n        best = {{near: new[near], far: (float('inf'), '')}}"
ex.slip("greedy", {NEXT: greedy}).says("""
    Each operation considers only its own move, not the moves that come after it.
    Hint: What is best so far need not be the beginning of what is best in all. Keep two
    times for each operation: the least if its result is on the CPU, and the least if it
    is on the GPU.
""")
ex.mistake("not the least", wrong, among("('C' * L, 'G' * L)")).says("""
    The seconds are those of its places, but other places would take less time in all.
    Hint: Take a short chain, and try all its ways with `seconds_of`. Where does yours
    leave the best one?
""")
visits = "for a in range(L + 1) for b in range(a, L + 1)"
once = f"('C' * a + 'G' * (b - a) + 'C' * (L - b) {visits})"
ex.wrong("not the least", among(once))

# Answers to which the general sentences apply

ex.wrong("raises", {RETURN: f"ops[len(ops)]\n    {RETURN}"})
ex.right({RETURN: f"seconds, places = {RETURN[7:]}; return [seconds, [*places]]"})
ex.right(among("map(''.join, __import__('itertools').product('GC', repeat=L))"))
