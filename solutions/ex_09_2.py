"""09.2 Which server is the bottleneck?: bottleneck(sizes, owner, servers, ...)."""

import math

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case

ex = Exercise("09.2", processes=())
PLANS = ((1, 1), (1, 5), (2, 3), (3, 2), (3, 9), (4, 12), (8, 20))  # servers, layers
# Two servers are equally busy, 1 s each, and a task takes as long as four gradients.
EVEN = ([524_177, 524_277, 100], [1, 0, 1], 2, 2.0**-19, 2.0**-20, 2.0)
# Four servers of six have no layer; their messages cost a worker alpha each.
IDLE = ([3_000_000, 2_900_000], [1, 3], 6, 1e-3, 1e-9, 8.5e-3)
# The largest layer is on server 0, and the most bytes are on server 2.
SMALL = ([5_000_000, 3_000_000, 4_000_000, 10_000], [0, 2, 2, 1], 3, 1e-4, 1e-9, 0.1)
# Nothing to compute, so a worker alone is as busy as the only server.
AT_ONCE = ([524_277], [0], 1, 2.0**-19, 2.0**-20, 0.0)
# Bytes cost nothing, so all servers are equally busy.
FREE = ([10_000, 30_000, 20_000], [0, 1, 2], 3, 1e-3, 0.0, 10e-3)


@ex.cases
def cases(rng):
    """Layers of very different size, dealt to servers; some servers have none."""
    drawn = [draw(rng, *plan) for plan in PLANS]
    for arguments in [*drawn, IDLE, SMALL, AT_ONCE, EVEN, FREE]:
        sizes, _, servers, *_, seconds = arguments
        text = f"{len(sizes)} layer{'s' * (len(sizes) > 1)}, {servers} "
        text += f"server{'s' * (servers > 1)}, compute {seconds * 1e3:.1f} ms"
        yield Case(1, text, [arguments], [limits(*arguments)])


def draw(rng, servers, layers):
    """A plan in which no slip is hidden by rounding the number of workers."""
    while True:
        sizes = [int(x) for x in 10 ** rng.uniform(4, 8, size=layers)]
        owner = [int(x) for x in rng.integers(servers, size=layers)]
        alpha, beta = (float(10 ** rng.uniform(*x)) for x in ((-5.3, -3), (-10, -9)))
        pace = alpha, beta, float(rng.uniform(5e-3, 0.2))
        if 0.2 < quotient(sizes, owner, servers, *pace) % 1 < 0.8:
            return sizes, owner, servers, *pace


def times(sizes, owner, servers, alpha, beta):
    """Seconds that each server needs for a gradient: a note, and S_j bytes twice."""
    times = [3 * alpha + 16 * beta for _ in range(servers)]
    for size, j in zip(sizes, owner, strict=True):
        times[j] += 2 * beta * size
    return times


def quotient(*arguments):
    """Workers that the busiest server can serve, as a fraction."""
    *given, seconds = arguments
    return (seconds + sum(times(*given))) / max(times(*given))


def limits(*arguments):
    """(server that limits, gradients a second at most, workers that reach it)."""
    busy = times(*arguments[:-1])
    workers = math.ceil(quotient(*arguments))
    return busy.index(max(busy)), 1 / max(busy), workers


def of_the_largest(sizes, owner, *more):
    """The server of the largest layer."""
    return owner[sizes.index(max(sizes))]


given = lambda case: case.inputs[0]
ex.boundaries(
    one_server=lambda case: given(case)[2] == 1,
    one_layer=lambda case: len(given(case)[0]) == 1,
    server_without_layers=lambda case: len({*given(case)[1]}) < given(case)[2],
    ties=lambda case: given(case) == EVEN,
    whole_quotient=lambda case: quotient(*given(case)) == 4,
    largest_layer_elsewhere=lambda case: (
        of_the_largest(*given(case)) != case.expected[0][0]
    ),
    bytes_are_free=lambda case: given(case)[4] == 0,
    nothing_to_compute=lambda case: given(case)[-1] == 0,
)

# Texts of the answer, for edits

BUSY, OF = "3 * alpha + beta * (16 + 2 * part)", "for part in parts"
SUM, UP, WHICH = "sum(busy)", "math.ceil(", "busy.index(slowest), "
WORKERS = "math.ceil((seconds + sum(busy)) / slowest)"
RESULT = f"{WHICH}1 / slowest, workers"

# Mistakes of its own

ex.slip("one way", {BUSY: "2 * alpha + beta * (16 + part)"}).says("""
    It counts the gradient that comes in, but not the parameters that go out.
    Hint: What does a server do between two gradients? It is one loop, which cannot
    receive while it sends.
""")
ex.slip("no notes", {BUSY: "2 * (alpha + beta * part)"}).says("""
    It leaves out the notes or a part of their time.
    Hint: How many messages are there for each gradient, and of how many bytes? One of
    the three is a note, which costs an alpha and 16 bytes.
""")
ex.slip("no notes", {BUSY: "3 * alpha + 2 * beta * part"})
ex.slip("no notes", {BUSY: "2 * alpha + beta * (16 + 2 * part)"})
ex.slip("messages of a worker", {f"(seconds + {SUM})": "seconds"}).says("""
    It leaves out a part of the time that a worker needs for a task.
    Hint: With whom does a worker exchange messages for a task? With every server, one
    after the other, and empty messages with a server without layers.
""")
ex.slip("messages of a worker", {SUM: "slowest"})
full = "sum(time for time, part in zip(busy, parts) if part)"
ex.slip("messages of a worker", {SUM: full})
each = "alpha * {} + beta * (16 + 2 * part)"
numbered = "for j, part in enumerate(parts)"
layers = each.format("(1 + 2 * owner.count(j))")
ex.slip("message a layer", {BUSY: layers, OF: numbered}).says("""
    It counts a message for each layer.
    Hint: How many messages does a server with ten layers send to a worker? All of its
    layers travel in one, so alpha is paid three times for each gradient and server.
""")
at_least_one = each.format("(1 + 2 * max(1, owner.count(j)))")
ex.slip("message a layer", {BUSY: at_least_one, OF: numbered})
even = {"parts[j] += size": "parts = [sum(sizes) / servers] * servers"}
ex.slip("equal parts", even).says("""
    It treats all servers as if they had equal parts.
    Hint: Which bytes does each server have? Add up the layers of each, because the
    largest part decides.
""")
ex.slip("rounding", {UP: "int("}).says("""
    The number of workers is the right quotient, but not rounded as it should be.
    Hint: What is the smallest whole number that is not below the quotient? `math.ceil`
    gives it, and leaves a whole number as it is; 1 added after rounding down does not.
""")
for rounding in ("float(", "1 + int(", "round("):
    ex.slip("rounding", {UP: rounding})

# Answers to which the general sentences apply

ex.wrong("wrong", {WHICH: "servers - 1 - busy[::-1].index(slowest), "})
ex.wrong("wrong", {RESULT: WHICH.strip(", ")})
ex.wrong("wrong", {"1 / slowest": "slowest"})
ex.wrong("wrong", {WHICH: "owner[sizes.index(max(sizes))], "})
ex.right({WORKERS: "-int(-(seconds + sum(busy)) // slowest)"})
ex.right({f"return {RESULT}": f"return [{RESULT}]"})
