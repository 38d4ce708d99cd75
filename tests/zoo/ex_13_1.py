"""13.1 Within a budget: within(p, m, limit), the text of a schedule."""

from d2lpar.pipeline.schedule import Action, Schedule, alternate, make, needs
from zoo import right, wrong


def warm_of(p, m, limit, r):
    return min(m, p - 1 - r + limit - p, 2 * (p - 1 - r))


def row(r, m, warm, late):
    """1F1B with `warm` forwards ahead, and each W `late` backwards late."""
    actions = {kind: [Action(r, kind, i) for i in range(m)] for kind in "FBW"}
    order, left = [], m
    for action in alternate(actions["F"], actions["B"], warm):
        order.append(action)
        left -= action.kind == "F"
        done = [a for a in order if a.kind == "B"]
        put = [a for a in order if a.kind == "W"]
        if action.kind == "B" and (len(done) - len(put) > late or not left):
            order.append(Action(r, "W", len(put)))
    put = sum(a.kind == "W" for a in order)
    return [*order, *actions["W"][put:]]


def text_of(rows):
    return "\n".join(" ".join(map(str, row)) for row in rows)


def shaped(p, m, warm, late):
    return text_of([row(r, m, warm(r), late(r)) for r in range(p)])


@right
def from_1f1b_with_more_ahead(p, m, limit):
    warm = [warm_of(p, m, limit, r) for r in range(p)]
    return shaped(p, m, lambda r: warm[r], lambda r: limit - 1 - warm[r])


@right
def sorted_by_turns(p, m, limit):
    """Turn i has B of i; a forward comes `warm` turns early, W some turns late."""
    rows = []
    for r in range(p):
        warm = warm_of(p, m, limit, r)
        late = min(limit - 1 - warm, m - 1 - warm)
        turns = {"F": (-warm, 0), "B": (0, 1), "W": (max(late, 0), 2)}
        keys = {f"{r}{k}{i}": (i + shift, place, i)
                for k, (shift, place) in turns.items() for i in range(m)}  # fmt: skip
        rows.append(" ".join(sorted(keys, key=keys.get)))
    return "\n".join(rows)


@right
def a_schedule_object(p, m, limit):
    rows = []
    for r in range(p):
        warm = warm_of(p, m, limit, r)
        rows.append(tuple(row(r, m, warm, limit - 1 - warm)))
    return Schedule(tuple(rows))


@wrong("circle")
def the_wrong_way_round(p, m, limit):
    return shaped(p, m, lambda r: min(m, r), lambda r: 0)


@wrong("rule")
def forgets_the_last_weights(p, m, limit):
    text = shaped(p, m, lambda r: warm_of(p, m, limit, r), lambda r: r)
    return text.rpartition(" ")[0]


@wrong("rule")
def returns_the_rows_as_words(p, m, limit):
    return [str(make("zb-h1", p, m)).split()]


@wrong("weights last")
def saves_all_weights_for_the_end(p, m, limit):
    return shaped(p, m, lambda r: warm_of(p, m, limit, r), lambda r: m)


@wrong("over the budget")
def always_h2(p, m, limit):
    return str(make("zb-h2", p, m))


@wrong("over the budget")
def one_too_many(p, m, limit):
    warm = [warm_of(p, m, limit, r) for r in range(p)]
    return shaped(p, m, lambda r: warm[r], lambda r: limit - warm[r])


@wrong("together")
def plain_1f1b(p, m, limit):
    return str(make("1f1b", p, m))


@wrong("at once")
def nothing_is_put_off(p, m, limit):
    return shaped(p, m, lambda r: warm_of(p, m, limit, r), lambda r: 0)


@wrong("as 1F1B")
def always_h1(p, m, limit):
    return str(make("zb-h1", p, m))


@wrong("still idle")
def takes_what_is_there(p, m, limit):
    """Slot by slot: B if one is there, else F if there is room, else W."""
    rows, ends, slot = [[] for _ in range(p)], {}, 0
    while sum(map(len, rows)) < 3 * p * m:
        chosen = []
        for r, done in enumerate(rows):
            f, b, w = (sum(a.kind == kind for a in done) for kind in "FBW")
            room = f < m and f - w < limit
            wishes = [Action(r, "B", b)] * (b < m) + [Action(r, "F", f)] * room
            wishes += [Action(r, "W", w)] * (w < b)
            there = [a for a in wishes if _is_there(a, p, ends, slot)]
            chosen += there[:1]
        slot += 1
        for action in chosen:
            rows[action.stage].append(action)
            ends[action] = slot
    return text_of(rows)


def _is_there(action, p, ends, slot):
    return all(ends.get(need, slot + 1) <= slot for need in needs(action, p))


@wrong("still idle")
def too_early_where_the_budget_is_that_of_1f1b(p, m, limit):
    """The forwards ahead are right, and more do not fit; a W comes too early."""
    warm = [warm_of(p, m, limit, r) for r in range(p)]
    early = limit == p >= 3
    return shaped(
        p, m, lambda r: warm[r], lambda r: max(0, limit - 1 - warm[r] - early)
    )


@wrong("still idle")
def puts_off_more_than_there_is(p, m, limit):
    """Where the budget is larger than m, W waits although no forward is left."""
    rows = []
    for r in range(p):
        warm = warm_of(p, m, limit, r)
        late = limit - 1 - warm
        order = [f"{r}F{i}" for i in range(warm)]
        for i in range(m):
            order += [f"{r}F{warm + i}"] * (warm + i < m) + [f"{r}B{i}"]
            order += [f"{r}W{i - late}"] * (i >= late)
        rows.append(" ".join(order + [f"{r}W{i}" for i in range(max(m - late, 0), m)]))
    return "\n".join(rows)
