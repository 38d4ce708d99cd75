"""Timelines: the text twin to the letter, the trace read back, the pictures."""

import json
import pickle
import re
import subprocess
import sys

import pytest
from matplotlib.colors import to_hex

from d2lpar.show import plots
from d2lpar.show.events import Event, lanes
from d2lpar.show.timeline import Timeline
from d2lpar.show.units import show_bytes, show_seconds


def message(number, src, dst, start, stop, size):
    return [
        Event(src, "send", "send", start, stop, size, peer=dst, id=number),
        Event(dst, "recv", "recv", start, stop, size, peer=src, id=number),
    ]


@pytest.fixture
def small():
    """Rank 1 sends to rank 0, which then computes; both reduce in the end."""
    events = [
        Event(0, "compute", "wait", 0.0, 2e-5),
        *message(7, 1, 0, 0.0, 2e-5, 100_000),
        Event(0, "compute", "mm", 2e-5, 3e-5, flops=1000),
        Event(0, "comm", "all_reduce", 3e-5, 5e-5, 8),
        Event(1, "comm", "all_reduce", 3e-5, 5e-5, 8),
        Event(0, "compute", "wait", 3e-5, 5e-5),
        Event(1, "compute", "wait", 0.0, 5e-5),
    ]
    return Timeline(reversed(events), 2)


def ring(n, seconds=1e-5, steps=None):
    """Each rank sends to the next, `steps` times."""
    events, number = [], 0
    for step in range(2 * (n - 1) if steps is None else steps):
        start, stop = step * seconds, (step + 1) * seconds
        for rank in range(n):
            events += message(number, rank, (rank + 1) % n, start, stop, 1000)
            events.append(Event(rank, "compute", "wait", start, stop))
            number += 1
    return Timeline(events, n)


def test_events_are_sorted_and_counted(small):
    keys = [(event.start, event.rank) for event in small]
    assert keys == sorted(keys)
    assert len(small) == len(small.events) == 8
    assert small.elapsed == 5e-5 and small.clock == "virtual"
    assert Timeline(small.events[::-1], 2).events == small.events
    assert pickle.loads(pickle.dumps(small)).events == small.events


def test_the_repr_is_one_line(small):
    assert repr(small) == "Timeline: 2 ranks, 8 events, 50 us virtual"
    assert repr(Timeline([], 1)) == "Timeline: 1 rank, 0 events, 0 s virtual"


TWIN = """\
2 ranks, 8 events, 50 us virtual; a column is 1 us
                0         10 us     20 us     30 us     40 us     50 us
rank 0 compute |....................CCCCCCCCCC....................|
       recv    |R1RRRRRRRRRRRRRRRRRR                              |
       comm    |                              =all_reduce=========|
rank 1 compute |..................................................|
       send    |S0SSSSSSSSSSSSSSSSSS                              |
       comm    |                              =all_reduce=========|

C compute   . waiting   S sending   R receiving   = collective
S2: a message to rank 2   R0: a message from rank 0

                 compute     waiting     sending   receiving  collective
rank 0             10 us       40 us           -       20 us       20 us
rank 1                 -       50 us       20 us           -       20 us"""


def test_the_text_twin_of_a_small_timeline(small):
    assert str(small) == TWIN


def test_an_empty_timeline_has_a_text_too():
    lines = str(Timeline([], 2)).splitlines()
    assert lines[0] == "2 ranks, 0 events, 0 s virtual; a column is 1 us"
    assert lines[2:4] == ["rank 0 compute | |", "rank 1 compute | |"]


@pytest.mark.parametrize("n", [1, 2, 16, 17, 64, 1024])
def test_no_line_is_wider_than_79(n):
    lines = str(ring(n, steps=3)).splitlines()
    assert max(map(len, lines)) <= 79


def test_many_ranks_are_summed_up_and_that_is_said():
    lines = str(ring(64, steps=3)).splitlines()
    names = [line[:7] for line in lines if line.startswith("rank") and "|" in line]
    assert names == [f"rank {r:>2}" for r in (*range(8), 62, 63)]
    assert "... 54 ranks not shown ..." in lines
    mean = ["mean of all", "-", "30 us", "30 us", "30 us", "-"]
    assert re.split(r"  +", lines[-2]) == mean


def test_totals_count_what_overlaps_once():
    events = [
        Event(0, "recv", "recv", 0.0, 3.0, peer=1, id=0),
        Event(0, "recv", "recv", 1.0, 4.0, peer=1, id=1),
        Event(0, "compute", "mm", 0.0, 1.0),
        Event(0, "compute", "wait", 1.0, 4.0),
        Event(0, "comm dp", "broadcast", 6.0, 8.0),
    ]
    line = Timeline(events, 2)
    assert line.totals(0) == {
        "compute": 1.0,
        "waiting": 3.0,
        "sending": 0.0,
        "receiving": 4.0,
        "collective": 2.0,
    }
    assert sum(line.totals(1).values()) == 0
    assert line.busy(0) == 1 / 8 and line.busy(0, "recv") == 1 / 2
    assert line.busy(1) == 0 and Timeline([], 1).busy(0) == 0
    assert lanes(line.rows[0]["recv"]) == [0, 1]
    assert list(line.rows[0]) == ["compute", "recv", "comm dp"]


def test_the_trace_read_back_is_the_timeline(small, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    small.to_chrome_trace(path)
    trace = json.loads(path.read_text())
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    assert trace["otherData"] == {"clock": "virtual", "world_size": 2}
    events = trace["traceEvents"]
    names = {
        (e["name"], e["pid"], e["tid"]): e["args"].get("name")
        for e in events
        if e["ph"] == "M"
    }
    assert names["process_name", 1, 0] == "rank 1"
    threads = {k[1:]: v for k, v in names.items() if k[0] == "thread_name"}
    assert [threads[0, tid] for tid in (1, 2, 3)] == ["compute", "recv", "comm"]
    read = sorted(
        (e["ts"], e["dur"], e["pid"], threads[e["pid"], e["tid"]], e["name"])
        for e in events
        if e["ph"] == "X"
    )
    assert read == sorted(
        (round(e.start * 1e6, 3), round((e.stop - e.start) * 1e6, 3), e.rank)
        + (e.stream, e.name)
        for e in small
    )
    send = next(e for e in events if e["name"] == "send")
    assert send["args"] == {"bytes": 100_000, "flops": 0, "peer": 0, "message": 7}


def test_flows_join_the_two_ends_of_each_message(tmp_path):
    line = ring(4)
    line.to_chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    stops = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == stops.keys() == set(range(24))

    def around(flow):
        return [
            e["name"]
            for e in slices
            if (e["pid"], e["tid"]) == (flow["pid"], flow["tid"])
            and e["ts"] <= flow["ts"] < e["ts"] + e["dur"]
            and e["args"].get("message") == flow["id"]
        ]

    for number, start in starts.items():
        stop = stops[number]
        assert stop["pid"] == (start["pid"] + 1) % 4 and stop["bp"] == "e"
        assert around(start) == ["send"] and around(stop) == ["recv"]
        assert start["ts"] <= stop["ts"]


def test_slices_of_a_thread_never_overlap(tmp_path):
    events = [
        Event(0, "recv", "recv", a, b, id=k)
        for k, (a, b) in enumerate([(0, 3e-5), (1e-5, 4e-5), (3e-5, 5e-5)])
    ]
    line = Timeline(events, 1, clock="measured", devices=["cuda:0"])
    line.to_chrome_trace(str(tmp_path / "t.json"))
    trace = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in trace if e["name"] == "thread_name"]
    assert names == ["compute", "recv", "recv (2)"]
    assert [e["tid"] for e in trace if e["ph"] == "X"] == [2, 3, 2]
    labels = [e["args"] for e in trace if e["name"] == "process_labels"]
    assert labels == [{"labels": "cuda:0"}]


def test_a_missing_folder_is_one_sentence(small, tmp_path):
    with pytest.raises(ValueError) as error:
        small.to_chrome_trace("no/such/trace.json")
    sentence = "There is no folder 'no/such' to write 'trace.json' in."
    assert str(error.value) == sentence


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")
    bad = Timeline([Event(0, "compute", "mm", 0, 1, bytes=object())], 1)
    with pytest.raises(TypeError):
        bad.to_chrome_trace(path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


@pytest.fixture
def hidden():
    """A rank computes 0-4 and 6-7 and waits in between; two collectives, a message."""
    events = [
        Event(0, "compute", "mm", 0.0, 4.0),
        Event(0, "compute", "wait", 4.0, 6.0),
        Event(0, "compute", "mm", 6.0, 7.0),
        Event(0, "compute", "wait", 7.0, 8.0),
        Event(0, "comm", "all_reduce", 1.0, 3.0, bytes=8),
        Event(0, "comm", "all_reduce", 3.5, 5.0, bytes=8),
        Event(0, "recv", "recv", 4.5, 5.5, bytes=8, peer=1, id=1),
        Event(1, "send", "send", 4.5, 5.5, bytes=8, peer=0, id=1),
    ]
    return Timeline(events, 2)


def test_exposed_is_what_no_computation_hides(hidden):
    assert hidden.exposed_spans(0) == [(4.0, 5.5)] and hidden.exposed(0) == 1.5
    assert hidden.exposed_spans(1) == [] and hidden.exposed(1) == 0


def test_a_part_of_a_timeline_begins_at_zero(hidden):
    part = hidden.between(3.0, 5.0)
    assert part.elapsed == 2.0 and part.clock == hidden.clock
    spans = [(e.rank, e.name, e.start, e.stop) for e in part]
    assert spans == [
        (0, "mm", 0.0, 1.0),
        (0, "all_reduce", 0.5, 2.0),
        (0, "wait", 1.0, 2.0),
        (0, "recv", 1.5, 2.0),
        (1, "send", 1.5, 2.0),
    ]
    assert part.exposed(0) == 1.0
    with pytest.raises(ValueError, match="from 5 to 5"):
        hidden.between(5, 5)


def boxes(axes, colour):
    """Extents in time of what is drawn in this colour."""
    found = []
    for drawn in axes.collections:
        if to_hex(drawn.get_facecolor()[0], keep_alpha=True) == colour:
            for path in drawn.get_paths():
                x, y = path.get_extents().intervalx, path.get_extents().intervaly
                found.append((*x, *y))
    return found


def test_exposed_communication_is_shaded_over_all_rows_of_its_rank(hidden):
    colour = plots.EXPOSED["facecolors"].lower()
    figure = hidden.plot(exposed=True)
    assert boxes(figure.axes[0], colour) == [(4.0, 5.5, 0.0, 3.0)]
    assert "exposed for 1.5 s" in figure.axes[0].get_title(loc="left")
    assert "exposed communication 9%" in figure.alt
    assert [t.get_text() for t in figure.legends[0].texts][-1] == "exposed"
    usual = hidden.plot()
    assert boxes(usual.axes[0], colour) == [] and "exposed" not in usual.alt
    both = plots.compare_timelines({"a": hidden, "b": hidden}, exposed=True)
    assert [len(boxes(axes, colour)) for axes in both.axes] == [1, 1]
    assert hidden.plot(ax=usual.axes[0], exposed=True) is usual.axes[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-10, "0.5 ns"),
        (8e-7, "800 ns"),
        (9.9999e-7, "1 us"),
        (2.2e-4, "220 us"),
        (0.00099999, "1 ms"),
        (0.0013862, "1.386 ms"),
        (2, "2 s"),
        (123456, "123,456 s"),
    ],
)
def test_seconds_have_a_unit(seconds, text):
    assert show_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1536, "1,536 B"),
        (999_999, "999,999 B"),
        (1_000_000, "1 MB"),
        (24_576_000, "24.58 MB"),
        (999_999_999, "1 GB"),
        (80e9, "80 GB"),
        (3e15, "3 PB"),
    ],
)
def test_small_counts_of_bytes_are_exact(count, text):
    assert show_bytes(count) == text


def words(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def arrows(axes):
    return sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts)


def test_a_picture_has_a_row_per_rank_and_stream(small):
    figure = small.plot()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0  compute",
        "recv",
        "comm",
        "rank 1  compute",
        "send",
        "comm",
    ]
    assert sorted(words(axes)) == ["all_reduce", "all_reduce", "from 1", "mm", "to 0"]
    assert axes.get_xlabel() == "time (us, virtual)" and axes.get_xlim() == (0, 50)
    (legend,) = figure.legends
    kinds = [text.get_text() for text in legend.get_texts()]
    assert kinds == ["compute", "waiting", "sending", "receiving", "collective"]


def test_few_messages_have_arrows_many_have_numbers():
    (few,) = ring(4).plot().axes
    assert arrows(few) == 24
    many = ring(4, steps=20)
    (axes,) = many.plot(width=16).axes
    assert arrows(axes) == 0
    assert sorted(words(axes)) == sorted(2 * [f"{k}" for k in range(80)])
    (narrow,) = many.plot(width=4).axes
    assert set(words(narrow)) == {"0", "1", "2", "3"}


def overlaps(figure):
    """Pairs of labels on the picture that touch."""
    figure.canvas.draw()
    boxes = []
    for axes in figure.axes:
        texts = [text for text in axes.texts if text.get_text()]
        texts += axes.get_yticklabels() + [axes.title, axes._left_title]
        boxes += [t.get_window_extent() for t in texts if t.get_text()]
    return sum(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize(("n", "steps"), [(2, 2), (4, 6), (4, 30), (16, 6), (64, 4)])
def test_no_labels_overlap(n, steps):
    figure = ring(n, steps=steps).plot()
    assert overlaps(figure) == 0
    low, high = figure.axes[0].get_tightbbox().x0, figure.bbox.x1
    assert low >= 0 and figure.axes[0].get_tightbbox().x1 <= high


def test_at_64_ranks_every_eighth_has_a_name():
    (axes,) = ring(64, steps=4).plot().axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [f"rank {rank}" for rank in range(0, 64, 8)]
    assert arrows(axes) == 0 and words(axes) == []
    (axes,) = ring(300, steps=1).plot().axes
    assert axes.get_title("left") == "300 ranks, 10 us virtual (one rank in 3 is drawn)"


def test_given_axes_are_drawn_on_and_returned(small):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert small.plot(ax=axes, title="mine") is axes
    assert axes.get_title("left") == "mine" and axes.get_legend() is not None


def test_compared_timelines_share_the_axis_of_the_longest():
    figure = plots.compare_timelines({"long": ring(4), "short": ring(4, steps=3)})
    assert [axes.get_xlim()[1] for axes in figure.axes] == [pytest.approx(60)] * 2
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["long: 60 us virtual", "short: 30 us virtual"]
    assert figure.alt.startswith("long: Timeline of 4 ranks over 60 us")
    with pytest.raises(ValueError, match="There is no timeline to draw."):
        plots.compare_timelines({})


def test_a_picture_says_in_words_what_it_shows(small):
    sentence = (
        "Timeline of 2 ranks over 50 us of virtual time, 1 message; of its time a "
        "rank spends on average compute 10%, waiting 90%, sending 20%, "
        "receiving 20%, collective 40%."
    )
    figure = small.plot()
    assert plots.alt_text(small) == figure.alt == sentence
    data, about = figure._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert about["image/png"]["alt"] == sentence
    empty = Timeline([], 3)
    assert plots.alt_text(empty) == "Timeline of 3 ranks without any events."
    assert empty.plot().axes[0].get_xlabel() == "time (us, virtual)"


def test_pictures_leave_pyplot_alone():
    code = (
        "import sys; from d2lpar.show import events, plots, timeline\n"
        "from d2lpar.world import runs\n"
        "assert 'matplotlib' not in sys.modules\n"
        "event = events.Event(0, 'compute', 'mm', 0, 1)\n"
        "timeline.Timeline([event], 1).plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
