"""15.3 Which axis inside the node."""

import itertools
from functools import partial

from ...mesh.grid import AXES, Mesh
from .. import signs
from ..judging import Case, Exercise

# data, pipeline, tensor, ranks of a node, and how the bytes of the axes are ranked
SIZES = [(2, 2, 2, 4, "tensor"), (2, 4, 2, 4, "pipeline"), (4, 1, 4, 4, "tensor")]
SIZES += [(4, 2, 2, 8, "data"), (2, 2, 8, 8, "tensor"), (1, 1, 4, 2, "tensor")]
SIZES += [(3, 2, 2, 4, "data"), (4, 2, 1, 2, "data"), (2, 3, 4, 6, "pipeline")]
SIZES += [(8, 2, 2, 4, "even"), (2, 2, 4, 16, "tensor")]

SLIPS = "tensor last", "no ring", "per group"
SLIPS += "last of equal", "reversed", "the most", "sizes in that order"


def cases(rng):
    """Nodes into which one axis fits, two axes, all, or none; close bytes, too."""
    for d, p, t, node, most in SIZES:
        sent = [int(x) for x in rng.integers(50, 100, size=3)]
        if most != "even":
            sent[AXES.index(most)] *= 4
        text = f"data {d}, pipeline {p}, tensor {t}, {node} ranks in a node"
        given = (d, p, t), node, tuple(sent)
        yield Case(1, text, [given], truth=partial(best, *given))


def crossing(mesh, node, sent, slip=""):
    """Bytes that leave their node, if each rank sends to the next of its groups."""
    total = 0
    for axis, each in zip(AXES, sent, strict=True):
        for group in mesh.every_group(axis):
            ring = [*group, group[0]] if slip != "no ring" else group
            pairs = itertools.pairwise(ring)
            away = [a // node != b // node for a, b in pairs]
            if slip == "per group":
                total += each * any(away)
            else:
                total += each * sum(away)
    return total


def best(sizes, node, sent, slip=""):
    """[the order with the least crossing; of equal ones the first]."""
    if slip.startswith("most bytes"):
        times = sizes if slip == "most bytes, all ranks" else (1, 1, 1)
        total = [each * k for each, k in zip(sent, times, strict=True)]
        return [tuple(sorted(AXES, key=dict(zip(AXES, total, strict=True)).get))]
    if slip == "tensor last":
        return [AXES]
    orders = list(itertools.permutations(AXES))
    if slip == "last of equal":
        orders.reverse()
    turned = lambda order: [sizes[AXES.index(axis)] for axis in order]
    as_given = lambda order: turned(order) if slip == "sizes in that order" else sizes
    mesh = lambda order: Mesh(*as_given(order), order=order)
    least = max if slip == "the most" else min
    order = least(orders, key=lambda order: crossing(mesh(order), node, sent, slip))
    return [order[::-1] if slip == "reversed" else order]


def agrees(came, wanted, case):
    """The same three names, in a tuple or a list."""
    return isinstance(came, list | tuple) and tuple(came) == wanted


def no_order(attempt):
    """It is no tuple or list of the three names."""
    came = attempt.came[0] if attempt.came else AXES
    three = isinstance(came, list | tuple) and set(map(str, came)) == set(AXES)
    return signs.wrong(attempt) and not three


exercise = Exercise(
    "15.3",
    cases,
    [],
    {
        "no order": no_order,
        "most bytes last": signs.slip("most bytes last", "most bytes, all ranks"),
        **{name: signs.slip(name) for name in SLIPS},
    },
    agrees=agrees,
    processes=(),
)
