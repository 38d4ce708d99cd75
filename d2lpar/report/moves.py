"""Who sends what to whom, round by round: ranks as columns, rounds as rows.

Read from a timeline: messages are arrows, collectives are bars over their ranks, and
what carries a label of `d2lpar.label` is a box.  Imports matplotlib when it draws.
"""

from typing import NamedTuple

from .events import joined
from .looks import FACES, INK, picture_class
from .units import short_bytes

MOST_RANKS, MOST_ROWS = 16, 40
NEAR, FAR = "#0072B2", "#D55E00"  # arrows inside a node; between nodes, dashed
FONT = 10  # points
HEAD = {"ha": "right", "va": "bottom", "size": FONT}


class Move(NamedTuple):
    """A message, a collective or a labelled box; `row` is its round, from 0."""

    row: int
    kind: str  # of the first event
    ranks: tuple  # of a message: from, to
    events: tuple


def moves_of(timeline):
    """The Moves of a timeline, each in the first round after all that it follows.

    A box or bar that overlaps others of its ranks in time has a round of its own.
    """
    found, calls = [[*pair] for pair in timeline.messages()], {}
    for streams in timeline.rows.values():
        for stream, events in streams.items():
            if stream == "compute":
                named = joined([e for e in events if e.label])
                new = zip([None, *named], named, strict=False)
                found += [[e] for last, e in new if not last or last.label != e.label]
            elif stream.startswith("comm"):
                for e in events:
                    calls.setdefault((stream, e.name, e.start, e.stop), []).append(e)
    found = sorted([*found, *calls.values()], key=lambda events: events[0].start)
    ended = {rank: [] for rank in range(timeline.world_size)}  # (stop, row)
    moves, drawn = [], {}
    for events in found:
        start, stop = events[0].start, events[0].stop
        ranks = tuple(event.rank for event in events)
        before = [row for r in ranks for end, row in ended[r] if end <= start + 1e-10]
        row = _free(drawn, max(before, default=-1) + 1, ranks, events[0].kind)
        moves.append(Move(row, events[0].kind, ranks, tuple(events)))
        for r in ranks:
            ended[r].append((stop, row))
    return moves


def _free(drawn, row, ranks, kind):
    """The first row from this one on where only messages meet; it is taken now.

    drawn    {(rank, row): kind of what is there}, gets the new entries
    """
    there = lambda row: {drawn[r, row] for r in ranks if (r, row) in drawn}
    while there(row) and there(row) | {kind} != {"sending"}:
        row += 1
    drawn |= {(r, row): kind for r in ranks}
    return row


def plot_moves(timeline, title=None, node=None):
    """Draw the moves; `node(rank)`, where it is known, tells near from far messages.

    A number at an arrow is the chunk of the sender's tensor that travels.
    """
    n, moves = timeline.world_size, moves_of(timeline)
    rows = max((move.row for move in moves), default=-1) + 1
    if n > MOST_RANKS or not 0 < rows <= MOST_ROWS:
        raise ValueError(
            f"A picture of moves has up to {MOST_RANKS} ranks and 1 to {MOST_ROWS} "
            f"rounds, and here are {n} ranks and {rows} rounds. Cut out a part, such "
            "as timeline.between(0, 1e-3)."
        )
    node = node or (lambda rank: 0)
    texts, chunks = _chunks(moves)
    several = len({node(rank) for rank in range(n)}) > 1
    names, notes = _names(moves, rows), _notes(texts, chunks, several)
    above, below = 0.58 + 0.18 * several, 0.36 if notes else 0.12  # inches
    left, whole = 0.2 + 0.08 * max(map(len, names)), above + below + 0.52 * rows
    figure = picture_class()(figsize=(7.2, whole), dpi=100)
    box = (left / 7.2, below / whole, 0.98 - left / 7.2, 0.52 * rows / whole)
    ax = figure.add_axes(box)
    for rank in range(n):
        ax.axvline(rank, color="#BBBBBB", lw=0.8, zorder=1)
    for move in moves:
        _draw(ax, move, texts, node)
    _dress(ax, names[1:], n, node)
    figure.text(left / 7.2 - 0.01, 1 - (above - 0.05) / whole, names[0], **HEAD)
    ax.set_title(title or _size(n, rows), loc="left", size=FONT + 0.5)
    ax.set_xlabel(notes, size=FONT)
    figure.alt = _alt(moves, n, rows, node)
    return figure


def _names(moves, rows):
    """What stands left of the rows: first their head, then round and bytes of each."""
    names = ["round"]
    for row in range(rows):
        sizes = {m.events[0].bytes for m in moves if m.row == row and len(m.ranks) > 1}
        ends = sorted({min(sizes), max(sizes)}) if sizes else []
        names.append(f"{row + 1}   {' to '.join(map(short_bytes, ends))}".rstrip())
        names[0] = "round, bytes" if sizes else names[0]
    return names


def _notes(texts, chunks, several):
    """What the words and lines of the arrows mean."""
    notes = [f"numbers: chunks of the tensor, 0 to {chunks - 1}"] if chunks else []
    notes += ["all: the whole tensor"] if "all" in texts.values() else []
    return "; ".join(notes + ["dashed: to another node"] * several)


def _chunks(moves):
    """({id of a message: its chunks as a text}, how many chunks there are)."""
    sends = [move.events[0] for move in moves if move.kind == "sending"]
    parts = {send.id: send.part for send in sends if send.part and send.part[2]}
    unit = min((stop - begin for begin, stop, _ in parts.values()), default=0)
    texts = {}
    for id, (begin, stop, whole) in parts.items():
        first, last = round(begin / unit), round(stop / unit) - 1
        text = f"{first}" if first == last else f"{first}-{last}"
        texts[id] = "all" if stop - begin == whole else text
    most = max((round(whole / unit) for _, _, whole in parts.values()), default=0)
    return texts, most if most > 1 else 0


def _draw(ax, move, texts, node):
    from matplotlib.patches import Rectangle

    event, y = move.events[0], move.row
    low, wide = min(move.ranks), max(move.ranks) - min(move.ranks) + 0.7
    middle = {"ha": "center", "va": "center", "size": FONT, "zorder": 5}
    if move.kind == "sending":
        src, dst = move.ranks
        colour, line = (NEAR, "-") if node(src) == node(dst) else (FAR, "--")
        style = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0}
        style |= {"linestyle": line}
        style |= {"shrinkB": 0, "mutation_scale": 9}
        ax.annotate("", (dst, y + 0.42), (src, y - 0.36), arrowprops=style, zorder=3)
        near = 0.22 if dst > src else -0.22  # beside the sender, where all are apart
        x, y = src + near, y - 0.36 + 0.78 * near / (dst - src)
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        ax.text(x, y, texts.get(event.id, ""), color=colour, bbox=paper, **middle)
        return
    face, text = FACES[event.look], event.texts[0]
    if move.kind == "collective":
        text += f", {short_bytes(event.bytes)}"
    box = {"facecolor": face, "edgecolor": "#333333", "lw": 0.6, "zorder": 4}
    ax.add_patch(Rectangle((low - 0.35, y - 0.3), wide, 0.6, **box))
    ink = INK.get(event.look, "black")
    ax.text(low - 0.35 + wide / 2, y, text, color=ink, **middle)


def _dress(ax, names, n, node):
    ax.set_yticks(range(len(names)), names, size=FONT)
    several = len({node(rank) for rank in range(n)}) > 1
    ranks = [f"rank {r}" if n <= 8 else f"{r}" for r in range(n)]
    if several:
        ranks = [f"{text}\nnode {node(r)}" for r, text in enumerate(ranks)]
    ax.set_xticks(range(n), ranks, size=FONT)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set(xlim=(-0.5, n - 0.5), ylim=(len(names) - 0.45, -0.55))
    ax.spines[:].set_visible(False)


def _alt(moves, n, rows, node):
    """The picture in words: per round, who sends to whom and which collectives run."""
    parts = []
    for row in range(rows):
        here = [move for move in moves if move.row == row]
        sends = sorted(move.ranks for move in here if move.kind == "sending")
        far = {True: "", False: " (another node)"}
        words = [f"{a} to {b}{far[node(a) == node(b)]}" for a, b in sends]
        words += sorted({m.events[0].texts[0] for m in here if m.kind != "sending"})
        parts.append(f"{row + 1}: {', '.join(words[:8])}" + ", ..." * (len(words) > 8))
    return f"Moves of {_size(n, rows)}. Round " + "; ".join(parts) + "."


def _size(n, rows):
    return f"{n} rank{'s' * (n > 1)}, {rows} round{'s' * (rows > 1)}"
