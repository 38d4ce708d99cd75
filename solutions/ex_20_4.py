"""20.4 Predicted and simulated: defend(asked, events, rank, span)."""

from collections import Counter
from functools import lru_cache, partial

from d2lpar import Cluster, run
from d2lpar.checks import solutions
from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import always, both, wrong
from d2lpar.mesh import Config, Mesh
from d2lpar.planning import Model, Plan, Shares, predict
from d2lpar.planning.times import plain
from d2lpar.report.events import Event

# data, pipeline, tensor; micro-batches, cluster, and what the events are: of a
# simulated run, of one whose last rank is slow, drawn, or none at all
GIVEN = [(2, 1, 1, 1, "2x1xA100", "run"), (1, 2, 1, 2, "2xV100", "run")]
GIVEN += [(1, 1, 2, 2, "2xA100", "run"), (1, 2, 2, 2, "4xA100", "slow")]
GIVEN += [(2, 2, 1, 2, "2x2xA100", "run"), (2, 1, 2, 1, "4xH100", "slow")]
GIVEN += [(2, 2, 2, 2, "8xA100", "drawn"), (3, 1, 1, 2, "3xA100", "drawn")]
GIVEN += [(1, 1, 1, 2, "1xA100", "drawn"), (2, 1, 1, 2, "2xA100", "none")]
WAYS, TERMS = ("send", "recv"), ("compute", "tensor", "data", "pipeline")
PARTS = {"compute": ("products", "attention", "elementwise", "recompute")}
PARTS |= {"tensor": ("tensor",), "data": ("data",), "pipeline": ("pipeline", "bubble")}
SPANS = 'spans = {"compute": [], "tensor": [], "data": []}'
FIRST = 'spans = {"tensor": [], "data": [], "compute": []}'


def agrees(came, wanted, case):
    """The same term is the worst, and all figures are right to six digits."""
    if not isinstance(came, dict) or came.keys() != wanted.keys():
        return False
    same = came["worst"] == wanted["worst"]
    return same and column(came, wanted, 0) and column(came, wanted, 1)


def column(came, wanted, k):
    """Is figure k of each term right, but for the rounding of all others?"""
    least = 1e-7 * sum(wanted[x][1] for x in TERMS)
    ours, true = [came.get(x) for x in TERMS], [wanted[x][k] for x in TERMS]
    if not all(isinstance(x, tuple | list) and len(x) == 2 for x in ours):
        return False
    pairs = zip((x[k] for x in ours), true, strict=True)
    return all(near(a, b, 1e-6) or abs(float(a) - b) <= least for a, b in pairs)


ex = Exercise("20.4", agrees=agrees, processes=())


def made(first, rng):
    """Simulated steps, and events of which several are under way at once."""
    for d, p, t, m, spec, how in GIVEN:
        width, words = int(rng.choice([1024, 2048])), int(rng.choice([4096, 8192]))
        cluster, mesh = Cluster.of(spec), Mesh(d, p, t)
        rank, span = cluster.n - 1, (4e-3, 8e-3)
        events = [*drawn(rng, mesh)] if how == "drawn" else []
        if how in ("run", "slow"):
            cluster = cluster.slow(rank, 1.3) if how == "slow" else cluster
            events, spans = simulated(width, words, (d, p, t), m, cluster)
            span = spans[rank]
        model = Model(2, width, width // 128, words, 1024)
        plan = Plan(d, t, p, recompute="full" if how == "drawn" else "none")
        asked = model, cluster, plan, m * d, Shares(kernels=plain(t))
        parts, found = predict(*asked).parts, split(events, rank, span, mesh, first)
        truth = {x: (sum(parts[y] for y in PARTS[x]), found[x]) for x in TERMS}
        text = f"data {d}, pipeline {p}, tensor {t} on {cluster.name}, {how}, {width}"
        facts = {"mesh": mesh, "edits": {SPANS: FIRST} if first != TERMS[:3] else {}}
        truth["worst"] = max(TERMS, key=lambda x, its=truth: abs(its[x][0] - its[x][1]))
        yield Case(1, text, [(asked, events, rank, span)], [truth], facts)


ex.cases(partial(made, TERMS[:3]))


@lru_cache(maxsize=16)
def simulated(width, words, sizes, m, cluster):
    """(the events of two steps, (begin, end) of each rank's second)."""
    mesh, config = Mesh(*sizes), Config(width, 2, width // 128, 1024, words)
    two_steps = solutions.of("20.4").reference("two_steps")
    options = {"backend": "sim", "device": "meta", "cluster": cluster}
    done = run(two_steps, config, mesh, m, world_size=mesh.ranks, **options)
    return done.timeline.events, done.results


def drawn(rng, mesh):
    """Events of every kind on each rank, which overlap and cross both ends."""
    own = [("compute", "mm", None), ("compute", "wait", None), ("comm", "sum", None)]
    for r in range(mesh.ranks):
        peers = [x for x in range(mesh.ranks) if mesh.axis(r, x)]
        for stream, name, peer in own + [(w, w, x) for x in peers for w in WAYS]:
            for start in (3.9e-3, 7.95e-3, *rng.uniform(0, 1e-2, 5)):
                stop = start + 1e-4 + 5e-4 * rng.random()
                yield Event(r, stream, name, start, stop, peer=peer)


def split(events, rank, span, mesh, first):
    """{term: seconds}, moment by moment."""
    (begin, end), changes = span, [(span[1], 0, "")]
    for event in events:
        term = {"compute": "compute", "collective": "data"}.get(event.kind)
        if event.rank == rank:
            term = term if event.peer is None else mesh.axis(rank, event.peer)
            changes += [(event.start, 1, term), (event.stop, -1, term)]
    begun, seconds, at = Counter(), dict.fromkeys(TERMS, 0.0), begin
    for moment, change, term in sorted(changes, key=lambda each: each[0]):
        moment = min(max(moment, begin), end)
        owner = next((x for x in first if begun[x]), "pipeline")
        seconds[owner] += moment - at
        begun[term], at = begun[term] + change, moment
    return seconds


kept = lambda case, *first: split(*case.inputs[0][1:], case.facts["mesh"], first)
gpus, events = lambda case: case.facts["mesh"].ranks, lambda case: case.inputs[0][1]
over = lambda k, c: any(e.start < c.inputs[0][3][k] < e.stop for e in events(c))
worst = lambda case: case.expected[0][case.expected[0]["worst"]]
ex.boundaries(
    overlap=lambda case: kept(case, "tensor", "data") != kept(case, "data", "tensor"),
    **{f"on_{n}_ranks": lambda case, n=n: gpus(case) == n for n in (1, 2, 3, 8)},
    recomputes=lambda case: case.inputs[0][0][2].recompute == "full",
    no_events=lambda case: not events(case),
    over_the_begin=partial(over, 0),
    over_the_end=partial(over, 1),
    worst_too_short=lambda case: worst(case)[0] < worst(case)[1],
    worst_too_long=lambda case: worst(case)[0] > worst(case)[1],
)

# Texts of the answer, for edits

BUBBLE, MINE, AXIS = ' + parts["bubble"]', "event.rank != rank or ", "axis(rank,"
OWN = "covered(before + its) - covered(before)"
SUM, ABOVE = "max(stop - max(start, reached), 0.0)", "abs(ours - theirs)"

# Mistakes of its own


def right(*wanted):
    """Are these right: the predicted figures, the simulated ones?"""

    def question(attempt):
        came, true = attempt.came[0], attempt.case.expected[0]
        return [column(came, true, k) for k in (0, 1)] == [*wanted]

    return always(both(wrong, lambda a: isinstance(a.came[0], dict), question))


ex.mistake("parts", right(False, True), {BUBBLE: ""}).says("""
    The predicted seconds are not those of the parts that the table names.
    Hint: Norms and attention compute, too. No optimizer runs, and bubbles are pipeline.
""")
ex.wrong("parts", {', "recompute")': ")"})
ex.mistake("worst", right(True, True), {ABOVE: "theirs - ours"}).says("""
    All figures are right, but it names the wrong term as the worst.
    Hint: Compare the differences in seconds, not as shares, and without their signs.
""")
ex.wrong("worst", {ABOVE: f"{ABOVE} / max(ours, 1e-12)"})
ex.slip("hidden too", {OWN: "covered(its)"}).says("""
    It counts a moment in several terms, as that of a message behind a product.
    Hint: Each moment belongs to one term only, the first of those that claim it.
""")
inside = {"event.stop <= begin:": "event.stop <= begin or end <= event.start:"}
ex.slip("summed", inside | {SUM: "stop - start"}).says("""
    It adds up the durations of events, also of those that are under way at once.
    Hint: Measure the time that events cover: two that are side by side last as one.
""")
ex.slip("summed", inside | {OWN: "sum(stop - start for start, stop in its)"})
ex.slip("both steps", {"asked[2], span": "asked[2], (0.0, span[1])"}).says("""
    It counts from the start of the run, so the first step is in its figures, too.
    Hint: When does the second step begin? The span says it. Cut every event to it.
""")
ex.slip("all ranks", {MINE: "", AXIS: "axis(event.rank,"}).says("""
    It counts the events of all ranks.
    Hint: Whose step is judged? Every event says whose it is.
""")

# Answers to which the general sentences apply

ex.wrong("wrong", {SPANS: 'spans = {"compute": [], "data": [], "tensor": []}'})
ex.wrong("wrong", {"max(event.start, begin)": "event.start"})
ex.right({"return table |": "return {k: [*v] for k, v in table.items()} |"})

ex.variation(
    "b",
    varied="which term a moment belongs to: messages come before computing",
    differs="It puts computing before messages, but here messages come first.",
    cases=partial(made, ("tensor", "data", "compute")),
)

scaled = lambda by, table, n: (
    table | {term: tuple(by * x for x in table[term]) for term in TERMS}
)
ex.variation(
    "c",
    varied="the figures are milliseconds",
    differs="The figures are seconds, but here they are milliseconds.",
    back=partial(scaled, 1e-3),
    shows=partial(scaled, 1e3),
)
