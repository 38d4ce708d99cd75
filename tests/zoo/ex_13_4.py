"""13.4 From its text: forecast(text, steps, forward, backward, weight, comm, kept,
late)."""

from d2lpar.pipeline.schedule import parse, simulate
from zoo import right, wrong


def repeated(text, steps):
    """The text whose rows are `steps` times as long."""
    made, rows = parse(text), []
    for row in made.ranks:
        words = [f"{s}{kind}{i + k * made.m}"
                 for k in range(steps) for s, kind, i in row]  # fmt: skip
        rows.append(" ".join(words))
    return parse("\n".join(rows))


def bytes_of(text, kept, late):
    made, found = parse(text), []
    for row in made.ranks:
        held = [0]
        for s, kind, _ in row:
            after_b = late[s] if made.splits else 0
            change = {"F": kept[s], "B": after_b - kept[s], "W": -after_b}
            held.append(held[-1] + change[kind])
        found.append(max(held))
    return found


def work_of(text, F, B, W):
    """What all ranks work in a step."""
    every = parse(text).every
    cost = {"F": F, "B": B, "W": W}
    extra = 0 if parse(text).splits else sum(W[a.stage] for a in every if a.kind == "B")
    return extra + sum(cost[a.kind][a.stage] for a in every)


def bubble_of(text, steps, F, B, W, comm):
    sim = simulate(repeated(text, steps), F, B, W, comm)
    return 1 - steps * work_of(text, F, B, W) / (len(sim.spans) * sim.elapsed)


@right
def a_longer_text(text, steps, F, B, W, comm, kept, late):
    return bubble_of(text, steps, F, B, W, comm), bytes_of(text, kept, late)


@right
def one_step_and_the_longest_span(text, steps, F, B, W, comm, kept, late):
    """Each further step takes as long as the longest span."""
    sim = simulate(parse(text), F, B, W, comm)
    whole = sim.elapsed + (steps - 1) * max(sim.spans)
    bubble = 1 - steps * work_of(text, F, B, W) / (len(sim.spans) * whole)
    return bubble, bytes_of(text, kept, late)


@right
def without_the_library(text, steps, F, B, W, comm, kept, late):
    """Longest paths, found by going round until nothing changes."""
    rows = [[(int(w[0]), w[1], int(w[2:])) for w in line.split()[2:]]
            for line in text.splitlines()]  # fmt: skip
    home = {a[0]: r for r, row in enumerate(rows) for a in row}
    last, split = max(home), any(a[1] == "W" for row in rows for a in row)
    cost = {"F": F, "W": W, "B": B if split else [b + w for b, w in zip(B, W)]}  # noqa: B905
    order = [(k, a) for row in rows for k in range(steps) for a in row]
    end, changed = dict.fromkeys(order, 0.0), True
    while changed:
        changed = False
        for r, row in enumerate(rows):
            now = 0.0
            for k in range(steps):
                for s, kind, i in row:
                    before = {"F": (s - 1, "F", i), "B": (s + 1, "B", i)}.get(kind)
                    if before and 0 <= before[0] <= last:
                        way = comm if home[before[0]] != r else 0.0
                        now = max(now, end[k, before] + way)
                    now += cost[kind][s]
                    changed = changed or now > end[k, (s, kind, i)] + 1e-12
                    end[k, (s, kind, i)] = now
    work = sum(cost[kind][s] for row in rows for s, kind, _ in row) * steps
    return 1 - work / (len(rows) * max(end.values())), bytes_of(text, kept, late)


@wrong("not two")
def the_simulation_itself(text, steps, F, B, W, comm, kept, late):
    return simulate(repeated(text, steps), F, B, W, comm)


@wrong("one step")
def steps_times_the_time(text, steps, F, B, W, comm, kept, late):
    return bubble_of(text, 1, F, B, W, comm), bytes_of(text, kept, late)


@wrong("free messages")
def without_messages(text, steps, F, B, W, comm, kept, late):
    return bubble_of(text, steps, F, B, W, 0.0), bytes_of(text, kept, late)


@wrong("longest span")
def the_bubble_of_the_chapter(text, steps, F, B, W, comm, kept, late):
    return simulate(parse(text), F, B, W, comm).bubble, bytes_of(text, kept, late)


@wrong("gone with B")
def frees_all_after_b(text, steps, F, B, W, comm, kept, late):
    bubble, _ = a_longer_text(text, steps, F, B, W, comm, kept, late)
    return bubble, bytes_of(text, kept, [0] * len(late))


@wrong("all until W")
def frees_all_after_w(text, steps, F, B, W, comm, kept, late):
    bubble, _ = a_longer_text(text, steps, F, B, W, comm, kept, late)
    return bubble, bytes_of(text, kept, kept)


@wrong("never gone")
def adds_up(text, steps, F, B, W, comm, kept, late):
    bubble, _ = a_longer_text(text, steps, F, B, W, comm, kept, late)
    rows = parse(text).ranks
    return bubble, [sum(kept[a.stage] for a in row if a.kind == "F") for row in rows]


@right
def rounded_to_six_digits(text, steps, F, B, W, comm, kept, late):
    bubble = bubble_of(text, steps, F, B, W, comm)
    return [round(bubble, 6), tuple(bytes_of(text, kept, late))]


@wrong("wrong")
def rounded_to_three_digits(text, steps, F, B, W, comm, kept, late):
    bubble = bubble_of(text, steps, F, B, W, comm)
    return round(bubble, 3), bytes_of(text, kept, late)


@wrong("B alone")
def works_without_the_weights(text, steps, F, B, W, comm, kept, late):
    """The time is right, and a B that is not split works less than it takes."""
    sim, schedule = simulate(repeated(text, steps), F, B, W, comm), parse(text)
    cost = {"F": F, "B": B, "W": W}
    work = steps * sum(cost[a.kind][a.stage] for a in schedule.every)
    return 1 - work / schedule.p / sim.elapsed, bytes_of(text, kept, late)


@wrong("one step")
def one_step_and_bytes_that_stay(text, steps, F, B, W, comm, kept, late):
    """Both parts are wrong."""
    return bubble_of(text, 1, F, B, W, comm), adds_up(
        text, steps, F, B, W, comm, kept, late
    )[1]


@wrong("all until W")
def all_until_w_where_messages_are_free_anyway(text, steps, F, B, W, comm, kept, late):
    """Nothing is wrong with the bubble, so no hint is about it."""
    if comm:
        return a_longer_text(text, steps, F, B, W, comm, kept, late)
    return frees_all_after_w(text, steps, F, B, W, comm, kept, late)
