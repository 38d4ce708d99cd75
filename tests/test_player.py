"""The player: its events are the timeline's, its page needs nobody else.

What the script computes is asked of Node, where there is one; `make browse` opens the
pages of the site and says what their scripts complain about.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser

import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import ROOT
from d2lpar.pipeline import schedule
from d2lpar.report import player
from d2lpar.report.events import Event, lanes
from d2lpar.report.looks import FACES
from d2lpar.report.timeline import Timeline
from d2lpar.report.units import show_bytes, show_seconds
from d2lpar.shared import notebooks
from d2lpar.shared.notebooks import EVENTS as MIME

NODE = shutil.which("node")
LARGEST = 60_000  # bytes of events in a chapter


def pass_on():
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((4,), float(r))
    if r == 0:
        dist.send(x, 1)  # the line that a player shows
    elif r == 1:
        dist.recv(x, 0)
    d2lpar.sleep(1e-3)
    dist.all_reduce(x)
    return n


@pytest.fixture(scope="module")
def run():
    return d2lpar.run(pass_on, world_size=3, backend="sim")


def ring(n, rounds=1):
    """Each rank sends to the next."""
    events = []
    for k, (step, r) in enumerate((s, r) for s in range(rounds) for r in range(n)):
        span, to = (step * 1e-5, (step + 1) * 1e-5), (r + 1) % n
        events.append(Event(r, "send", "send", *span, 1000, peer=to, id=k))
        events.append(Event(to, "recv", "recv", *span, 1000, peer=r, id=k))
        events.append(Event(r, "compute", "wait", *span))
    return Timeline(events, n)


def decoded(data):
    """The events that the data hold, places as [place, code]."""
    lines = {}
    for panel in data["panels"]:
        columns = {
            field: [None if v == "-" else float(v) for v in text.split()]
            for field, text in panel["events"].items()
        }
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        for row in rows:
            row["stream"] = data["streams"][int(row.get("stream", 0))]
            row["name"] = data["names"][int(row.get("name", 0))]
            place = row.get("where")
            row["where"] = None if place is None else data["places"][int(place)]
            row.setdefault("rank", 0)
        lines[panel["title"]] = [Event(**row) for row in rows]
    return lines


def without_place(events):
    return [event._replace(where=None, part=None) for event in events]


# the events


def test_the_data_are_the_timeline(run):
    small = Timeline([Event(0, "compute", "mm", 0.1, 0.3, flops=7)], 1)
    lines = {"a": run.timeline, "b": small, "c": Timeline([], 2)}
    data = json.loads(json.dumps(player.encode(lines)))
    found = decoded(data)
    for title, line in lines.items():
        assert without_place(found[title]) == without_place(line.events)
    assert [p["ranks"] for p in data["panels"]] == [3, 1, 2]
    assert [p["elapsed"] for p in data["panels"]] == [run.elapsed, 0.3, 0.0]


@pytest.mark.parametrize("world", ["sim", "gloo"])
def test_an_event_knows_its_line_of_code(world):
    done = d2lpar.run(pass_on, world_size=3, backend=world)
    source, first = inspect.getsourcelines(pass_on)
    line = first + next(k for k, text in enumerate(source) if "the line" in text)
    (sent,) = [e for e in done.timeline if e.stream == "send"]
    assert sent.where == (__file__, line)
    kinds = {e.kind for e in done.timeline if e.where}
    waits = {"sim": {"blocked", "transferring"}, "gloo": {"waiting"}}
    assert kinds >= {"sending", "receiving", "collective"} | waits[world]
    (event,) = [e for e in decoded(done.timeline.play().data).popitem()[1]
                if e.stream == "send"]  # fmt: skip
    place, code = event.where
    assert place.endswith(f"test_player.py:{line}") and not place.startswith("/")
    assert code.startswith("dist.send(x, 1)")


def test_computing_has_a_line_where_it_costs_time():
    cluster = d2lpar.Cluster.of("2xA100")
    done = d2lpar.run(pass_on, world_size=2, backend="sim", cluster=cluster)
    works = [e for e in done.timeline if e.kind == "compute"]
    assert works and all(e.where[0] == __file__ for e in works)


def test_a_file_elsewhere_is_called_by_its_name(tmp_path):
    event = Event(0, "send", "send", 0, 1, where=(str(tmp_path / "mine.py"), 3))
    data = player.encode({"a": Timeline([event], 1)})
    assert data["places"] == [["mine.py:3", ""]]


def test_too_many_events_are_a_sentence(monkeypatch):
    monkeypatch.setattr(player, "MOST_EVENTS", 5)
    with pytest.raises(ValueError, match=r"up to 5 events, and here are 6\. Cut out"):
        player.encode({"a": ring(2)})


def test_exposed_times_are_in_the_data():
    line = ring(2)
    (panel,) = player.encode({"a": line}, exposed=True)["panels"]
    spans = [[r, *s] for r in range(2) for s in line.exposed_spans(r)]
    assert panel["exposed"] == spans and spans


# the piece of a page


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_holds_events_picture_and_script(run):
    shown, about = run.timeline.play("A title")._repr_mimebundle_()
    assert set(shown) == {"text/plain", "image/png", "text/html", MIME}
    page = Page(shown["text/html"])
    kinds = [tag for tag, _ in page.tags]
    assert kinds == ["div", "script", "img", "script"]
    image = page.tags[2][1]
    assert image["src"].startswith("data:image/png;base64,iVBOR")
    assert image["alt"] == about["image/png"]["alt"] == shown[MIME]["alt"]
    assert json.loads(page.texts[1]) == shown[MIME]
    assert shown[MIME]["panels"][0]["title"] == "A title"
    assert page.tags[0][1] == {"class": "d2lpar-player"}
    assert shown["text/plain"].startswith("<Player: Timeline of 3 ranks")


def test_a_line_of_code_cannot_end_the_script():
    event = Event(0, "send", "</script><b>", 0, 1)
    data = player.encode({"a": Timeline([event], 1)}, alt='"<i>')
    page = Page(player.page_of(data, ""))
    assert [tag for tag, _ in page.tags] == ["div", "script", "img", "script"]
    assert json.loads(page.texts[1]) == data
    assert page.tags[2][1]["alt"] == '"<i>'


def test_the_script_loads_nothing():
    text = player.script()
    assert not re.search(r"https?:|//[a-z]|\bimport\b|fetch\(|XMLHttp|eval\(", text)
    assert "</script" not in text and len(text.encode()) < 40_000
    assert max(map(len, text.splitlines())) <= 88


def test_the_wheel_holds_the_script():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "/d2lpar" in wheel["include"]  # whatever it is, unless git ignores it
    tracked = ["git", "ls-files", "d2lpar/report/player.js"]
    found = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode or found.stdout.strip() == tracked[-1]


def test_comparisons_and_schedules_play(run):
    both = d2lpar.compare(one=run, two=run).play()
    titles = [panel["title"] for panel in both.data["panels"]]
    assert titles == ["one: 1.05 ms virtual", "two: 1.05 ms virtual"]
    sim = schedule.simulate(schedule.make("1f1b", p=2, m=3))
    data = sim.play().data
    assert data["units"] and data["alt"].startswith("Gantt chart of 2 ranks")
    assert "0F0" in data["names"]


def test_without_anywidget_a_sentence(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match="pip install anywidget. Without it"):
        run.timeline.play().widget()


def test_a_widget_has_the_same_data(run):
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    shown = run.timeline.play()
    widget = shown.widget()
    assert widget.data == shown.data and "export default" in widget._esm


# notebooks and the site


def cell_with(run):
    shown, about = run.timeline.play()._repr_mimebundle_()
    shown["image/png"] = "aGVsbG8=\n"
    output = {"output_type": "execute_result", "data": shown, "metadata": about}
    cell = {"cell_type": "code", "source": "x", "metadata": {}, "outputs": [output]}
    return {"cells": [cell], "metadata": {}}, output


def test_a_committed_notebook_keeps_picture_and_events(run, tmp_path):
    notebook, output = cell_with(run)
    events = output["data"][MIME]
    notebooks.normalise(notebook)
    notebooks.write(tmp_path / "a.ipynb", notebook)
    (cell,) = notebooks.read(tmp_path / "a.ipynb")["cells"]
    data = cell["outputs"][0]["data"]
    assert set(data) == {"image/png", "text/plain", MIME} and data[MIME] == events


def test_the_site_makes_a_player_of_it(run, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "site"))
    import collect

    notebook, output = cell_with(run)
    events = output["data"][MIME]
    output["data"].pop("text/html")
    collect.page(notebook)
    assert set(output["data"]) == {"text/plain", "image/png", "text/html"}
    assert json.loads(Page(output["data"]["text/html"]).texts[1]) == events


def committed():
    """(chapter, events) of every player in the chapters."""
    for path in notebooks.find():
        for cell in notebooks.read(path)["cells"]:
            for output in cell.get("outputs", []):
                if MIME in output.get("data", {}):
                    yield path.stem, output["data"]


def test_players_of_the_chapters_are_small_and_have_pictures():
    found = list(committed())
    sizes = {name: len(json.dumps(data[MIME])) for name, data in found}
    assert len(found) == len(sizes) >= 3, "at most one player in a chapter"
    assert max(sizes.values()) < LARGEST, sizes
    for _, data in found:
        assert "image/png" in data and "text/html" not in data
        for lines in decoded(data[MIME]).values():
            assert lines and all(e.stop >= e.start for e in lines)


# the script, in Node

needs_node = pytest.mark.skipif(NODE is None, reason="Node is not installed")


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Gives the value of an expression; `p` is the module, `data` what is given."""
    folder = tmp_path_factory.mktemp("player")
    (folder / "player.mjs").write_text(player.script(), encoding="utf-8")
    head = (
        'import * as p from "./player.mjs"; import fs from "node:fs";\n'
        'const data = JSON.parse(fs.readFileSync(0, "utf-8"));\n'
    )

    def evaluate(expression, data=None):
        program = f"{head}console.log(JSON.stringify({expression}));"
        done = subprocess.run(
            [NODE, "--input-type=module", "-e", program],
            input=json.dumps(data), cwd=folder, capture_output=True, text=True,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return evaluate


@needs_node
def test_the_script_reads_the_same_events(run, ask):
    line = run.timeline
    data = player.encode({"a": line, "b": ring(3)})
    first, second = ask("p.decode(data).panels", data)
    fields = [f for f in Event._fields if f not in ("where", "part")]
    for event, found in zip(line.events, first["events"], strict=True):
        assert [found[f] for f in fields] == [getattr(event, f) for f in fields]
        assert found["kind"] == event.look
    assert len(second["messages"]) == len(ring(3).messages()) == 3
    for pair in second["messages"]:
        assert pair["send"]["id"] == pair["recv"]["id"]
        assert pair["send"]["peer"] == pair["recv"]["rank"]


@needs_node
def test_lanes_are_those_of_the_pictures(ask):
    spans = [(0, 3), (1, 4), (2, 5), (3, 6), (4, 9), (5, 6)]
    events = [Event(0, "recv", "recv", a * 1e-6, b * 1e-6) for a, b in spans]
    found = ask("p.lanes(data)", [e._asdict() for e in events])
    assert found == {"chosen": lanes(events), "count": 3}


@needs_node
def test_many_ranks_are_folded_and_can_be_opened(ask):
    data = player.encode({"a": ring(64)})
    rows = "[...new Set(plan.rows.map((r) => r.rank))]"
    inside = f"((plan) => ({{ ranks: {rows}, folds: plan.folds }}))"
    plan = f"{inside}(p.layout(p.decode(data).panels, () => false, () => whole))"
    folded = ask(plan.replace("whole", "false"), data)
    assert folded["ranks"] == [*range(8), 62, 63]
    assert [fold["text"] for fold in folded["folds"]] == ["54 ranks more"]
    opened = ask(plan.replace("whole", "true"), data)
    assert opened["ranks"] == [*range(64)] and opened["folds"] == []


LAYOUT = "p.layout(p.decode(data).panels, () => true, () => false)"


@needs_node
def test_what_is_under_the_pointer(ask):
    data = player.encode({"a": ring(4, rounds=2)})
    rows = ask(f"{LAYOUT}.rows", data)
    names = [(row["rank"], row["stream"]) for row in rows]
    assert names == [(r, s) for r in range(4) for s in ("compute", "send", "recv")]
    row = rows[names.index((2, "send"))]
    middle = row["top"] + row["height"] / 2
    found = ask(f"p.hit({LAYOUT}, {middle}, 1.5e-5).event", data)
    assert (found["rank"], found["peer"], found["start"]) == (2, 3, 1e-5)
    assert ask(f"p.hit({LAYOUT}, {middle}, 9e-5).event", data) is None
    near = f"p.hit({LAYOUT}, {middle}, 2.1e-5, 2e-6).event"
    assert ask(near, data)["start"] == 1e-5


@needs_node
def test_moments_and_what_they_bring(ask):
    data = player.encode({"a": ring(4, rounds=3)})
    moments = ask("p.moments(p.decode(data).panels)", data)
    assert moments == pytest.approx([0, 1e-5, 2e-5, 3e-5])
    told = ask("p.tell(p.decode(data), 1e-5)", data)
    assert told == (
        "at 10 us  starts: rank 0: is in a transfer; rank 0: sends to 1; "
        "rank 1: is in a transfer; 5 more. 12 ended. 4 in flight."
    )
    active = ask("p.doing(p.decode(data).panels[0], 1, 1.2e-5)", data)
    assert sorted(e["stream"] for e in active) == ["compute", "recv", "send"]


@needs_node
def test_an_event_is_described_with_bytes_and_line(run, ask):
    data = player.encode({"a": run.timeline})
    send = "p.decode(data).panels[0].events.find((e) => e.stream === 'send')"
    found = ask(f"p.describe({send})", data)
    assert found[:2] == ["rank 0: sends to 1", "0 s to 10 us (10 us), 16 B"]
    assert re.match(r".*test_player.py:\d+   dist.send\(x, 1\)", found[2])


@needs_node
def test_numbers_read_as_in_the_pictures(ask):
    times = [3e-9, 1.5e-6, 2.2e-4, 0.0315, 0.9999, 1.5, 62.5]
    sizes = [0, 16, 4096, 999_999, 1_000_000, 24_580_000, 1.5e9, 2e12]
    assert ask("data.map(p.seconds)", times) == [show_seconds(t) for t in times]
    assert ask("data.map(p.size)", sizes) == [show_bytes(int(b)) for b in sizes]


@needs_node
def test_bars_carry_their_labels(ask):
    events = [
        Event(0, "compute", "mm", 0, 1, label="F3"),
        Event(0, "compute", "mm", 1, 2, label="1B1"),
        Event(0, "compute", "blocked", 2, 3),
        Event(0, "compute", "transfer", 3, 4),
        Event(0, "comm", "all_gather", 3, 4, label="1"),
        Event(0, "comm", "all_reduce", 5, 6),
    ]
    line = Timeline(events, 1)
    data = player.encode({"a": line})
    found = ask("p.decode(data).panels[0].events.map((e) => [e.kind, e.dark])", data)
    dark = [False, True, False, False, False, False]
    assert found == [[e.look, d] for e, d in zip(line, dark, strict=True)]
    texts = ask("p.decode(data).panels[0].events.map(p.lettersOf)", data)
    wanted = [["F3", "3"], ["B1", "1"], [], [], ["AG1", "1"], ["all_reduce", "AR"]]
    assert texts == wanted


@needs_node
def test_the_legend_says_what_comes_from_a_formula(ask):
    event = Event(0, "comm", "all_reduce", 0, 1)
    words = "data.map((k) => p.wordOf(k, [{ clock: CLOCK }]))"
    kinds = [event.look, "collective", "compute"]
    formula = ["AR all_reduce, by formula", "collective, by formula", "compute"]
    assert ask(words.replace("CLOCK", "'virtual'"), kinds) == formula
    measured = ask(words.replace("CLOCK", "'measured'"), kinds)
    assert measured == ["AR all_reduce", "collective", "compute"]


def test_the_colours_are_those_of_the_pictures():
    text = player.script()
    for look, face in FACES.items():
        if face != "#FFFFFF":  # the page's own paper
            assert re.search(rf'"?{look}"?: {{ face: "{face}"', text), look


@needs_node
def test_actions_of_a_schedule_have_kinds_of_their_own(ask):
    sim = schedule.simulate(schedule.make("interleaved", p=2, m=4, v=2))
    events = ask("p.decode(data).panels[0].events", sim.play().data)
    assert {e["kind"] for e in events} == {"forward", "backward"}
    stages = {e["name"][0]: e["dark"] for e in events}
    assert stages == {"0": False, "1": False, "2": True, "3": True}
