"""11.3 When is the step over?: step_seconds(forward, backward, needs, moved, cut)."""

from itertools import accumulate

from d2lpar.checks.equality import near
from d2lpar.checks.exercise import Exercise
from d2lpar.checks.judging import Case

# Two branches that meet in the last layer
BRANCHES = [(-1,), (0,), (0,), (1,), (2,), (3,), (4,), (5, 6)]
UNEVEN = [(-1,), (0,), (1,), (2, 0)]  # its backward pass takes other times than twice
CROSSED = [(-1,), (0,), (1, 0), (2, 0), (3, 1), (4, 0, 1), (5,)]
TOGETHER = [(-1,), (0,), (1,), (2, 1, 0), (3, 0)]

agrees = lambda came, wanted, case: near(came, wanted, 1e-6)
ex = Exercise("11.3", agrees=agrees, processes=())


@ex.cases
def cases(rng):
    """U-Nets, chains and webs of skips, on fast and on slow lines."""
    chain = [(i - 1,) for i in range(6)]
    webs = [(unet_needs(levels), None) for levels in (2, 3, 4)]
    webs += [([(-1,), (0,), (1, 0), (2,), (3, 0, 1), (4, 2)], None), (BRANCHES, 5)]
    webs += [(chain[:2], 1), (chain, 1), (chain, 5), (CROSSED, 3), (TOGETHER, 3)]
    webs += [(web(rng, L), None) for L in (4, 7, 9, 12)]
    for needs, cut in webs:
        L = len(needs)
        for slow in (0.3, 1.0, 4.0):
            forward = rng.uniform(0.5, 2, size=L).tolist()
            moved = (rng.uniform(0.2, 2, size=L) * slow).tolist()
            here = cut or int(rng.integers(1, L))
            yield step_case(forward, [2 * t for t in forward], needs, moved, here)
    yield step_case([1.0, 2.0, 1.0, 2.0], [5.0, 1.0, 2.0, 1.0], UNEVEN, [3.0] * 4, 2)
    yield step_case([2, 1, 3, 1, 2, 1, 1], [1, 4] * 3 + [2], CROSSED, [0] * 7, 3)
    forward = rng.uniform(5e-4, 2e-3, size=len(unet_needs(2))).tolist()
    moved = rng.uniform(2e-4, 2e-3, size=len(forward)).tolist()
    yield step_case(forward, [2 * t for t in forward], unet_needs(2), moved, 3)


def step_case(*given):
    """One step to be predicted."""
    L, slow, cut = len(given[0]), min(given[3]), given[4]
    text = f"{L} layers, cut before {cut}, messages from {slow:.2g} s on"
    return Case(1, text, [given], [seconds_of_a_step(*given)])


def unet_needs(levels):
    """What the layers of a U-Net take, with two layers a level."""
    needs = [(i - 1,) for i in range(2 * levels)]
    for k in reversed(range(levels - 1)):
        at = len(needs)
        needs += [(at - 1,), (at, 2 * k + 1), (at + 1,)]
    return [*needs, (len(needs) - 1,)]


def web(rng, L):
    """Each layer takes the one before, and some take one or two from far back."""
    needs = []
    for i in range(L):
        far = rng.choice(max(i - 1, 1), size=min(2, max(i - 1, 1)), replace=False)
        count = int(rng.integers(0, 3)) if i > 1 else 0
        needs.append((i - 1, *far[:count].tolist()))
    return needs


def takers(needs, cut):
    """{value that crosses: the layers of rank 1 that take it}."""
    behind = range(cut, len(needs))
    found = {v: [i for i in behind if v in needs[i]] for v in range(cut)}
    return {v: layers for v, layers in found.items() if layers}


def seconds_of_a_step(forward, backward, needs, moved, cut):
    """When rank 0 has finished its backward pass."""
    crossing, clock, over = takers(needs, cut), 0.0, {}
    there = arrivals(crossing, [*accumulate(forward[:cut])], moved)
    for i in range(cut, len(needs)):
        clock = max([clock, *(there.get(v, 0.0) for v in needs[i])]) + forward[i]
    for i in reversed(range(cut, len(needs))):
        clock += backward[i]
        over[i] = clock
    final = {v: over[min(layers)] for v, layers in crossing.items()}
    back = arrivals(sorted(final, key=final.get), final, moved)
    return max(back.values()) + sum(backward[:cut])


def arrivals(values, ready, moved):
    """{value: when it is there}, of values in the order in which they leave."""
    line, there = 0.0, {}
    for v in values:
        there[v] = line = max(ready[v], line) + moved[v]
    return there


crossing = lambda case: takers(*case.inputs[0][2::2])
firsts = lambda case: [min(layers) for layers in crossing(case).values()]
ordered = lambda case: [sorted(firsts(case)), sorted(firsts(case))[::-1]]
layers = lambda case: len(case.inputs[0][0])
ex.boundaries(
    one_layer_on_each=lambda case: layers(case) == 2,
    one_layer_on_rank_0=lambda case: case.inputs[0][4] == 1 < layers(case) - 1,
    one_layer_on_rank_1=lambda case: case.inputs[0][4] == layers(case) - 1 > 1,
    chain=lambda case: len(crossing(case)) == 1 and layers(case) > 2,
    three_takers=lambda case: max(map(len, crossing(case).values())) > 2,
    final_together=lambda case: len({*firsts(case)}) < len(firsts(case)),
    in_no_order=lambda case: firsts(case) not in ordered(case),
    free_messages=lambda case: not any(case.inputs[0][3]),
)

# Texts of the answer, for edits

DOWN, UP = "line = max(line, clock) + moved[i]", "line = max(line, clock) + moved[v]"
FIRST = "in reversed(range(cut, L)):  # the first"
TAKES, NEXT = "there[v] for v in needs[i] if v in there", "in first if first[v] == i"
RETURN = "return line + sum"

# Mistakes of its own

no_queue = {DOWN: "line = clock + moved[i]", UP: "line = max(line, clock + moved[v])"}
ex.slip("no queue", no_queue).says("""
    It lets messages travel side by side, but the line carries one at a time.
    Hint: When may a message leave whose line is in use? It leaves when it is complete
    and the line is free.
""")
for line in no_queue:
    ex.slip("no queue", {line: no_queue[line]})
ends = {DOWN: DOWN.replace("clock", "sum(forward[:cut])")}
ends[UP] = UP.replace("clock", "clock + sum(backward[cut:i])")
ex.slip("no overlap", ends).says("""
    It lets nothing travel while a rank computes, but a value leaves as soon as it has
    been made.
    Hint: What does a rank do while its value travels? Keep one clock for the rank
    and a second one for the line.
""")
added = "sum(forward) + sum(backward) + 2 * sum(moved[v] for v in first)"
ex.slip("no overlap", {RETURN: f"return {added}\n    return line + sum"})
ex.slip("all at once", {TAKES: "there[v] for v in there"}).says("""
    It makes rank 1 wait for all values before its first layer.
    Hint: What does its first layer take? Each layer waits only for the values that it
    takes itself.
""")
last = {FIRST: "in range(cut, L):  # the first"}
ex.slip("last reader", last).says("""
    It sends a gradient before all layers that took the value have added to it.
    Hint: Which of these layers comes last in the backward pass? The gradient is final
    when the pass has reached the first of the layers that take the value.
""")
until = {RETURN: "return max(clock, line) + sum"}
ex.slip("last reader", last | until)
for order in "sorted(first)", "sorted(first, reverse=True)":
    in_order = f"""for v in {order}:
        line = max(line, there[v]) + moved[v]
    return line + sum"""
    ex.slip("order", {UP: "there[v] = clock", RETURN: in_order}).says("""
        It sends gradients in another order than that in which they become final, so the
        line waits for one while another could travel.
        Hint: Whose turn is it when the line becomes free? Follow the backward pass of
        rank 1, and note after each layer which gradients are final now.
    """)
twice = {DOWN: f"{DOWN} * sum(i in x for x in needs[cut:])"}
back = {NEXT: "in needs[i] if v in first"}
ex.slip("per taker", twice | back).says("""
    It sends a value, or its gradient, once for each layer of rank 1 that takes it.
    Hint: How often must a value cross that two layers of rank 1 take? Once, and its
    gradient too, because rank 1 adds up what these layers make of it.
""")
ex.slip("per taker", twice)
ex.slip("per taker", back)

# Answers to which the general sentences apply

ex.wrong("wrong", {UP: "line = clock"})
ex.wrong("wrong", {UP: f"there[v] = {UP}", "return line": "return there[cut - 1]"})
ex.wrong("wrong", {"clock += backward[i]": "clock += 2 * forward[i]"})
ex.wrong("wrong", {RETURN: "return line, sum"})
ex.wrong("raises", {TAKES: "there[v] for v in needs[i]"})
ex.right(until)
ex.right({TAKES: "there.get(v, 0.0) for v in needs[i]"})
