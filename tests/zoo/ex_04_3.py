"""04.3 Name the cycle: cycles() names who waits for whom in four programs."""

from collections import namedtuple

from zoo import right, wrong

A = [(0, 1), (1, 0), (2, 3), (3, 2)]
B = [(1, 2), (2, 1)]
C = [(0, 3), (3, 1), (1, 0)]


@right
def in_another_order():
    return {"D": None, "C": C[::-1], "B": B[::-1], "A": A[2:] + A[:2]}


@right
def sets_and_lists():
    pairs = [[3, 2], [1, 0], [0, 1], [2, 3]]
    return {"A": pairs, "B": set(B), "C": tuple(C), "D": None, "E": "not asked"}


@wrong("queue")
def all_that_wait():
    return {"A": A, "B": [(0, 1), *B, (3, 0)], "C": [*C, (2, 1)], "D": None}


@wrong("buffered")
def messages_leave_at_once():
    return {"A": None, "B": B, "C": None, "D": None}


@wrong("swapped")
def arrows_turned_round():
    turned = {"A": A, "B": B, "C": C}
    return {k: [(b, a) for a, b in v] for k, v in turned.items()} | {"D": None}


@wrong("part")
def only_one_knot_in_a():
    return {"A": A[:2], "B": B, "C": C, "D": None}


@wrong("one by one")
def d_hangs_too():
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    return {"A": A, "B": B, "C": C, "D": ring}


@wrong("form")
def a_list_of_ranks():
    return {"A": [0, 1, 2, 3], "B": [1, 2], "C": [0, 3, 1], "D": None}


@wrong("form")
def one_program_only():
    return {"A": A}


@wrong("later call")
def another_cycle():
    return {"A": A, "B": B, "C": [(0, 1), (1, 2), (2, 0)], "D": None}


@wrong("wrong")
def those_behind_the_circle():
    return {"A": A, "B": [(0, 1), (3, 0)], "C": C, "D": None}


@right
def with_names():
    Arrow = namedtuple("Arrow", "tail head")
    arrows = lambda pairs: [Arrow(*pair) for pair in pairs]
    return {"A": arrows(A), "B": arrows(B), "C": arrows(C), "D": None}


@wrong("form")
def nobody_where_the_program_ends():
    """the value is None there, no empty list."""
    return {"A": A, "B": B, "C": C, "D": []}


@wrong("buffered")
def nobody_where_the_program_hangs():
    return {"A": A, "B": B, "C": [], "D": None}
