"""A timeline in plain characters."""

from math import ceil, floor, log10

from .events import KINDS, WAITS, joined, lasting
from .units import counted, show_seconds

MARKS = dict(zip(KINDS, "C.~wSR=", strict=True))
ENDS = "S2: a message to rank 2   R0: a message from rank 0"
UNSEEN = "waiting: in a call; whether bytes move is not seen in a measured run"
SHOWN = 16  # up to so many ranks are shown one by one


def text_twin(timeline, width=79, most=SHOWN):
    """The picture in plain characters: rows, a time axis, and totals per rank."""
    shown = shown_ranks(timeline.world_size, most)
    rows = timeline.rows
    names = [stream for rank in shown for stream in rows[rank]]
    wide = min(max(map(len, names), default=7), 16)
    number = len(str(timeline.world_size - 1))
    left = 5 + number + 1 + wide + 1  # "rank 3 compute "
    step = _column(timeline.elapsed, width - left - 2)
    columns = max(1, ceil(timeline.elapsed / step * (1 - 1e-9)))
    hidden = timeline.world_size - len(shown)
    head = repr(timeline).removeprefix("Timeline: ")
    lines = [f"{head}; a column is {show_seconds(step)}", _axis(step, columns, left)]
    for rank in shown:
        if hidden and rank == shown[-2]:
            lines.append(f"... {counted(hidden, 'rank')} not shown ...")
        title = f"rank {rank:>{number}} "
        for stream, events in lasting(rows[rank], timeline.elapsed)[0].items():
            cells = _cells(joined(events), step, columns)
            lines.append(f"{title}{stream[:wide]:<{wide}} |{cells}|")
            title = " " * len(title)
    kinds = kinds_of(timeline.clock)
    legend = ["", "   ".join(f"{MARKS[kind]} {kind}" for kind in kinds), ENDS]
    legend += [UNSEEN, ""] if "waiting" in kinds else [""]
    return "\n".join(lines + legend + _totals(timeline, shown, kinds))


def kinds_of(clock):
    """The KINDS that a timeline can hold: only a virtual clock sees the wire."""
    unseen = {"waiting"} if clock == "virtual" else {"blocked", "transferring"}
    return [kind for kind in KINDS if kind not in unseen]


def shown_ranks(n, most=SHOWN):
    """All ranks, or of more than `most` the first half as many and the last two."""
    return list(range(n)) if n <= most else [*range(most // 2), n - 2, n - 1]


def _column(elapsed, columns):
    """A round number of seconds per column, so that the run fits."""
    if elapsed <= 0:
        return 1e-6
    exact = elapsed / columns
    power = 10.0 ** floor(log10(exact))
    factors = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(f * power for f in factors if f * power >= exact * (1 - 1e-9))


def _axis(step, columns, left, width=79):
    """Times over every tenth column, as far as they fit."""
    line = " " * left
    for column in range(0, columns + 1, 10):
        label = show_seconds(column * step) if column else "0"
        start = left + 1 + column
        if len(line) < start and start + len(label) <= width:
            line = f"{line:<{start}}{label}"
    return line


def _cells(events, step, columns):
    """One character per column: the mark of what took most of it, labels inside."""
    seconds = [{} for _ in range(columns)]
    line = [" "] * columns
    for event in events:
        first = min(int(event.start / step + 1e-6), columns - 1)
        last = min(max(ceil(event.stop / step - 1e-6) - 1, first), columns - 1)
        for column in range(first, last + 1):
            begin, end = column * step, (column + 1) * step
            cell, mark = seconds[column], MARKS[event.kind]
            inside = min(event.stop, end) - max(event.start, begin)
            cell[mark] = cell.get(mark, 0.0) + inside
            line[column] = max(cell, key=cell.get)
    for event in events:
        _label(line, event, step)
    return "".join(line)


def _label(line, event, step):
    """Write the peer, a label or a collective's name, where there is room for it."""
    kind = event.kind
    if kind in WAITS or (kind == "compute" and not event.label):
        return
    first, last = round(event.start / step) + 1, round(event.stop / step)
    for text in event.texts or [f"{event.peer}"]:
        if len(text) < last - first + 1 and set(line[first:last]) == {MARKS[kind]}:
            line[first : first + len(text)] = text
            break


def _totals(timeline, shown, kinds):
    """The table of seconds per rank and kind; of many ranks also mean and most."""
    lines = [f"{'':12}" + "".join(f"{kind:>{_wide(kind)}}" for kind in kinds)]
    for rank in shown:
        lines.append(_total(f"rank {rank}", timeline.totals(rank), kinds))
    if len(shown) < timeline.world_size:
        every = [timeline.totals(rank) for rank in range(timeline.world_size)]
        mean = {k: sum(t[k] for t in every) / len(every) for k in kinds}
        lines.append(_total("mean of all", mean, kinds))
        most = {k: max(t[k] for t in every) for k in kinds}
        lines.append(_total("most of all", most, kinds))
    return lines


def _total(title, seconds, kinds):
    texts = {k: show_seconds(seconds[k]) if seconds[k] else "-" for k in kinds}
    return f"{title:12}" + "".join(f"{texts[k]:>{_wide(k)}}" for k in kinds)


def _wide(kind):
    return max(10, len(kind) + 1)
