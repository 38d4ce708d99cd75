"""20.4 Predicted and simulated: defend(asked, events, rank, span)."""

import bisect

from d2lpar.mesh import Mesh
from d2lpar.planning import predict
from zoo import right, wrong

TERMS = "compute", "tensor", "data"


def predicted(asked):
    parts = predict(*asked).parts
    names = "products", "attention", "elementwise", "recompute"
    return {
        "compute": sum(parts[name] for name in names),
        "tensor": parts["tensor"],
        "data": parts["data"],
        "pipeline": parts["pipeline"] + parts["bubble"],
    }


def spans_of(asked, events, rank, span, ranks=None):
    """{term: [(start, stop)]} within the span."""
    mesh = Mesh(asked[2].data, asked[2].pipeline, asked[2].tensor)
    found = {term: [] for term in TERMS}
    for event in events:
        if event.rank not in (ranks or [rank]):
            continue
        term = {"compute": "compute", "collective": "data"}.get(event.kind)
        if event.peer is not None:
            term = mesh.axis(event.rank, event.peer)
        start, stop = max(event.start, span[0]), min(event.stop, span[1])
        if term in TERMS and start < stop:
            found[term].append((start, stop))
    return found


def length(spans):
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def simulated(spans, begin, end, order=TERMS):
    seconds, known, before = {}, 0.0, []
    for term in order:
        before = before + spans[term]
        seconds[term] = length(before) - known
        known += seconds[term]
    return seconds | {"pipeline": end - begin - known}


def table(ours, theirs, worst=None):
    found = {term: (ours[term], theirs[term]) for term in ours}
    off = {term: abs(ours[term] - theirs[term]) for term in ours}
    return found | {"worst": worst or max(off, key=off.get)}


@right
def by_covered_time(asked, events, rank, span):
    spans = spans_of(asked, events, rank, span)
    return table(predicted(asked), simulated(spans, *span))


@right
def moment_by_moment(asked, events, rank, span):
    """Cut the step wherever something begins or ends, and ask whose each piece is."""
    spans = spans_of(asked, events, rank, span)
    cuts = {*span, *(t for each in spans.values() for pair in each for t in pair)}
    cuts = sorted(cuts)
    owner = ["pipeline"] * (len(cuts) - 1)
    for term in reversed(TERMS):
        for start, stop in spans[term]:
            for k in range(bisect.bisect_left(cuts, start), len(owner)):
                if cuts[k] >= stop:
                    break
                owner[k] = term
    seconds = dict.fromkeys([*TERMS, "pipeline"], 0.0)
    for term, a, b in zip(owner, cuts, cuts[1:], strict=False):
        seconds[term] += b - a
    return table(predicted(asked), seconds)


@wrong("no table")
def four_pairs(asked, events, rank, span):
    return list(by_covered_time(asked, events, rank, span).values())


@wrong("hidden too")
def whole_messages(asked, events, rank, span):
    spans = spans_of(asked, events, rank, span)
    theirs = {term: length(spans[term]) for term in TERMS}
    left = simulated(spans, *span)["pipeline"]
    return table(predicted(asked), theirs | {"pipeline": left})


@wrong("no bubble")
def stage_messages_alone(asked, events, rank, span):
    ours = predicted(asked)
    ours["pipeline"] = predict(*asked).parts["pipeline"]
    return table(ours, simulated(spans_of(asked, events, rank, span), *span))


@wrong("optimizer")
def all_that_is_predicted(asked, events, rank, span):
    ours = predicted(asked)
    ours["compute"] += predict(*asked).parts["optimizer"]
    return table(ours, simulated(spans_of(asked, events, rank, span), *span))


@wrong("both steps")
def from_the_start(asked, events, rank, span):
    return by_covered_time(asked, events, rank, (0.0, span[1]))


@wrong("share")
def in_percent(asked, events, rank, span):
    ours = predicted(asked)
    theirs = simulated(spans_of(asked, events, rank, span), *span)
    off = {t: abs(theirs[t] - ours[t]) / max(ours[t], 1e-12) for t in ours}
    return table(ours, theirs, max(off, key=off.get))


@wrong("signed")
def longest_above(asked, events, rank, span):
    ours = predicted(asked)
    theirs = simulated(spans_of(asked, events, rank, span), *span)
    return table(ours, theirs, max(ours, key=lambda t: theirs[t] - ours[t]))


@wrong("no waiting")
def messages_between_stages(asked, events, rank, span):
    plan = asked[2]
    mesh = Mesh(plan.data, plan.pipeline, plan.tensor)
    spans = spans_of(asked, events, rank, span)
    theirs, before = simulated(spans, *span), sum(spans.values(), [])
    mine = [e for e in events if e.rank == rank and e.peer is not None]
    mine = [e for e in mine if span[0] <= e.start < span[1]]
    more = [(e.start, e.stop) for e in mine if mesh.axis(rank, e.peer) == "pipeline"]
    theirs["pipeline"] = length(before + more) - length(before)
    return table(predicted(asked), theirs)


@wrong("all ranks")
def of_everybody(asked, events, rank, span):
    ranks = {event.rank for event in events}
    spans = spans_of(asked, events, rank, span, ranks)
    return table(predicted(asked), simulated(spans, *span))


@wrong("products only")
def products(asked, events, rank, span):
    ours = predicted(asked)
    ours["compute"] = predict(*asked).parts["products"]
    return table(ours, simulated(spans_of(asked, events, rank, span), *span))


@wrong("worst")
def always_the_pipeline(asked, events, rank, span):
    ours = predicted(asked)
    theirs = simulated(spans_of(asked, events, rank, span), *span)
    return table(ours, theirs, "pipeline")


@wrong("wrong")
def messages_first(asked, events, rank, span):
    spans = spans_of(asked, events, rank, span)
    order = ("tensor", "data", "compute")
    return table(predicted(asked), simulated(spans, *span, order))
