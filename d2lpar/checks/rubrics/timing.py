"""What exercise 11.3 asks for: the seconds of a step across a cut with skips."""

from ..judging import Case, Exercise, Mistake
from ..signs import both, wrong

WAYS = ("one way", "no queue", "no overlap", "last reader", "all at once", "chain only")
WAYS += ("early",)


# Two branches that meet in the last layer
BRANCHES = [(-1,), (0,), (0,), (1,), (2,), (3,), (4,), (5, 6)]


def unet_needs(levels):
    """What the layers of a U-Net take, with two layers a level."""
    needs = [(i - 1,) for i in range(2 * levels)]
    for k in reversed(range(levels - 1)):
        at = len(needs)
        needs += [(at - 1,), (at, 2 * k + 1), (at + 1,)]
    return [*needs, (len(needs) - 1,)]


def step_cases(rng):
    """U-Nets and webs of skips, on fast and on slow lines."""
    webs = [(unet_needs(levels), None) for levels in (2, 3, 4)]
    webs += [([(-1,), (0,), (1, 0), (2,), (3, 0, 1), (4, 2)], None), (BRANCHES, 5)]
    webs += [(_web(rng, L), None) for L in (4, 7, 9, 12)]
    for needs, cut in webs:
        L = len(needs)
        for slow in (0.3, 1.0, 4.0):
            forward = [float(x) for x in rng.uniform(0.5, 2, size=L)]
            backward = [2 * t for t in forward]
            moved = [float(x) * slow for x in rng.uniform(0.2, 2, size=L)]
            here = cut or int(rng.integers(1, L))
            given = forward, backward, needs, moved, here
            yield Case(
                1,
                f"{L} layers, cut before {here}, messages from {min(moved):.2g} s on",
                inputs=[given],
                expected=[seconds_of_a_step(*given)],
                facts={"given": given},
            )


def _web(rng, L):
    """Each layer takes the one before, and some take one or two from far back."""
    needs = []
    for i in range(L):
        far = rng.choice(max(i - 1, 1), size=min(2, max(i - 1, 1)), replace=False)
        count = int(rng.integers(0, 3)) if i > 1 else 0
        needs.append((i - 1, *(int(v) for v in far[:count])))
    return needs


def seconds_of_a_step(forward, backward, needs, moved, cut, way=None):
    """When rank 0 has finished its backward pass, or as a mistake has it."""
    L = len(forward)
    first = {}  # for each value that crosses, the layer whose backward completes it
    for i in range(cut, L):
        for v in needs[i]:
            if 0 <= v < cut and (v == cut - 1 or way != "chain only"):
                first[v] = i if way == "last reader" else first.get(v, i)
    made, clock = {}, 0.0
    for i in range(cut):
        clock += forward[i]
        made[i] = clock
    there, line = {}, clock if way == "no overlap" else 0.0
    for v in sorted(first):
        line = max(made[v], 0.0 if way == "no queue" else line) + moved[v]
        there[v] = line
    clock = max(there.values()) if way == "all at once" else 0.0
    for i in range(cut, L):
        clock = max([clock, *(there[v] for v in needs[i] if v in there)]) + forward[i]
    ready = {}
    for i in reversed(range(cut, L)):
        clock += backward[i]
        ready |= {v: clock for v in first if first[v] == i}
    if way == "one way":
        return clock + sum(backward[:cut])
    line, back = clock if way == "no overlap" else 0.0, {}
    for v in sorted(first, key=lambda v: (-first[v], -v)):
        line = max(ready[v], 0.0 if way == "no queue" else line) + moved[v]
        back[v] = line
    begin = back[cut - 1] if way == "early" and cut - 1 in back else max(back.values())
    return max(begin, clock) + sum(backward[:cut])


def _close(came, wanted, case=None):
    try:
        return abs(float(came) - wanted) <= 1e-6 * wanted
    except (TypeError, ValueError):
        return False


def _no_number(attempt):
    came = attempt.came[0]
    return wrong(attempt) and not isinstance(came, int | float)


def _like(way):
    """The answer is what this mistake gives, and no other one."""

    def ask(attempt):
        came, given = attempt.came[0], attempt.case.facts["given"]
        fits = [w for w in WAYS if _close(came, seconds_of_a_step(*given, w))]
        return fits == [way]

    return both(wrong, ask)


def _everything(attempt):
    """No two things at once: all layers and all messages, one after the other."""
    forward, backward, needs, moved, cut = attempt.case.facts["given"]
    come = {v for x in needs[cut:] for v in x if 0 <= v < cut}
    total = sum(forward) + sum(backward) + 2 * sum(moved[v] for v in come)
    return _close(attempt.came[0], total)


timing = Exercise(
    "11.3",
    "When is the step over?",
    step_cases,
    [],
    [
        Mistake(
            "no number",
            _no_number,
            "It does not return a number of seconds.",
        ),
        Mistake(
            "one way",
            _like("one way"),
            "The gradients of what crossed take no time on their way back.",
            "They are as large as the values.",
        ),
        Mistake(
            "chain only",
            _like("chain only"),
            "Only the value of the last layer before the cut crosses; skips do, too.",
            "All values that a layer behind the cut takes.",
        ),
        Mistake(
            "no queue",
            _like("no queue"),
            "Messages travel side by side. The line carries one at a time.",
            "A message leaves when it is complete and the line is free.",
        ),
        Mistake(
            "no overlap",
            lambda a: _like("no overlap")(a) or both(wrong, _everything)(a),
            "Nothing travels while a rank computes. A value leaves once it is made.",
            "The line has its own clock.",
        ),
        Mistake(
            "all at once",
            _like("all at once"),
            "Rank 1 waits for all values before its first layer.",
            "A layer waits for what it takes itself.",
        ),
        Mistake(
            "last reader",
            _like("last reader"),
            "A gradient leaves before all layers that took the value have added to it.",
            "Backward comes to the first of them last.",
        ),
        Mistake(
            "early",
            _like("early"),
            "Rank 0 goes back when the gradient of its last layer is there, and others "
            "are still on their way.",
            "It begins when all have come.",
        ),
    ],
    agrees=_close,
    processes=(),
)
