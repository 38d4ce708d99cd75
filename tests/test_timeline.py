"""Timelines: the text twin to the letter, the trace read back, the pictures."""

import io
import json
import pickle
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.utils.checkpoint import checkpoint

import d2lpar
import d2lpar.allreduce as a
from d2lpar.report import plots
from d2lpar.report.events import Event, joined, lanes
from d2lpar.report.looks import FACES
from d2lpar.report.timeline import Timeline
from d2lpar.report.units import show_bytes, show_seconds


def work(rank, start, stop, name="mm", label=None):
    return Event(rank, "compute", name, start, stop, label=label)


def comm(rank, start, stop, name="all_reduce", label=None):
    return Event(rank, "comm", name, start, stop, 8, label=label)


def message(number, src, dst, start, stop, size=8):
    return [
        Event(src, "send", "send", start, stop, size, peer=dst, id=number),
        Event(dst, "recv", "recv", start, stop, size, peer=src, id=number),
    ]


@pytest.fixture
def small():
    """Rank 1 sends to rank 0, which then computes; both reduce in the end."""
    events = [
        work(0, 0.0, 2e-5, "wait"),
        *message(7, 1, 0, 0.0, 2e-5, 100_000),
        work(0, 2e-5, 3e-5),
        comm(0, 3e-5, 5e-5),
        comm(1, 3e-5, 5e-5),
        work(0, 3e-5, 5e-5, "wait"),
        work(1, 0.0, 5e-5, "wait"),
    ]
    return Timeline(reversed(events), 2)


def ring(n, steps):
    """Each rank sends to the next, `steps` times, in 10 us."""
    events = []
    for number in range(n * steps):
        step, rank = divmod(number, n)
        start, stop = step * 1e-5, (step + 1) * 1e-5
        events += message(number, rank, (rank + 1) % n, start, stop, 1000)
        events.append(work(rank, start, stop, "wait"))
    return Timeline(events, n)


def test_events_are_sorted_and_counted(small):
    keys = [(event.start, event.rank) for event in small]
    assert keys == sorted(keys)
    assert len(small) == len(small.events) == 10  # two waits are cut in two
    assert small.elapsed == 5e-5 and small.clock == "virtual"
    assert Timeline(small.events[::-1], 2).events == small.events
    assert pickle.loads(pickle.dumps(small)).events == small.events


TWIN = """\
2 ranks, 10 events, 50 us virtual, collectives by formula; a column is 1 us
                0         10 us     20 us     30 us     40 us     50 us
rank 0 compute |~~~~~~~~~~~~~~~~~~~~CCCCCCCCCC~~~~~~~~~~~~~~~~~~~~|
       recv    |R1RRRRRRRRRRRRRRRRRR                              |
       comm    |                              =all_reduce=========|
rank 1 compute |~~~~~~~~~~~~~~~~~~~~..........~~~~~~~~~~~~~~~~~~~~|
       send    |S0SSSSSSSSSSSSSSSSSS                              |
       comm    |                              =all_reduce=========|

C compute   . blocked   ~ transferring   S sending   R receiving   = collective
S2: a message to rank 2   R0: a message from rank 0

               compute   blocked transferring   sending receiving collective
rank 0           10 us         -        40 us         -     20 us      20 us
rank 1               -     10 us        40 us     20 us         -      20 us"""


def test_the_text_twin_of_a_small_timeline(small):
    assert str(small) == TWIN
    assert repr(small) == "Timeline: " + TWIN.partition(";")[0]


def test_an_empty_timeline_has_a_text_and_a_picture_too():
    empty = Timeline([], 2)
    lines = str(empty).splitlines()
    assert lines[0] == "2 ranks, 0 events, 0 s virtual; a column is 1 us"
    assert lines[2:4] == ["rank 0 compute | |", "rank 1 compute | |"]
    assert repr(Timeline([], 1)) == "Timeline: 1 rank, 0 events, 0 s virtual"
    assert empty.busy(0) == 0
    assert empty.plot().alt == "Timeline of 2 ranks without any events."
    assert empty.plot().axes[0].get_xlabel() == "time (us, virtual)"


@pytest.mark.parametrize("n", [1, 2, 16, 17, 64, 1024])
def test_no_line_is_wider_than_79(n):
    assert max(map(len, str(ring(n, 3)).splitlines())) <= 79


def test_many_ranks_are_summed_up_and_that_is_said():
    lines = str(ring(64, 3)).splitlines()
    names = [line[:7] for line in lines if line.startswith("rank") and "|" in line]
    assert names == [f"rank {r:>2}" for r in (*range(8), 62, 63)]
    assert "... 54 ranks not shown ..." in lines
    mean = ["mean of all", "-", "-", "30 us", "30 us", "30 us", "-"]
    assert re.split(r"  +", lines[-2]) == mean


def test_totals_count_what_overlaps_once():
    events = [
        *[Event(0, "recv", "recv", k, k + 3, peer=1, id=k) for k in (0, 1)],
        work(0, 0.0, 1.0),
        work(0, 1.0, 4.0, "wait"),
        Event(0, "comm dp", "broadcast", 6.0, 8.0),
    ]
    line = Timeline(events, 2)
    some = {"compute": 1.0, "transferring": 3.0, "receiving": 4.0, "collective": 2.0}
    none = {"blocked": 0.0, "waiting": 0.0, "sending": 0.0}
    assert line.totals(0) == some | none
    assert sum(line.totals(1).values()) == line.busy(1) == 0
    assert line.busy(0) == 1 / 8 and line.busy(0, "recv") == 1 / 2
    assert lanes(line.rows[0]["recv"]) == [0, 1]
    assert list(line.rows[0]) == ["compute", "recv", "comm dp"]


def traced(line, folder):
    """The events of the trace that this timeline writes, by their phase."""
    line.to_chrome_trace(folder / "trace.json")
    trace = json.loads((folder / "trace.json").read_text())
    assert trace["otherData"] == {"clock": line.clock, "world_size": line.world_size}
    return {ph: [e for e in trace["traceEvents"] if e["ph"] == ph] for ph in "MXsf"}


def threads(trace):
    """{(rank, thread): its name}."""
    about = [e for e in trace["M"] if e["name"] == "thread_name"]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in about}


def test_the_trace_read_back_is_the_timeline(small, tmp_path):
    trace = traced(small, tmp_path)
    names = [e["args"].get("name") for e in trace["M"] if e["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]
    named = threads(trace)
    assert [named[0, thread] for thread in (1, 2, 3)] == ["compute", "recv", "comm"]
    read = sorted(
        (e["ts"], e["dur"], e["pid"], named[e["pid"], e["tid"]], e["name"])
        for e in trace["X"]
    )
    assert read == sorted(
        (round(e.start * 1e6, 3), round((e.stop - e.start) * 1e6, 3), e.rank)
        + (e.stream, e.name)
        for e in small
    )
    send = next(e for e in trace["X"] if e["name"] == "send")
    assert send["args"] == {"bytes": 100_000, "flops": 0, "peer": 0, "message": 7}


def test_flows_join_the_two_ends_of_each_message(tmp_path):
    trace = traced(ring(4, 6), tmp_path)
    ends = {(e["name"], e["args"].get("message")): e for e in trace["X"]}
    starts, stops = ({e["id"]: e for e in trace[ph]} for ph in "sf")
    assert starts.keys() == stops.keys() == set(range(24))
    for number, stop in stops.items():
        assert stop["bp"] == "e" and starts[number]["ts"] <= stop["ts"]
        for flow, name in (starts[number], "send"), (stop, "recv"):
            end = ends[name, number]
            assert flow["pid"] == end["pid"] == (number + (name == "recv")) % 4
            assert flow["tid"] == end["tid"]
            assert end["ts"] <= flow["ts"] < end["ts"] + end["dur"]


def test_slices_of_a_thread_never_overlap(tmp_path):
    spans = [(0, 3e-5), (1e-5, 4e-5), (3e-5, 5e-5)]
    events = [Event(0, "recv", "recv", *span, id=k) for k, span in enumerate(spans)]
    line = Timeline(events, 1, clock="measured", devices=["cuda:0"])
    trace = traced(line, tmp_path)
    assert [*threads(trace).values()] == ["compute", "recv", "recv (2)"]
    assert [e["tid"] for e in trace["X"]] == [2, 3, 2]
    labels = [e["args"] for e in trace["M"] if e["name"] == "process_labels"]
    assert labels == [{"labels": "cuda:0"}]


def test_a_failed_write_leaves_the_old_file(small, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    bad = Timeline([Event(0, "compute", "mm", 0, 1, bytes=object())], 1)
    with pytest.raises(TypeError):
        bad.to_chrome_trace(str(path))
    assert path.read_text() == "old"
    small.to_chrome_trace(path)
    assert path.read_text() != "old" and [*tmp_path.iterdir()] == [path]
    said = "There is no folder 'no/such' to write 'trace.json' in."
    with pytest.raises(ValueError, match=said):
        small.to_chrome_trace("no/such/trace.json")


@pytest.fixture
def hidden():
    """A rank computes 0-4 and 6-7 and waits in between; two collectives, a message."""
    computes = [work(0, 0.0, 4.0), work(0, 6.0, 7.0)]
    waits = [work(0, 4.0, 6.0, "wait"), work(0, 7.0, 8.0, "wait")]
    reduces = [comm(0, 1.0, 3.0), comm(0, 3.5, 5.0)]
    return Timeline(computes + waits + reduces + message(1, 1, 0, 4.5, 5.5), 2)


def test_exposed_is_what_no_computation_hides(hidden):
    assert hidden.exposed_spans(0) == [(4.0, 5.5)] and hidden.exposed(0) == 1.5
    assert hidden.exposed_spans(1) == [] and hidden.exposed(1) == 0


def test_a_part_of_a_timeline_begins_at_zero(hidden):
    part = hidden.between(3.0, 5.0)
    assert part.elapsed == 2.0 and part.clock == hidden.clock
    assert [(e.rank, e.name, e.start, e.stop) for e in part] == [
        (0, "mm", 0.0, 1.0),
        (0, "all_reduce", 0.5, 2.0),
        (0, "transfer", 1.0, 2.0),
        (0, "recv", 1.5, 2.0),
        (1, "send", 1.5, 2.0),
    ]
    assert part.exposed(0) == 1.0
    with pytest.raises(ValueError, match="from 5 to 5"):
        hidden.between(5, 5)


def boxes(axes):
    """Extents in time and height of what is drawn in the colour of exposed times."""
    colour = plots.EXPOSED["facecolors"].lower()
    paths = [
        path.get_extents()
        for drawn in axes.collections
        if to_hex(drawn.get_facecolor()[0], keep_alpha=True) == colour
        for path in drawn.get_paths()
    ]
    return [(*path.intervalx, *path.intervaly) for path in paths]


def test_exposed_communication_is_shaded_over_all_rows_of_its_rank(hidden):
    figure = hidden.plot(exposed=True)
    assert boxes(figure.axes[0]) == [(4.0, 5.5, 0.0, 3.0)]
    assert "exposed for 1.5 s" in figure.axes[0].get_title(loc="left")
    assert "exposed communication 9%" in figure.alt
    assert legend_of(figure)[-1] == "exposed"
    usual = hidden.plot()
    assert boxes(usual.axes[0]) == [] and "exposed" not in usual.alt
    both = plots.compare_timelines({"a": hidden, "b": hidden}, exposed=True)
    assert [len(boxes(axes)) for axes in both.axes] == [1, 1]
    axes = Figure().subplots()
    assert hidden.plot(ax=axes, exposed=True, title="mine") is axes
    assert axes.get_title("left") == "mine" and axes.get_legend() is not None
    assert len(boxes(axes)) == 1


SECONDS = {0: "0 s", 5e-10: "0.5 ns", 8e-7: "800 ns", 9.9999e-7: "1 us", 2: "2 s"}
SECONDS |= {2.2e-4: "220 us", 0.00099999: "1 ms", 0.0013862: "1.386 ms"}
SECONDS |= {123456: "123,456 s"}
BYTES = {0: "0 B", 1536: "1,536 B", 999_999: "999,999 B", 1_000_000: "1 MB"}
BYTES |= {24_576_000: "24.58 MB", 999_999_999: "1 GB", 80e9: "80 GB", 3e15: "3 PB"}


def test_seconds_have_a_unit_and_small_counts_of_bytes_are_exact():
    assert {seconds: show_seconds(seconds) for seconds in SECONDS} == SECONDS
    assert {count: show_bytes(count) for count in BYTES} == BYTES


def rows_of(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def words(axes):
    return sorted(text.get_text() for text in axes.texts if text.get_text())


def arrows(axes):
    return sum(getattr(text, "arrow_patch", None) is not None for text in axes.texts)


def test_a_picture_has_a_row_per_rank_and_stream(small):
    figure = small.plot()
    (axes,) = figure.axes
    rows = ["rank 0  compute", "recv", "comm", "rank 1  compute", "send", "comm"]
    assert rows_of(axes) == rows
    assert words(axes) == ["all_reduce", "all_reduce", "from 1", "mm", "to 0"]
    assert axes.get_xlabel() == "time (us, virtual)" and axes.get_xlim() == (0, 50)
    wanted = ["compute", "blocked", "transferring", "sending", "receiving"]
    assert legend_of(figure) == [*wanted, "AR all_reduce, by formula"]


def test_few_messages_have_arrows_many_have_numbers():
    (few,) = ring(4, 6).plot().axes
    assert arrows(few) == 24
    many = ring(4, 20)
    (axes,) = many.plot(width=16).axes
    assert arrows(axes) == 0
    assert words(axes) == sorted(2 * [f"{k}" for k in range(80)])
    (narrow,) = many.plot(width=4).axes
    assert set(words(narrow)) == {"0", "1", "2", "3"}


@pytest.mark.parametrize(("n", "steps"), [(2, 2), (4, 6), (4, 30), (16, 6), (64, 4)])
def test_no_labels_overlap(n, steps):
    figure = ring(n, steps).plot()
    figure.canvas.draw()
    (axes,) = figure.axes
    labels = [*axes.texts, *axes.get_yticklabels(), axes.title, axes._left_title]
    extents = [each.get_window_extent() for each in labels if each.get_text()]
    assert not any(b.overlaps(c) for k, b in enumerate(extents) for c in extents[:k])
    whole = axes.get_tightbbox()
    assert whole.x0 >= 0 and whole.x1 <= figure.bbox.x1


def test_at_64_ranks_every_eighth_has_a_name():
    (axes,) = ring(64, 4).plot().axes
    assert rows_of(axes) == [f"rank {rank}" for rank in range(0, 64, 8)]
    assert arrows(axes) == 0 and words(axes) == []
    (axes,) = ring(300, 1).plot().axes
    assert axes.get_title("left") == "300 ranks, 10 us virtual (one rank in 3 is drawn)"


def test_compared_timelines_share_the_axis_of_the_longest():
    figure = plots.compare_timelines({"long": ring(4, 6), "short": ring(4, 3)})
    assert [axes.get_xlim()[1] for axes in figure.axes] == [pytest.approx(60)] * 2
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["long: 60 us virtual", "short: 30 us virtual"]
    assert figure.alt.startswith("long: Timeline of 4 ranks over 60 us")
    with pytest.raises(ValueError, match="There is no timeline to draw."):
        plots.compare_timelines({})


def test_a_picture_says_in_words_what_it_shows(small):
    sentence = (
        "Timeline of 2 ranks over 50 us of virtual time, 1 message; of its time a "
        "rank spends on average compute 10%, blocked 10%, transferring 80%, "
        "sending 20%, receiving 20%, collective, by formula 40%."
    )
    figure = small.plot()
    assert plots.alt_text(small) == figure.alt == sentence
    data, about = figure._repr_mimebundle_()
    assert about["image/png"]["alt"] == sentence
    image = Image.open(io.BytesIO(data["image/png"]))
    assert image.format == "PNG" and image.mode == "P"
    assert image.text["Description"] == sentence


def test_pictures_leave_pyplot_alone():
    code = (
        "import sys; from d2lpar.report import events, plots, runs, timeline\n"
        "assert 'matplotlib' not in sys.modules\n"
        "event = events.Event(0, 'compute', 'mm', 0, 1)\n"
        "timeline.Timeline([event], 1).plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# waits, and names for what runs


def test_a_wait_is_blocked_until_a_byte_of_the_rank_moves():
    events = [
        work(0, 0.0, 6.0, "wait"),
        *message(1, 0, 1, 1.0, 3.0),
        *message(2, 1, 0, 2.0, 4.0),
        comm(0, 5.0, 6.0),
        *message(3, 1, 2, 0.0, 6.0),  # others' bytes do not count
    ]
    line = Timeline(events, 3)
    assert [(e.kind, e.start, e.stop) for e in line.rows[0]["compute"]] == [
        ("blocked", 0.0, 1.0),
        ("transferring", 1.0, 4.0),
        ("blocked", 4.0, 5.0),
        ("transferring", 5.0, 6.0),
    ]
    assert line.exposed(0) == line.totals(0)["transferring"] == 4.0
    assert line.between(0.5, 6.0).totals(0)["blocked"] == 1.5


def test_a_measured_run_does_not_claim_to_see_the_wire():
    events = [work(0, 0.0, 2.0, "wait"), *message(1, 0, 1, 0.0, 2.0)]
    line = Timeline(events, 2, clock="measured")
    assert line.totals(0)["waiting"] == 2.0 and line.totals(0)["blocked"] == 0
    assert "in a call, wire unseen 50%" in plots.alt_text(line)
    assert "is not seen in a measured run" in str(line)
    assert "transferring" not in str(line)


def test_the_ring_transfers_and_the_gather_blocks():
    def summed(allreduce):
        allreduce(torch.ones(1000))

    def totals(allreduce):
        line = d2lpar.run(summed, allreduce, world_size=4, backend="sim").timeline
        return map(line.totals, range(4))

    rings = totals(a.ring_allreduce)
    assert all(t["blocked"] == 0 and t["transferring"] > 0 for t in rings)
    blocked = [t["blocked"] > 0 for t in totals(a.naive_allreduce)]
    assert blocked == [False, True, True, True]


def layered(step, n=1):
    """(timeline of a step on n A100s, what rank 0 computes, the parts with a name)."""
    line = d2lpar.run(step, world_size=n, backend="sim", cluster=f"{n}xA100").timeline
    row = [e for e in line.rows[0]["compute"] if e.kind == "compute"]
    return line, row, joined([e for e in row if e.label])


def labelled_step():
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
    d2lpar.label_layers(net)
    works = []
    for p in net.parameters():
        reduce = lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
        p.register_post_accumulate_grad_hook(reduce)
    with d2lpar.label("set-up"):
        x = torch.ones(8, 64)
    net(x).sum().backward()
    for each in works:
        each.wait()
    torch.ones(8) + 1


def test_layers_are_named_in_both_passes_and_their_collectives_too():
    line, row, named = layered(labelled_step, 2)
    names = [e.label for e in named]
    assert names == ["set-up", "F0", "F1", "F2", "B2", "B1", "B0"]
    assert row[-1].label is None and row[-1].look == "compute"
    looks = {e.label[0]: e.look for e in row if e.label and e.label != "set-up"}
    assert looks == {"F": "forward", "B": "backward"}
    texts = [e.texts for e in line.rows[0]["comm"]]
    assert texts == [[f"AR{i}", f"{i}"] for i in (2, 2, 1, 1, 0, 0)]
    seconds = sum(e.stop - e.start for e in row)
    assert line.totals(0)["compute"] == pytest.approx(seconds)


def test_layers_may_have_names_and_what_backward_computes_again_belongs_to_it():
    def step(again):
        net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        d2lpar.label_layers(net, {"up": net[0], "down": net[2]})
        x = torch.ones(4, 8, requires_grad=True)
        y = checkpoint(net, x, use_reentrant=False) if again else net(x)
        y.sum().backward()

    for again in (False, True):
        _, _, named = layered(lambda again=again: step(again))
        assert [e.texts[0] for e in named] == ["F up", "F down", "B down", "B up"]
        assert named[0].look == "forward"
    assert comm(0, 0, 1, label="F up").texts == ["AR up", "up"]


def test_a_label_ends_with_its_block_and_is_free_outside_of_a_run():
    def named():
        with d2lpar.label("2F0"):
            with d2lpar.label("5"):
                dist.all_reduce(torch.ones(1))
            d2lpar.sleep(1e-3)
        d2lpar.sleep(1e-3, "W7")

    wanted = [("forward", ["F0", "0"]), ("weight gradient", ["W7", "7"])]
    for world in ("sim", "gloo"):
        row = d2lpar.run(named, world_size=2, backend=world).timeline.rows[1]
        sleeps = [e for e in row["compute"] if e.name == "sleep"]
        assert [(e.look, e.texts) for e in sleeps] == wanted
        assert row["comm"][0].texts == ["AR5", "5"]
    with d2lpar.label("F0"):
        assert d2lpar.label_layers(nn.Linear(2, 2))(torch.ones(2)).shape == (2,)


def test_rows_in_which_nothing_lasts_are_left_out():
    works = [work(0, 0.0, 1.0, label="F0"), work(1, 1.0, 2.0, label="F0")]
    line = Timeline(message(1, 0, 1, 1.0, 1.0) + works, 2)
    (axes,) = line.plot().axes
    assert rows_of(axes) == ["rank 0  compute", "rank 1  compute"]
    assert arrows(axes) == 1 and words(axes) == ["F0", "F0"]
    assert "send " not in str(line)


def test_the_legend_explains_letters_and_codes():
    events = [
        work(0, 0.0, 1.0, label="F0"),
        work(0, 1.0, 2.0, label="W0"),
        comm(0, 0.0, 1.0, "all_gather", "F0"),
        comm(0, 1.0, 2.0, "barrier"),
    ]
    passes = ["forward (F)", "weight gradient (W)"]
    formula = ["AG all_gather, by formula", "collective, by formula"]
    assert legend_of(Timeline(events, 1).plot()) == [*passes, *formula]
    measured = Timeline(events, 1, clock="measured").plot()
    assert legend_of(measured) == [*passes, "AG all_gather", "collective"]


@pytest.mark.parametrize("width", [3, 5, 7.2, 20])
def test_the_columns_of_the_legend_are_as_wide_as_their_entries(width):
    collectives = "all_gather", "reduce_scatter", "all_reduce"
    events = [
        work(0, k, k + 1, label=label) for k, label in enumerate(["F0", "B0", ""])
    ]
    events += [comm(0, k, k + 1, name) for k, name in enumerate(collectives)]
    figure = Timeline(events, 1).plot(width=width, exposed=True)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert box.y1 < figure.axes[0].get_tightbbox().y0


def test_passes_and_collectives_differ_in_grey():
    def grey(look):
        red, green, blue = (int(FACES[look][k : k + 2], 16) for k in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    for row in (("compute", "backward", "forward"), ("AR", "RS", "AG")):
        assert all(grey(lighter) - grey(look) > 30 for look, lighter in pairwise(row))


# From PyTorch's profiler


def profiled(path, rank, *spans):
    """A trace as the profiler writes it; spans (kind, name, thread, start, stop) us."""
    events = [
        {"ph": "X", "cat": kind, "name": name, "tid": thread, "ts": start}
        | {"dur": stop - start}
        for kind, name, thread, start, stop in spans
    ]
    about = {"distributedInfo": {"rank": rank}, "baseTimeNanoseconds": 10**18}
    path.write_text(json.dumps({"traceEvents": events, **about}))
    return path


def test_a_profilers_trace_becomes_rows_and_waits(tmp_path):
    reduce = ("user_annotation", "gloo:all_reduce", 2)
    first = profiled(
        tmp_path / "0.json",
        0,
        ("cpu_op", "aten::linear", 1, 1000, 1100),
        ("cpu_op", "aten::addmm", 1, 1010, 1090),  # inside of the linear
        ("cpu_op", "c10d::allreduce_", 1, 1100, 1120),
        ("cpu_op", "aten::mul", 1, 1150, 1160),
        (*reduce, 1080, 1200),
    )
    second = profiled(tmp_path / "1.json", 1, (*reduce, 1050, 1200))
    line = Timeline.from_profiler(second, first)
    assert [(e.rank, e.stream, e.name, round(e.start * 1e6)) for e in line] == [
        (0, "compute", "aten::linear", 0),
        (1, "compute", "wait", 50),
        (1, "comm", "all_reduce", 50),
        (0, "comm", "all_reduce", 80),
        (0, "compute", "wait", 100),
        (0, "compute", "aten::mul", 150),
        (0, "compute", "wait", 160),
    ]
    assert line.exposed(0) == pytest.approx(90e-6)
    assert line.exposed(1) == pytest.approx(150e-6)
    assert line.clock == "measured" and line.world_size == 2


def test_what_is_no_trace_of_the_profiler(tmp_path):
    one = profiled(tmp_path / "a.json", 0)
    (tmp_path / "b.json").write_text("[1]")
    for sources, sentence in (
        ((one, one), "one trace per rank, not of [0, 0]"),
        ((), "one trace per rank, not of []"),
        ((tmp_path / "b.json",), "is not a trace of torch.profiler"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            Timeline.from_profiler(*sources)


SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, Add<float> >(int, Add<float>)"


def test_the_trace_of_a_gpu_shows_kernels_copies_and_nccl(tmp_path):
    nccl = profiled(
        tmp_path / "gpu.json",
        0,
        ("cpu_op", "aten::linear", 1, 1000, 1010),  # only asks for the kernel
        ("user_annotation", "nccl:all_reduce", 1, 1010, 1015),
        ("gpu_user_annotation", "nccl:all_reduce", 20, 1100, 1300),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 7, 1000, 1050),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 7, 1050, 1060),
        ("kernel", "ampere_sgemm_128x64_tn", 7, 1060, 1200),
        ("kernel", ADD, 9, 1150, 1190),  # another stream, at the same time
        ("kernel", SUM, 20, 1100, 1300),
    )
    line = Timeline.from_profiler(nccl)
    rows = {
        stream: [(e.name, round(e.start * 1e6), round(e.stop * 1e6)) for e in events]
        for stream, events in line.rows[0].items()
    }
    assert rows == {
        "compute": [
            ("wait", 0, 50),
            ("Memcpy DtoD", 50, 60),
            ("ampere_sgemm_128x64_tn", 60, 200),
            ("vectorized_elementwise_kernel", 150, 190),
            ("wait", 200, 300),
        ],
        "comm": [("all_reduce", 100, 300)],
        "comm copies": [("copy to the GPU", 0, 50)],
    }
    assert line.exposed(0) == pytest.approx(150e-6)
    names = ["compute", "compute (2)", "comm", "comm copies"]
    assert [*threads(traced(line, tmp_path)).values()] == names


def step_of_ddp():
    net = nn.parallel.DistributedDataParallel(nn.Linear(50, 50))
    net(torch.ones(10, 50)).sum().backward()
    return dist.get_rank()


def test_run_profiles_its_ranks(tmp_path):
    run = d2lpar.run(step_of_ddp, world_size=2, backend="gloo", profile=True)
    line = run.profile
    assert run.results == [0, 1]
    assert line.world_size == 2 and line.clock == "measured"
    for rank in range(2):
        names = {e.name for e in line.rows[rank]["compute"]}
        assert names >= {"aten::linear", "B Addmm"}
        for seen in (line, run.timeline):
            comms = [e.name for e in seen.rows[rank]["comm"]]
            assert comms.count("all_reduce") == 1
        assert 0 <= line.exposed(rank) < line.elapsed
    assert any(map(line.exposed, range(2)))  # who comes last waits for nobody
    assert {e.look for e in line if e.name == "B Addmm"} == {"backward"}
    assert traced(line, tmp_path)["X"] and "rank 1 compute" in str(line)
    plain = d2lpar.run(step_of_ddp, world_size=2, backend="gloo")
    assert plain.profile is None


def test_a_finished_profile_is_a_source():
    with torch.profiler.profile() as prof:
        torch.ones(3) + 1
    alone = Timeline.from_profiler(prof)
    assert [e.name for e in alone][-1] == "aten::add" and alone.world_size == 1


def test_a_profiled_rank_that_fails_is_named_with_its_line():
    def fails_on_rank_1():
        if dist.get_rank() == 1:
            raise ValueError("on purpose")

    with pytest.raises(d2lpar.RankError, match="on purpose") as error:
        d2lpar.run(fails_on_rank_1, world_size=2, backend="gloo", profile=True)
    assert error.value.rank == 1 and error.value.run.results[1] is None
    assert "test_timeline.py" in str(error.value)


def test_the_simulator_has_no_profile():
    for value, sentence in ((True, "processes: use backend="), (1, "True or False")):
        with pytest.raises((ValueError, TypeError), match=sentence):
            d2lpar.run(step_of_ddp, backend="sim", profile=value)
