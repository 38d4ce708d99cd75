"""15.3 Which axis inside the node: best_order(sizes, per_node, sent)."""

import itertools
import math

from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case
from d2lpar.checks.signs import wrong
from d2lpar.mesh.grid import AXES

# data, pipeline, tensor, ranks of a node, and which axis sends most, if one does
SIZES = [(2, 2, 2, 4, 2), (2, 4, 2, 4, 1), (4, 1, 4, 4, 2), (4, 2, 2, 8, 0)]
SIZES += [(2, 2, 8, 8, 2), (1, 1, 4, 2, 2), (3, 2, 2, 4, 0), (4, 2, 1, 2, 0)]
SIZES += [(2, 3, 4, 6, 1), (8, 2, 2, 4, None), (2, 2, 4, 16, 2), (1, 1, 1, 2, None)]
SIZES += [(1, 2, 4, 4, 1), (2, 2, 3, 1, 0), (3, 1, 2, 4, 0)]
LARGE, HUGE = [2**24 + 1, 2**24, 5], [2**60 + 3, 2**60 + 2, 2**60 + 1]


def agrees(came, wanted, case):
    """The same three names, in a tuple or a list."""
    return isinstance(came, list | tuple) and tuple(came) == tuple(wanted)


ex = Exercise("15.3", reference="leaving_reference", agrees=agrees, processes=())


@ex.cases
def cases(rng, leaving):
    """Nodes into which one axis fits, two axes, all, or none; close bytes, too."""
    for *sizes, node, most in SIZES:
        sent = [int(x) for x in rng.integers(50, 100, size=3)]
        sent = [x * (4 if most == k else 1) for k, x in enumerate(sent)]
        yield draw(leaving, sizes, node, sent)
    yield draw(leaving, (2, 2, 2), 2, LARGE)
    yield draw(leaving, (2, 3, 2), 3, HUGE)  # floats would make them equal
    yield draw(leaving, (2, 3, 2), 3, [50] * 3)


def draw(leaving, sizes, node, sent):
    """One case."""
    given = tuple(sizes), node, tuple(sent)
    orders = [*itertools.permutations(AXES)]
    costs = {order: leaving(order, *given) for order in orders}
    text = "data {}, pipeline {}, tensor {}, {} ranks in a node".format(*sizes, node)
    return Case(1, text, [given], [min(orders, key=costs.get)], {"costs": costs})


sizes = lambda case: case.inputs[0][0]
node = lambda case: case.inputs[0][1]
ranks = lambda case: math.prod(sizes(case))
costs = lambda case: sorted(case.facts["costs"].values())
ex.boundaries(
    one_rank=lambda case: ranks(case) == 1,
    one_along_data=lambda case: sizes(case)[0] == 1 < ranks(case),
    one_along_pipeline=lambda case: sizes(case)[1] == 1 < ranks(case),
    one_along_tensor=lambda case: sizes(case)[2] == 1 < ranks(case),
    no_power_of_two=lambda case: 3 in sizes(case),
    one_node=lambda case: node(case) >= ranks(case) > 1,
    nothing_fits=lambda case: node(case) == 1,
    last_node_not_full=lambda case: 0 < ranks(case) % node(case) < ranks(case),
    beyond_floats=lambda case: min(case.inputs[0][2]) > 2**53,
    ties=lambda case: costs(case)[0] == costs(case)[1] < costs(case)[-1],
    all_equal=lambda case: costs(case)[0] == costs(case)[-1] > 0,
    no_float32=lambda case: case.inputs[0][2] == tuple(LARGE),
)

# Texts of the answer, for edits

COUNT = "leaving_reference(order, sizes, per_node, sent)"
ORDERS = 'itertools.permutations(("data", "pipeline", "tensor"))'
START = "orders = "

# Mistakes of its own

by_bytes = "each = dict(zip(('data', 'pipeline', 'tensor'), sent))\n    "
by_bytes += f"return sorted(each, key=each.get)\n    {START}"
ex.slip("most bytes last", {START: by_bytes}).says("""
    It sorts the axes by their bytes, and never looks at the nodes.
    Hint: Which messages cross? An axis may fit into a node and a larger one not. Count
    the messages that leave their node, for each order.
""")
usual = f"return 'data', 'pipeline', 'tensor'\n    {START}"
ex.slip("tensor last", {START: usual}).says("""
    It always puts tensor last.
    Hint: What does the order change, and what does it cost? Here another axis may send
    more.
""")
turned = "[dict(zip(('data', 'pipeline', 'tensor'), sizes))[axis] for axis in order]"
ex.slip("sizes in that order", {COUNT: COUNT.replace("sizes", turned)}).says("""
    It gives `Mesh` the sizes in the order of the axes.
    Hint: Which sizes does `Mesh` take first? Always data, pipeline and tensor, whatever
    their order is: `Mesh(*sizes, order=order)`.
""")
ex.slip("reversed", {f"{COUNT}\n    )": f"{COUNT}\n    )[::-1]"}).says("""
    It returns the right axes, with the fastest one first.
    Hint: Which axis does an order name first? The slowest, as in `Mesh`.
""")
ex.slip("last of equal", {ORDERS: f"[*{ORDERS}][::-1]"}).says("""
    Of several orders that are equally good, it takes a later one.
    Hint: Which of equal ones does `min` keep? The first, so they have to come in the
    order of the text.
""")


def dearer(attempt):
    """With the order that came, more bytes leave their node than with the best."""
    costs, came = attempt.case.facts["costs"], attempt.came[0]
    order = tuple(map(str, came)) if isinstance(came, list | tuple) else came
    return wrong(attempt) and costs.get(order, 0) > min(costs.values())


ex.mistake("dearer", dearer, {COUNT: COUNT.replace("sent", "sizes")}).says("""
    It returns an order for which more bytes leave their node than for another.
    Hint: Which messages do you count? Compare with `leaving_reference`: the last rank
    of a group sends, too, and a ring over four nodes crosses at least four times.
""")
ex.wrong("dearer", {"min(": "max("})
no_way_back = """sum(
            x * sum(a // per_node != b // per_node for a, b in itertools.pairwise(g))
            for axis, x in zip(('data', 'pipeline', 'tensor'), sent)
            for g in Mesh(*sizes, order=order).every_group(axis))"""
ex.wrong("dearer", {COUNT: no_way_back})

# Answers to which the general sentences apply

ex.wrong("wrong", {"return min(": "return sum(sent), min("})
ex.right({"return min(": "return list(min(", f"{COUNT}\n    )": f"{COUNT}\n    ))"})
ex.right({ORDERS: f"sorted({ORDERS})"})

ex.variation(
    "b",
    varied="the order is returned from the fastest axis on",
    differs="The order begins with the slowest axis, as in the public exercise; here "
    "the fastest comes first.",
    turned=lambda order, n: order[::-1],
)
