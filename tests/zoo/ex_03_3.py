"""03.3 When is the last sample done? last_done(times, links, m, pipelined)."""

from zoo import right, wrong


@right
def closed_form(times, links, m, pipelined):
    way = sum(times) + sum(links)
    return way + (m - 1) * max(times + links) if pipelined else m * way


@right
def slot_by_slot(times, links, m, pipelined):
    """A link is a stage; the clock of each is kept."""
    spans = [s for pair in zip(times, [*links, 0.0], strict=True) for s in pair]
    free, end = [0.0] * len(spans), 0.0
    for _ in range(m):
        now = 0.0 if pipelined else end
        for k, span in enumerate(spans):
            now = max(now, free[k]) + span
            free[k] = now
        end = now
    return end


@wrong("no links")
def links_are_free(times, links, m, pipelined):
    return sum(times) + (m - 1) * max(times) if pipelined else m * sum(times)


@wrong("slots")
def slots_of_the_slowest(times, links, m, pipelined):
    if not pipelined:
        return m * (sum(times) + sum(links))
    return (len(times) + m - 1) * max(times)


@wrong("slots")
def slots_and_links_once(times, links, m, pipelined):
    if not pipelined:
        return m * (sum(times) + sum(links))
    return (len(times) + m - 1) * max(times) + sum(links)


@wrong("fast links")
def only_stages_hold_up(times, links, m, pipelined):
    way = sum(times) + sum(links)
    return way + (m - 1) * max(times) if pipelined else m * way


@wrong("links wait")
def a_stage_waits_for_its_link(times, links, m, pipelined):
    way = sum(times) + sum(links)
    slowest = max(t + c for t, c in zip(times, [*links, 0.0], strict=True))
    return way + (m - 1) * slowest if pipelined else m * way


@wrong("links wait")
def slowest_stage_and_slowest_link(times, links, m, pipelined):
    way = sum(times) + sum(links)
    slowest = max(times) + max(links, default=0)
    return way + (m - 1) * slowest if pipelined else m * way


@wrong("mean")
def at_the_mean_pace(times, links, m, pipelined):
    way = sum(times) + sum(links)
    pace = way / (len(times) + len(links))
    return way + (m - 1) * pace if pipelined else m * way


@wrong("always a pipeline")
def never_asks(times, links, m, pipelined):
    return sum(times) + sum(links) + (m - 1) * max(times + links)


@wrong("one too many")
def m_steps_behind_the_first(times, links, m, pipelined):
    way = sum(times) + sum(links)
    return way + m * max(times + links) if pipelined else m * way


@wrong("no number")
def both_at_once(times, links, m, pipelined):
    way = sum(times) + sum(links)
    return way + (m - 1) * max(times + links), m * way
