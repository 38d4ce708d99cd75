"""Runs and their comparison: exact lines, exact tables, exact figures."""

import io
import pickle
import sys
from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import torch.distributed as dist

import d2lpar
from d2lpar.launch import progress
from d2lpar.report.calls import Call
from d2lpar.report.engine import Status, waiting
from d2lpar.report.events import Event
from d2lpar.report.runs import Comparison, Run, compare
from d2lpar.report.timeline import Timeline
from d2lpar.sim.cluster import Cluster


@dataclass
class Counted:
    """The part of a ledger that a Run asks for rounds."""

    number: int | None

    def rounds(self):
        return self.number

    def has_native(self):
        return False


def make(**other):
    """A run in which rank 1 sends 1,536 bytes to rank 0."""
    send = Event(1, "send", "send", 0.0, 2e-5, 1536, peer=0, id=0)
    recv = Event(0, "recv", "recv", 0.0, 2e-5, 1536, peer=1, id=0)
    fields = {
        "results": [1, 2],
        "output": "hello\n",
        "warnings": [],
        "elapsed": 2e-5,
        "clock": "virtual",
        "backend": "sim",
        "world_size": 2,
        "device": "cpu",
        "timeline": Timeline([send, recv], 2),
        "bytes_sent": [0, 1536],
        "messages": [0, 1],
        "ledger": Counted(1),
        "traffic": np.array([[0, 0], [1536, 0]]),
        "peak_memory": [1536, 3072],
        "cluster": Cluster.plain,
        "aside": [0, 0],
        "unwaited": [],
    }
    return Run(**fields | other)


def measured(**other):
    world = {"backend": "gloo", "clock": "measured", "cluster": None}
    return make(**world | {"elapsed": 0.0412349, "peak_memory": None} | other)


def test_a_run_says_where_it_ran_and_by_which_clock():
    assert repr(make()) == (
        "Run: 2 ranks in sim (plain), 20 us virtual, 1 message, 1,536 B sent"
    )
    assert repr(measured()) == (
        "Run: 2 ranks in gloo, 41.23 ms measured, 1 message, 1,536 B sent"
    )


def test_warnings_are_pointed_at():
    lines = repr(make(warnings=["Mind.", "Mind too."])).splitlines()
    assert lines[1:] == ["     2 warnings: see .warnings"]


@pytest.mark.parametrize(
    ("backend", "device", "cluster", "world"),
    [
        ("sim", "cpu", Cluster.of("8xH100"), "sim (8xH100)"),
        ("gloo", "cpu", None, "gloo"),
        ("gloo", "cuda", None, "gloo (cuda)"),
        ("nccl", "cuda", None, "nccl"),
        ("nccl", "cuda:0", None, "nccl"),
    ],
)
def test_the_world_is_named(backend, device, cluster, world):
    run = make(backend=backend, device=device, cluster=cluster)
    assert run.world == world


def test_fields_are_kept_and_only_keywords_are_taken():
    run = make()
    assert run.results == [1, 2] and run.output == "hello\n"
    assert run.traffic[1, 0] == sum(run.bytes_sent) == 1536
    copy = pickle.loads(pickle.dumps(run))
    assert repr(copy) == repr(run) and copy.timeline.events == run.timeline.events
    with pytest.raises(TypeError):
        Run([1, 2])


TABLE = """\
                                             bytes     bytes                      peak
                                             sent,     sent,                   memory,
                                           busiest       all                   busiest
run    world            rounds  messages      rank     ranks             time     rank
-----  ---------------  ------  --------  --------  --------  ---------------  -------
small  2 x sim (plain)       1         1   1,536 B   1,536 B    20 us virtual  3,072 B
big    2 x gloo              -     1,207  24.58 MB  27.58 MB  250 ms measured        -
"""


def test_the_table_is_exact():
    big = measured(
        bytes_sent=[3_000_000, 24_576_000],
        elapsed=0.25,
        messages=[7, 1200],
        ledger=Counted(None),
    )
    assert repr(compare(small=make(), big=big)) + "\n" == TABLE


def test_rows_hold_the_numbers_themselves():
    table = compare(a=make(), b=measured())
    assert isinstance(table, Comparison)
    assert table.rows[0] == {
        "name": "a",
        "world": "2 x sim (plain)",
        "rounds": 1,
        "messages": 1,
        "bytes_busiest": 1536,
        "bytes_total": 1536,
        "time": 2e-5,
        "clock": "virtual",
        "by_formula": False,
        "peak_memory": 3072,
    }
    assert table.rows[1]["peak_memory"] is None


def test_native_rows_say_that_a_formula_timed_them():
    def native():
        dist.barrier()
        dist.all_reduce(torch.ones(4))

    def by_hand():
        dist.barrier()
        x = torch.ones(4)
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)

    at = {"world_size": 2, "backend": "sim"}
    native, by_hand = d2lpar.run(native, **at), d2lpar.run(by_hand, **at)
    assert native.by_formula and not by_hand.by_formula
    table = str(compare(native=native, by_hand=by_hand))
    assert table.count("by formula") == 1 and table.count("virtual") == 1


class Cells(HTMLParser):
    """Collects the texts of a table and checks that its tags close."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.scopes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.scopes += [value for name, value in attrs if name == "scope"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["th"]):
            self.texts.append(data)


def test_the_html_table_says_the_same():
    table = compare(ring=make(cluster=Cluster("a<b")), other=measured())
    page = Cells()
    page.feed(table._repr_html_())
    assert page.open == []
    assert page.texts == [text for row in table.cells() for text in row]
    assert page.scopes == ["col"] * 8 + ["row"] * 2
    assert "a&lt;b" in table._repr_html_()


def test_the_plot_is_on_one_axis():
    figure = compare(a=make(), b=make()).plot()
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["a: 20 us virtual", "b: 20 us virtual"]


def test_what_is_no_run_is_named():
    with pytest.raises(TypeError, match="wants runs, but naive is of type list"):
        compare(ring=make(), naive=[1])
    with pytest.raises(TypeError, match="wants runs by name"):
        compare()


# what a long run shows


def shown(statuses):
    from rich.console import Console

    console = Console(file=io.StringIO(), width=88)
    console.print(progress.picture(statuses, 12.3))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_progress_of_a_run_is_a_row_per_rank():
    recv = waiting(Call("recv", "g", (0, 1), 0, peer=1))
    statuses = [
        Status(0, "blocked", recv, steps=1234),
        Status(1, "running", polls=recv),
        Status(2, "running"),
        Status(3, "returned", steps=5),
    ]
    head, *rows = shown(statuses)
    assert head.startswith("12 s ") and head.endswith("1 of 4 ranks returned")
    wanted = ["in recv(src=1)", "polls recv(src=1)", "computing", "returned"]
    assert [row.split("  ")[1].strip() for row in rows] == wanted
    assert rows[0].endswith("1,234 steps") and rows[3].endswith("5 steps")


def test_many_ranks_that_do_the_same_share_a_row():
    ranks = tuple(range(1024))
    calls = [waiting(Call("recv", "g", ranks, r, peer=(r - 1) % 1024)) for r in ranks]
    statuses = [Status(r, "blocked", calls[r], steps=2) for r in ranks[:-1]]
    head, *rows = shown([*statuses, Status(1023, "returned")])
    assert head.endswith("1 of 1024 ranks returned")
    assert rows == [
        "1023 ranks  in recv(src=...)  2,046 steps",
        "1 ranks     returned          0 steps",
    ]


def test_a_display_that_fails_does_not_end_the_run(monkeypatch):
    class Broken:
        def show(self, picture):
            raise OSError("the terminal is gone")

        end = show

    monkeypatch.setenv("D2LPAR_PROGRESS", "1")
    monkeypatch.setattr(progress, "_where", Broken)
    with progress.Progress() as show:
        show(5.0, 1, lambda: [Status(0)])
        show(9.0, 1, lambda: [Status(0)])


def test_a_terminal_is_left_as_it_was(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("D2LPAR_PROGRESS", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    out = sys.stdout
    with progress.Progress() as show:
        show(2.0, 1, lambda: [Status(0)])
        assert sys.stderr.getvalue() == ""  # not long yet
        show(5.0, 1, lambda: [Status(0), Status(1, "returned")])
        assert "1 of 2 ranks returned" in sys.stderr.getvalue()
        assert sys.stdout is out  # what ranks print goes where it went
    assert sys.stderr.getvalue().endswith("\x1b[1A\x1b[2K" * 3)  # three lines erased
