"""Pictures of pipeline schedules: who does what when, and what each rank holds.

Importing this module does not import matplotlib.
"""

import re

from .events import PASSES
from .looks import FACES as LOOKS
from .looks import picture_class

# Okabe-Ito colours; a rank's second stage has the darker ones, and a second copy.
FACES = {letter: LOOKS[name] for letter, name in PASSES.items()}
DARKER = {"F": "#0072B2", "B": "#D55E00", "W": "#8A8000"}
HATCHES = {"F": "", "B": "", "W": ".."}
LINES = ["-", "--", "-.", ":"]
SHADES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"]
FONT = 10  # points
WIDE = 0.1  # inches that a digit needs

# Inches.  Fixed, for to find a layout takes as long as to draw all of the picture.
ROW, HELD = 0.32, 1.25  # height of a rank's row, and of the staircases
ABOVE, BETWEEN, BELOW = 0.54, 0.16, 0.58
WIDTH, LEFT, RIGHT = 7.2, 0.75, 0.15
LINE, COLUMNS = 0.2, 3  # of the legend below


def plot_simulation(sim, title=None):
    """The Gantt chart of a `Simulation`, and below it what its ranks hold.

    A box is an action with its micro-batch; boxes of every other stage of a
    rank are darker.  Returns the figure, with its words as `.alt`.
    """
    boxes = ROW * sim.timeline.world_size + 0.4  # inches
    lines = _shown(sim)
    low = BELOW + LINE * -(-len(lines) // COLUMNS)
    height = ABOVE + boxes + BETWEEN + HELD + low
    figure = picture_class()(figsize=(WIDTH, height), dpi=100)
    across = LEFT / WIDTH, 1 - (LEFT + RIGHT) / WIDTH
    place = lambda low, high: (across[0], low / height, across[1], high / height)
    top = figure.add_axes(place(height - ABOVE - boxes, boxes))
    below = figure.add_axes(place(low, HELD), sharex=top)
    title = title or repr(sim).partition(": ")[2]
    top.set_title(title, loc="left", fontsize=FONT + 0.5, pad=22)
    _draw_axes(top, sim)
    _draw_boxes(top, sim)
    _draw_held(below, sim, lines)
    style = {"ncols": COLUMNS, "frameon": False, "fontsize": FONT}
    figure.legend(*below.get_legend_handles_labels(), loc="lower center", **style)
    figure.alt = _alt(sim)
    return figure


def _parts(event):
    """(stage, kind, micro-batch) of an event called such as 2F0."""
    stage, kind, micro = re.fullmatch(r"(\d+)([FBW])(\d+)", event.name).groups()
    return int(stage), kind, micro


def _draw_axes(ax, sim):
    from matplotlib.patches import Patch

    p, kinds = sim.timeline.world_size, {_parts(event)[1] for event in sim.timeline}
    ax.set_yticks(range(p), [f"rank {rank}" for rank in range(p)], fontsize=FONT)
    ax.set_ylim(p - 0.45, -0.55)
    ax.set_xlim(0, sim.elapsed)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelbottom=False)
    ax.spines[["top", "right", "left"]].set_visible(False)
    handles = [
        Patch(label=PASSES[k], fc=FACES[k], hatch=HATCHES[k], edgecolor="white")
        for k in FACES
        if k in kinds
    ]
    place = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1), "ncols": 3}
    ax.legend(handles=handles, frameon=False, fontsize=FONT, borderaxespad=0, **place)


def _draw_boxes(ax, sim):
    from matplotlib.patches import Rectangle

    digits = max(len(_parts(event)[2]) for event in sim.timeline)
    p, parts = sim.timeline.world_size, [(e, *_parts(e)) for e in sim.timeline]
    first = {stage: e.rank for e, stage, _, micro in parts if micro == "0"}
    for event in sim.timeline:
        stage, kind, micro = _parts(event)
        start, span = event.start, event.stop - event.start
        other_way = event.rank != first[stage]  # a copy for other micro-batches
        dark, hatch = other_way or stage // p % 2, HATCHES[kind]
        face = (DARKER if dark else FACES)[kind]
        style = {"facecolor": face, "hatch": hatch, "edgecolor": "white", "lw": 0.6}
        ax.add_artist(Rectangle((start, event.rank - 0.43), span, 0.86, **style))
        if span * (WIDTH - LEFT - RIGHT) / sim.elapsed > WIDE * digits:
            # a number needs paper without dots
            paper = {"facecolor": face, "edgecolor": "none", "pad": 1.0}
            ax.text(
                start + span / 2, event.rank, micro, fontsize=9.5, ha="center",
                va="center", color="white" if dark else "black",
                bbox=paper if hatch else None,
            )  # fmt: skip


def held_over_time(sim, rank):
    """(times, counts): how many `_pieces` the rank holds, from each time on."""
    parts = [(event, *_parts(event)) for event in sim.timeline.rows[rank]["compute"]]
    left = sim.kept if any(kind == "W" for _, _, kind, _ in parts) else 0
    changes = {"F": 1, "B": left - 1, "W": -left}
    start_or_stop = lambda event, kind: event.start if kind == "F" else event.stop
    steps = [(start_or_stop(e, kind), changes[kind]) for e, _, kind, _ in parts]
    times, counts, held = [0.0], [0], 0
    for time, change in sorted(step for step in steps if step[1]):
        held += change
        times.append(time)
        counts.append(held)
    return times, counts


def _shown(sim):
    """Up to five ranks: first, last and some between."""
    p = sim.timeline.world_size
    last = min(4, max(1, p - 1))
    return sorted({round(k * (p - 1) / last) for k in range(min(p, 5))})


def _draw_held(ax, sim, ranks):
    """A staircase for each of these ranks."""
    for i, rank in enumerate(ranks):
        times, counts = held_over_time(sim, rank)
        label = f"rank {rank}: at most {sim.in_flight[rank]:g}"
        style = {"color": SHADES[i], "ls": LINES[i % len(LINES)], "lw": 1.4}
        steps = [*times, sim.elapsed], [*counts, counts[-1]]
        ax.step(*steps, where="post", label=label, **style)
    ax.set_ylim(0, 1.12 * max(sim.in_flight))
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.set_ylabel(f"{_pieces(sim)}\nheld", fontsize=FONT)
    ax.set_xlabel("time (units)", fontsize=FONT)
    ax.tick_params(labelsize=FONT)
    ax.spines[["top", "right"]].set_visible(False)


def _alt(sim):
    p = sim.timeline.world_size
    held = ", ".join(f"{most:g}" for most in sim.in_flight)
    return (
        f"Gantt chart of {p} ranks: {len(sim.timeline)} boxes in {sim.elapsed:g} units "
        f"of time, {sim.bubble:.1%} of the longest span empty. Below, how many "
        f"{_pieces(sim)} each rank holds; at most {held}."
    )


def _pieces(sim):
    """What a rank holds from F to B: micro-batches, or the inputs of its stages."""
    stages = {_parts(event)[0] for event in sim.timeline}
    one_each = len(stages) == sim.timeline.world_size
    return "micro-batches" if one_each else "stage inputs"
