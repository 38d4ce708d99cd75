"""05.2 Broadcast something big."""

from functools import partial

import torch

from ...sim.cluster import Cluster
from .. import requirements as rows
from .. import signs
from ..judging import Case, Exercise, argument, ranks
from ..signs import both, breaks
from .chapter_05 import (
    SPARE,
    TWO_NODES,
    distances,
    on_ranks,
    to_itself,
    totals,
    two_nodes,
)

ALPHA, BETA = 1e-5, 1e-8  # 10 us, 100 MB/s
KINDS = {1: "int64", 3: "float64", 9: "float64", 250: "float32", 1003: "float64"}


def cases(rng):
    """Tensors of several types, from empty to 8 KB, other numbers on each rank."""
    for n, S in on_ranks([*KINDS]):
        yield draw(rng, n, S, KINDS[S], int(rng.integers(n)))
        if (n, S) == (2, 1003):
            yield draw(rng, n, 0, "float64", 0)
        if (n, S) == (4, 1003):
            root = int(rng.integers(1, n))
            yield draw(rng, n, 1003, "float64", root, unequal=True)
            yield draw(rng, n, 30_011, "float64", root)


def draw(rng, n, S, kind, root, unequal=False):
    """One case."""
    values = torch.from_numpy(rng.uniform(1, 1e9, size=(n, S)))
    tensors = values.to(getattr(torch, kind))
    width, slow = tensors.element_size(), {"cluster": Cluster.ideal(n, ALPHA, BETA)}
    return Case(
        n,
        f"{ranks(n)}, root {root}, {S:,} elements of {kind}" + TWO_NODES * unequal,
        [(x.clone(), root) for x in tensors],
        facts={"root": root, "S": S, "width": width, "unequal": unequal},
        options=two_nodes(n) if unequal else slow,
        traced=S > 10_000,
        truth=partial(spread, tensors, root),
    )


def spread(tensors, root, slip=""):
    """What each rank has: [n, S] -> n tensors."""
    n, S = tensors.shape
    if slip == "nothing moves":
        return list(tensors)
    if slip == "no way round":
        return [*tensors[:root], *[tensors[root]] * (n - root)]
    end = S // n * n if slip == "tail" else S
    first = tensors[0 if slip == "root" else root, :end]
    return [torch.cat([first, own[end:]]) for own in tensors]


def equal(came, wanted, case):
    """Copies are equal to the bit."""
    return came.dtype == wanted.dtype and torch.equal(came, wanted)


def most_bytes(case):
    """2(n-1) P."""
    return 2 * (case.n - 1) * -(-case.facts["S"] // case.n) * case.facts["width"]


def most_rounds(case):
    """ceil(log2 n) + n-1."""
    return len(distances(case.n)) + case.n - 1


def longest(case):
    """Of these rounds and bytes, where the links are equal."""
    time = most_rounds(case) * ALPHA + most_bytes(case) * BETA
    return float("inf") if case.facts["unequal"] else time


BYTES = rows.bytes_sent(most_bytes, exactly=False)
ROUNDS = rows.rounds(most_rounds, exactly=False)
SECONDS = rows.seconds(longest, exactly=False)
MEMORY = rows.extra_memory(lambda case: SPARE + case.noise)


def large(*questions):
    """These, where ways differ: right, on 5 ranks or more, with a large tensor."""
    right = lambda a: a.right and a.case.n > 4 and a.case.facts["S"] > 1000
    return both(right, *questions)


def wholes(attempt):
    """Tensors that the busiest rank sends, where nothing travels in pieces; else 0."""
    case = attempt.case
    size = case.facts["S"] * case.facts["width"]
    whole = totals(attempt) == case.n - 1
    return max(attempt.run.bytes_sent) / size if whole else 0


def too_early(attempt):
    """A rank that is not the root sends before its first receive is over."""
    rows = attempt.run.timeline.rows.items()
    root = attempt.case.rank(attempt.case.facts["root"])
    others = [row for r, row in rows if r != root and {"recv", "send"} <= {*row}]
    return any(row["send"][0].start < row["recv"][0].stop for row in others)


def in_a_chain(attempt):
    """Each rank sends to one other at most."""
    return (attempt.run.traffic > 0).sum(axis=1).max() == 1


def root_serves_all(attempt):
    to = attempt.run.traffic[attempt.case.facts["root"]]
    return (to > 0).sum() == attempt.case.n - 1


exercise = Exercise(
    "05.2",
    cases,
    [BYTES, ROUNDS, SECONDS, MEMORY, rows.from_messages(), rows.all_waited()],
    {
        "not in place": signs.not_in_place(),
        **signs.slips("root", "no way round", "tail", "nothing moves"),
        "too early": both(signs.wrong, too_early),
        "places": signs.only(lambda case: case.facts["root"]),
        "chunk": signs.only(lambda c: len(torch.empty(c.facts["S"]).chunk(c.n)) < c.n),
        "to itself": to_itself,
        "flat": large(lambda a: wholes(a) == a.case.n - 1),
        "tree": large(lambda a: wholes(a) == len(distances(a.case.n))),
        "all-reduce": large(
            lambda a: min(a.run.bytes_sent) > 0.95 * most_bytes(a.case)
        ),
        "bytes": breaks(BYTES),
        "line": large(lambda a: wholes(a) == 1),
        "chain": large(breaks(ROUNDS), in_a_chain),
        "few pieces": large(breaks(SECONDS), in_a_chain),
        "one by one": large(breaks(ROUNDS), root_serves_all),
        "buffer": breaks(MEMORY),
    },
    outcome=argument(0),
    agrees=equal,
)
