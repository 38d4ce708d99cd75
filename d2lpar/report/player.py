"""Timelines that move: the recorded events, and the page's script that plays them.

A `Player` in a notebook is a piece of HTML that holds its events and `player.js`, so
that it needs no kernel, no extension and no other host: JupyterLab, Notebook, VS Code
and Colab run it, and so does the site.  Where no script runs, the picture is shown.
Committed notebooks keep the picture and, under a mime type of its own, the events.
"""

import base64
import functools
import html
import json
import os
from importlib.resources import files

from ..shared.notebooks import EVENTS
from . import places, plots

MOST_EVENTS = 50_000
PLAIN = ("rank", "start", "stop", "bytes", "flops", "peer", "id")
ALWAYS = ("start", "stop")
NAMED = {"stream": "streams", "name": "names", "where": "places", "label": "labels"}


class Player:
    """Timelines on one time axis that a page can play; `picture` is their figure."""

    def __init__(self, timelines, picture, exposed=False, units=False):
        self.picture, alt = picture, picture.alt
        self.data = encode(timelines, alt, exposed, units)

    def __repr__(self):
        return f"<Player: {self.data['alt']}>"

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, about = self.picture._repr_mimebundle_()
        page = page_of(self.data, base64.b64encode(data["image/png"]).decode())
        mine = {"text/plain": repr(self), "text/html": page, EVENTS: self.data}
        return data | mine, about

    def widget(self):
        """The same player as an anywidget, to stand among other ipywidgets."""
        try:
            import anywidget
        except ImportError:
            raise ImportError(
                "Player.widget() puts the player among other widgets and needs "
                "anywidget: pip install anywidget. Without it, show the player itself."
            ) from None
        import traitlets

        class PlayerWidget(anywidget.AnyWidget):
            _esm = script()
            data = traitlets.Dict().tag(sync=True)

        return PlayerWidget(data=self.data)


def compare(timelines, exposed=False):
    """A Player of several timelines, name by name, which run at the same time."""
    picture = plots.compare_timelines(timelines, exposed=exposed)
    return Player(plots.titles_of(timelines, exposed), picture, exposed)


# ------------------------------------------------------------------ events as JSON


def encode(timelines, alt="", exposed=False, units=False):
    """The events as a dictionary for JSON: a text of numbers per field, "0 1e-05 -".

    Names and places are numbers, too, into their lists.  What no event has is left
    out.  With `units` a time is in units of a schedule, not in seconds.
    """
    count = sum(map(len, timelines.values()))
    if count > MOST_EVENTS:
        raise ValueError(
            f"A player holds up to {MOST_EVENTS:,} events, and here are {count:,}. "
            "Cut out a part, such as timeline.between(0, 1e-3).play()."
        )
    tables = {name: {} for name in NAMED.values()}
    panels = [_panel(title, line, tables, exposed) for title, line in timelines.items()]
    tables["places"] = [_place(where) for where in tables["places"]]
    data = {"version": 1, "alt": alt, "panels": panels, "units": units}
    return data | {name: list(table) for name, table in tables.items()}


def _panel(title, timeline, tables, exposed):
    columns = {field: [] for field in (*PLAIN, *NAMED)}
    for event in timeline:
        for field in PLAIN:
            columns[field].append(getattr(event, field))
        for field, name in NAMED.items():
            value, table = getattr(event, field), tables[name]
            number = None if value is None else table.setdefault(value, len(table))
            columns[field].append(number)
    events = {f: _text(c) for f, c in columns.items() if f in ALWAYS or _says(f, c)}
    panel = {"title": title, "ranks": timeline.world_size, "clock": timeline.clock}
    panel |= {"elapsed": timeline.elapsed, "events": events}
    if exposed:
        ranks = range(timeline.world_size)
        spans = ((r, *span) for r in ranks for span in timeline.exposed_spans(r))
        panel["exposed"] = [list(span) for span in spans]
    return panel


def _says(field, column):
    """Whether an event has another value than usual."""
    usual = None if field in ("peer", "id", "where", "label") else 0
    return any(value != usual for value in column)


def _text(column):
    return " ".join("-" if value is None else repr(value) for value in column)


def _place(where):
    """[place, code] of a line; a file that is not below here by its name alone."""
    if not where[0]:
        return ["", ""]
    place = places.place(where)
    short = os.path.basename(place) if os.path.isabs(place) else place
    return [short, places.source(where)]


# ------------------------------------------------------------------ a piece of a page


@functools.cache
def script():
    """The text of the JavaScript module."""
    return files(__package__).joinpath("player.js").read_text(encoding="utf-8")


def page_of(data, png):
    """HTML that plays `data`, or shows the picture where no script may run."""
    events = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    alt = html.escape(data["alt"], quote=True)
    return "\n".join(
        [
            '<div class="d2lpar-player">',
            f'<script type="application/json">{events}</script>',
            f'<img src="data:image/png;base64,{png}" alt="{alt}">',
            "</div>",
            f'<script type="module">\n{script()}\nmountAll(document);\n</script>',
        ]
    )
