"""Pictures of timelines.  Importing this module does not import matplotlib.

Figures are made without pyplot: nothing is opened, kept or switched globally.
Each carries its description in words as `.alt`, and shows itself in a notebook.
"""

from dataclasses import dataclass
from itertools import pairwise

from .events import CODES, KINDS, LOOKS, WAITS, joined, lanes, lasting
from .looks import BESIDE, EDGES, FACES, HATCHES, INK, WORDS, picture_class
from .units import counted, show_seconds

EXPOSED = {"facecolors": "#D55E0033", "edgecolors": "#D55E00", "linewidths": 1.0}
MANY_RANKS = 16  # above: one thin row per rank
MANY_MESSAGES = 60  # above: numbers at both ends in place of arrows
MOST_ROWS = 128  # above: evenly chosen ranks only, and the picture says so
FONT = 10  # points: 7 pixels where a phone shows the 7.2 inches on 360 pixels
ROW = 0.22  # inches
BELOW = {"loc": "lower center", "frameon": False, "fontsize": FONT}


@dataclass
class Row:
    """Where the events of one rank and stream are drawn."""

    rank: int
    stream: str
    events: list
    top: float
    height: float
    instants: list  # messages that take no time and have no row of their own


def plot_timeline(timeline, ax=None, width=None, title=None, exposed=False):
    """A row per rank and stream over time; returns the figure, or the given axes."""
    title = title_of(timeline, title, exposed)
    if ax is not None:
        draw(ax, timeline, timeline.elapsed, title, exposed=exposed)
        ax.legend(handles=_handles([timeline], exposed), fontsize=FONT, **BESIDE)
        return ax
    return _figure({title: timeline}, width, alt_text(timeline, exposed), exposed)


def title_of(timeline, title=None, exposed=False):
    """The given title, or how many ranks took how long."""
    ranks = counted(timeline.world_size, "rank")
    return title or f"{ranks}, {_took(timeline, exposed)}"


def compare_timelines(timelines, width=None, exposed=False):
    """Several timelines, name by name, on one time axis; returns the figure."""
    if not timelines:
        raise ValueError("There is no timeline to draw.")
    lines = timelines.items()
    titled = titles_of(timelines, exposed)
    words = [f"{name}: {alt_text(line, exposed)}" for name, line in lines]
    return _figure(titled, width, " ".join(words), exposed)


def titles_of(timelines, exposed=False):
    """{title: timeline}: the names, and how long each took."""
    lines = timelines.items()
    return {f"{name}: {_took(line, exposed)}": line for name, line in lines}


def _took(timeline, exposed):
    """`3.2 ms virtual`, and how much of it is exposed on the worst rank."""
    text = f"{show_seconds(timeline.elapsed)} {timeline.clock}"
    if exposed:
        worst = max(map(timeline.exposed, range(timeline.world_size)))
        text += f", communication exposed for {show_seconds(worst)}"
    return text


def alt_text(timeline, exposed=False):
    """One sentence for those who do not see the picture."""
    took = f"{show_seconds(timeline.elapsed)} of {timeline.clock} time"
    ranks = counted(timeline.world_size, "rank")
    if not len(timeline):
        return f"Timeline of {ranks} without any events."
    every = [timeline.totals(rank) for rank in range(timeline.world_size)]
    parts = []
    for kind in KINDS:
        share = sum(t[kind] for t in every) / len(every) / (timeline.elapsed or 1)
        if share > 0:
            parts.append(f"{_word(kind, [timeline])} {share:.0%}")
    sent = counted(sum(event.stream == "send" for event in timeline), "message")
    if exposed:
        shares = [timeline.exposed(rank) for rank in range(timeline.world_size)]
        share = sum(shares) / len(shares) / (timeline.elapsed or 1)
        parts.append(f"shaded as exposed communication {share:.0%}")
    return (
        f"Timeline of {ranks} over {took}, {sent}; "
        f"of its time a rank spends on average {', '.join(parts) or 'none'}."
    )


# ------------------------------------------------------------------------ the layout


def _figure(timelines, width, alt, exposed=False):
    """One panel per timeline, above each other; sizes in inches."""
    elapsed = max(line.elapsed for line in timelines.values())
    panels = [_rows(line) for line in timelines.values()]
    heights = [(rows[-1].top + rows[-1].height + 0.2) * ROW for rows in panels]
    width = 7.2 if width is None else float(width)
    above, below = 0.36, 0.62  # title of a panel; time axis and legend
    handles = _handles(list(timelines.values()), exposed)
    columns = _columns(handles, width * 72)
    below += 0.22 * -(-len(handles) // columns)
    whole = sum(heights) + above * len(heights) + below
    figure = picture_class()(figsize=(width, whole), dpi=100)
    figure.alt = alt
    top, left, right = whole, 1.35, 0.25
    for (title, line), height in zip(timelines.items(), heights, strict=True):
        top -= above + height
        box = (left / width, top / whole)
        size = ((width - left - right) / width, height / whole)
        last = top <= below + 1e-6
        draw(figure.add_axes((*box, *size)), line, elapsed, title, last, exposed)
    figure.legend(handles=handles, ncols=columns, **BELOW)
    return figure


def _columns(handles, points):
    """How many entries of the legend stand side by side."""
    widths = [_wide(each.get_label()) + 5 * FONT for each in handles]
    for count in range(len(handles), 1, -1):
        long, more = divmod(len(handles), count)  # the first `more` columns are longer
        ends = [k * long + min(k, more) for k in range(count + 1)]
        if sum(max(widths[a:b]) for a, b in pairwise(ends)) <= points:
            return count
    return 1


def _rows(timeline):
    """The rows from top to bottom, in units of one row."""
    ranks = range(timeline.world_size)
    thin = timeline.world_size > MANY_RANKS
    ranks = ranks[:: -(-timeline.world_size // MOST_ROWS)]
    rows, top = [], 0.0
    for rank in ranks:
        streams, instants = lasting(timeline.rows[rank], timeline.elapsed)
        height = 0.6 / len(streams) if thin else 1.0
        for stream, events in streams.items():
            events = events if stream != "compute" else joined(events)
            rows.append(Row(rank, stream, events, top, height, instants))
            top, instants = top + height, []
        top += 0.1 if thin else 0.35
    return rows


def draw(ax, timeline, elapsed, title="", last=True, exposed=False):
    """Draw one timeline on these axes, over a time axis up to `elapsed`."""
    rows = _rows(timeline)
    bottom = rows[-1].top + rows[-1].height
    thin = timeline.world_size > MANY_RANKS
    scale, unit = _unit(elapsed)
    ax.set_xlim(0, elapsed * scale or 1)
    ax.set_ylim(bottom + 0.1, -0.1)
    bars = _bars(rows)
    _draw_bars(ax, bars, scale, thin)
    if exposed:
        _draw_exposed(ax, timeline, rows, scale)
    messages = [] if thin else timeline.messages()
    arrows = len(messages) <= MANY_MESSAGES
    if not thin:
        write = _peer if arrows else _match(messages, scale / _per_point(ax)[0])
        _draw_labels(ax, bars, scale, write)
    if arrows:
        _draw_arrows(ax, messages, bars, scale)
    _dress(ax, rows, thin, title, timeline)
    if timeline.elapsed < elapsed:
        ax.axvline(timeline.elapsed * scale, color="black", lw=0.8, ls=":")
    ax.tick_params(axis="x", labelbottom=last, labelsize=FONT)
    if last:
        ax.set_xlabel(f"time ({unit}, {timeline.clock})", fontsize=FONT)


def _bars(rows):
    """{id of an event: (event, top, height)}; what overlaps in a row shares it."""
    bars = {}
    for row in rows:
        chosen = lanes(row.events)
        height = row.height / (max(chosen, default=0) + 1)
        for event, lane in zip(row.events, chosen, strict=True):
            bars[id(event)] = event, row.top + lane * height, height
        bars |= {id(event): (event, row.top, row.height) for event in row.instants}
    return bars


# ----------------------------------------------------------------------- the drawing


def _draw_bars(ax, bars, scale, thin):
    from matplotlib.collections import PolyCollection

    point = _per_point(ax)[0]
    gap = 0.7 * point  # between neighbours, where bars have no edges
    low, high = (0, 1) if thin else (0.06, 0.94)
    for look in LOOKS:
        boxes, edges = [], []
        for event, top, height in bars.values():
            if event.look == look and event.stop > event.start:
                a, b = event.start * scale, event.stop * scale
                wide = not thin and b - a > 3 * point
                edges.append(0.5 if wide else 0)  # else all white
                if thin and look not in WAITS and b - a > 4 * gap:
                    b -= gap
                boxes.append(_box(a, b, top + low * height, top + high * height))
        style = _style(look, thin) | {"linewidth": edges or 0}
        ax.add_collection(PolyCollection(boxes, **style))


def _box(a, b, top, bottom):
    """The corners of a box from time a to b."""
    return [(a, top), (b, top), (b, bottom), (a, bottom)]


def _draw_exposed(ax, timeline, rows, scale):
    """Shade the times of every rank in which it waits and communicates."""
    from matplotlib.collections import PolyCollection

    boxes = []
    for rank in {row.rank: None for row in rows}:
        mine = [row for row in rows if row.rank == rank]
        top, bottom = mine[0].top, mine[-1].top + mine[-1].height
        for start, stop in timeline.exposed_spans(rank):
            boxes.append(_box(start * scale, stop * scale, top, bottom))
    ax.add_collection(PolyCollection(boxes, **EXPOSED, zorder=3))


def _style(look, thin):
    style = {"facecolor": FACES[look], "zorder": 2}
    if thin:  # no room for hatching
        face = "#EDEDED" if HATCHES.get(look, "").strip(".") else FACES[look]
        return style | {"facecolor": face, "linewidth": 0, "snap": False}
    edge = EDGES.get(look, "white")
    return style | {"edgecolor": edge, "hatch": HATCHES.get(look), "linewidth": 0.5}


def _draw_labels(ax, bars, scale, write):
    """Write into a bar what it is, where there is room for it."""
    across, down = _per_point(ax)
    for event, top, height in bars.values():
        texts = write(event) if event.stream in ("send", "recv") else event.texts
        room = (event.stop - event.start) * scale / across
        text = next((text for text in texts if _wide(text) <= room), "")
        if not text or height < FONT * 1.1 * down:
            continue
        x, y = (event.start + event.stop) / 2 * scale, top + height / 2 + 0.02
        paper = {"facecolor": FACES[event.look], "edgecolor": "none", "pad": 0.8}
        ink = INK.get(event.look, "black")  # the paper hides hatching and arrows
        both = {"ha": "center", "va": "center", "zorder": 5}
        ax.text(x, y, text, size=FONT, color=ink, bbox=paper, **both)


def _wide(text):
    """Points that a label takes across, and a little more."""
    wide = dict.fromkeys("mwMW", 1.0) | dict.fromkeys(" fijlrt-,.:", 0.42)
    return sum(wide.get(letter, 0.64) for letter in text) * FONT + 2


def _peer(event):
    """`to 1`, `from 0`, and the number alone for where there is less room."""
    word = {"sending": "to", "receiving": "from"}.get(event.kind)
    known = word and event.peer is not None
    return [f"{word} {event.peer}", f"{event.peer}"] if known else []


def _match(messages, points):
    """Labels without arrows: the number of the message, or where these have
    no room (`points` to a second) the other rank alone."""
    fits = sum(
        _wide(f"{send.id}") <= (send.stop - send.start) * points for send, _ in messages
    )

    def write(event):
        number = event.id if fits >= 0.9 * len(messages) else event.peer
        return [] if number is None else [f"{number}"]

    return write


def _draw_arrows(ax, messages, bars, scale):
    """From the start of a send to the end of its receive."""
    style = {"arrowstyle": "-|>", "mutation_scale": 7, "lw": 0.7, "color": "black"}
    style |= {"shrinkA": 0, "shrinkB": 0, "alpha": 0.75}
    for send, recv in messages:
        if id(send) not in bars or id(recv) not in bars:
            continue
        _, top, height = bars[id(send)]
        _, goal, deep = bars[id(recv)]
        down = goal > top
        begin = send.start * scale, top + (height * 0.94 if down else height * 0.06)
        end = recv.stop * scale, goal + (deep * 0.06 if down else deep * 0.94)
        ax.annotate("", end, begin, arrowprops=style, zorder=4, annotation_clip=False)


def _dress(ax, rows, thin, title, timeline):
    """Names of the rows, and the title."""
    ranks = list(dict.fromkeys(row.rank for row in rows))
    if thin or FONT * _per_point(ax)[1] > 1.1:  # no room for a name per row
        step = _stride(ranks) if thin else 1
        first = {row.rank: row.top for row in reversed(rows)}
        ticks = [(first[r] + 0.3, f"rank {r}") for r in ranks if r % step == 0]
    else:
        ticks = _names(rows)
    ax.set_yticks([y for y, _ in ticks], [name for _, name in ticks], size=FONT)
    if len(ranks) < timeline.world_size:
        title += f" (one rank in {ranks[1]} is drawn)"
    ax.tick_params(axis="y", length=0)
    ax.set_title(title, loc="left", size=FONT + 0.5)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis="x", color="#DDDDDD", lw=0.5)


def _names(rows):
    """(height, name) of every row; the first of a rank has its number."""
    names, seen = [], set()
    for row in rows:
        stream = row.stream if len(row.stream) <= 14 else row.stream[:13] + "~"
        name = stream if row.rank in seen else f"rank {row.rank}  {stream}"
        names.append((row.top + row.height / 2, name))
        seen.add(row.rank)
    return names


def _stride(ranks):
    """Every how many ranks there is a name: about eight to sixteen names."""
    step = 8
    while max(ranks) / step > 16:
        step *= 2
    return step


def _handles(timelines, exposed=False):
    """The legend: what occurs, and which codes stand for collectives."""
    from matplotlib.patches import Patch

    lasts = [e for line in timelines for e in line if e.stop > e.start]
    looks = {event.look for event in lasts}
    thin = all(line.world_size > MANY_RANKS for line in timelines)
    shown = [look for look in LOOKS if look in looks]
    patches = [Patch(**_style(x, thin), label=_word(x, timelines)) for x in shown]
    style = {key.removesuffix("s"): value for key, value in EXPOSED.items()}
    return patches + [Patch(**style, label="exposed")] * exposed


def _word(look, timelines):
    """What the legend calls it; no wire carries a collective of the virtual clock."""
    virtual = all(line.clock == "virtual" for line in timelines)
    formula = virtual and look in ("collective", *CODES.values())
    return WORDS.get(look, look) + ", by formula" * formula


def _unit(seconds):
    """(factor, unit) in which the time axis has short numbers."""
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * scale >= 1:
            return scale, unit
    return (1e9, "ns") if seconds > 0 else (1e6, "us")


def _per_point(ax):
    """What a point is across and down, in the units of the two axes."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    across = (right - left) / (box.width / dpi * 72)
    return across, abs(bottom - top) / (box.height / dpi * 72)
