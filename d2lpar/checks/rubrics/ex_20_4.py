"""20.4 Predicted and simulated."""

import functools

import torch

from ...launch.run import now, run
from ...mesh import MeshModel
from ...mesh.gpt_parts import Config
from ...mesh.grid import Mesh
from ...planning import Model, Plan, Shares, predict
from ...planning.times import plain
from ...report.events import merged
from ...sim.cluster import Cluster
from ..equality import near
from ..judging import Case, Exercise
from ..signs import slips, wrong

# data, pipeline, tensor; micro-batches, cluster, how much slower the last rank is
GIVEN = [(2, 1, 1, 1, "2x1xA100", 1.0), (1, 2, 1, 2, "2xV100", 1.0)]
GIVEN += [(1, 1, 2, 2, "2xA100", 1.0), (1, 2, 2, 2, "4xA100", 1.3)]
GIVEN += [(2, 2, 1, 2, "2x2xA100", 1.0), (2, 1, 2, 1, "4xH100", 1.2)]
BLOCKS, WIDTHS, WORDS = 2, (1024, 2048), (4096, 8192)
PARTS = ("products", "attention", "elementwise", "recompute")
FIRST = ("compute", "tensor", "data")
SLIPS = "hidden too", "no bubble", "optimizer", "both steps", "share", "signed"
SLIPS += "no waiting", "all ranks", "products only"


def cases(rng, first=FIRST):
    """Every axis alone, and pairs of them; also with a rank that is slow."""
    for d, p, t, m, spec, slow in GIVEN:
        width, words = (int(rng.choice(some)) for some in (WIDTHS, WORDS))
        config = Config(width, BLOCKS, width // 128, 1024, words)
        plan, cluster = Plan(data=d, pipeline=p, tensor=t), Cluster.of(spec)
        if slow > 1:
            cluster = cluster.slow(plan.ranks - 1, slow)
        events, spans = simulated(config, (d, p, t), m, cluster)
        rank = busiest(events, spans)
        model = Model(BLOCKS, width, width // 128, words, 1024)
        asked = model, cluster, plan, m * d, Shares(kernels=plain(t))
        given = asked, events, rank, spans[rank]
        text = f"data {d}, pipeline {p}, tensor {t} on {cluster.name}"
        text += f", {m} micro-batches, width {width}, rank {rank}"
        yield Case(1, text, [given], truth=functools.partial(table, *given, first))


@functools.lru_cache(maxsize=16)
def simulated(config, sizes, m, cluster):
    """(the events of two steps, (begin, end) of each rank's second)."""
    mesh = Mesh(*sizes)
    world = {"backend": "sim", "device": "meta", "cluster": cluster}
    made = run(two_steps, config, mesh, m, world_size=mesh.ranks, **world)
    return made.timeline.events, made.results


def two_steps(config, mesh, m):
    model = MeshModel(config, mesh, micro_batches=m).to(torch.bfloat16)
    words = torch.zeros(2, m * mesh.sizes["data"], config.context, dtype=torch.int64)
    model.step(*words)
    begin = now()
    model.step(*words)
    return begin, now()


def busiest(events, spans):
    """The rank that computes longest in its second step."""
    ranks = range(len(spans))
    return max(ranks, key=lambda r: covered(kept(events, r, spans[r])["compute"]))


def kept(events, rank, span, mesh=None, slip=""):
    """{term: the times in which it is under way on the rank, within the span}."""
    begin, end = span
    times = {term: [] for term in FIRST}
    for event in events:
        if event.rank != rank and slip != "all ranks":
            continue
        term = term_of(event, mesh)
        start, stop = max(event.start, begin), min(event.stop, end)
        if term and start < stop:
            times[term].append(event._replace(start=start, stop=stop))
    return times


def term_of(event, mesh):
    """ "compute", "tensor" or "data"; None of what is left to the pipeline."""
    if event.kind in ("compute", "collective"):
        return "compute" if event.kind == "compute" else "data"
    if event.peer is None or mesh is None:
        return None
    axis = mesh.axis(event.rank, event.peer)
    return axis if axis in FIRST else None


def covered(events):
    return sum(stop - start for start, stop in merged(events))


def measured(events, rank, span, plan, first, slip=""):
    """{term: seconds}, which add up to those of the step."""
    begin, end = (0.0, span[1]) if slip == "both steps" else span
    mesh = Mesh(plan.data, plan.pipeline, plan.tensor)
    times = kept(events, rank, (begin, end), mesh, slip)
    found, before = {}, []
    for term in first:
        known = covered(before)
        before = before + times[term]
        own = covered(times[term]) if slip == "hidden too" else covered(before) - known
        found[term] = own
    found["pipeline"] = end - begin - covered(before)
    if slip == "no waiting":
        its = [e for e in events if e.rank == rank and e.peer is not None]
        its = [e for e in its if mesh.axis(rank, e.peer) == "pipeline"]
        its = [e for e in its if begin <= e.start < end]
        found["pipeline"] = covered(its + before) - covered(before)
    return found


def table(asked, events, rank, span, first, slip=""):
    """[{term: (predicted, simulated), "worst": the term that is farthest off}]."""
    parts = predict(*asked).parts
    ours = {"compute": sum(parts[name] for name in PARTS), "tensor": parts["tensor"]}
    ours |= {"pipeline": parts["pipeline"] + parts["bubble"], "data": parts["data"]}
    if slip == "no bubble":
        ours["pipeline"] = parts["pipeline"]
    if slip == "optimizer":
        ours["compute"] += parts["optimizer"]
    if slip == "products only":
        ours["compute"] = parts["products"]
    theirs = measured(events, rank, span, asked[2], first, slip)
    off = {term: abs(theirs[term] - ours[term]) for term in ours}
    if slip == "share":
        off = {term: off[term] / max(ours[term], 1e-12) for term in off}
    if slip == "signed":
        off = {term: theirs[term] - ours[term] for term in ours}
    found = {term: (ours[term], theirs[term]) for term in ours}
    return [found | {"worst": max(off, key=off.get)}]


def agrees(came, wanted, case):
    """The same term is the worst, and all figures are right to six digits."""
    if not isinstance(came, dict) or came.keys() != wanted.keys():
        return False
    if came["worst"] != wanted["worst"]:
        return False
    least = 1e-7 * sum(seconds for _, seconds in list(wanted.values())[:-1])
    return all(
        near(came[term], wanted[term], 1e-6) or tiny(came[term], wanted[term], least)
        for term in wanted
        if term != "worst"
    )


def tiny(came, wanted, least):
    """Two numbers that differ by less than the rounding of all others."""
    try:
        pairs = list(zip(came, wanted, strict=True))
        return all(abs(float(a) - b) <= least for a, b in pairs)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def only_worst(attempt):
    """All figures are right, and another term is named."""
    if not wrong(attempt) or not isinstance(attempt.came[0], dict):
        return False
    came, wanted = attempt.came[0], attempt.case.expected[0]
    return agrees(came | {"worst": wanted["worst"]}, wanted, attempt.case)


exercise = Exercise(
    "20.4",
    cases,
    [],
    {
        "no table": lambda a: wrong(a) and not isinstance(a.came[0], dict),
        **slips(*SLIPS),
        "worst": only_worst,
    },
    agrees=agrees,
    processes=(),
)
