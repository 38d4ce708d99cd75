"""`d2lpar.bench_overlap`: all rivals train alike, and have the right figures."""

import io

import pytest
from rich.console import Console

import d2lpar
from d2lpar import overlap
from d2lpar.tools.bench import overlap as bench_overlap


def test_the_plan_is_what_was_asked_for():
    names = [name for name, _ in bench_overlap.plan("2,3")]
    assert len(names) == 6
    assert names[0] == "a training step, 2 ranks, width 256"
    assert names[-1] == "a training step, 3 ranks, width 1024"
    assert len(bench_overlap.plan(quick=True)) == 1
    with pytest.raises(ValueError, match="from 2 on"):
        bench_overlap.plan("1")


def test_race():
    rows = bench_overlap.race(2, 16, 0.0)["ddp"]
    assert [row["ddp"] for row in rows] == list(bench_overlap.rivals())
    assert rows[0]["ddp"] == "torch DDP" and rows[0]["ratio"] == 1
    assert {"overlapped", "overlapped, shared memory"} < set(bench_overlap.rivals())
    for row in rows:
        assert row["rounds"] == 3 and row["ranks"] == 2 and row["width"] == 16
        assert 0 < row["fastest"] <= row["seconds"]


class Lazy(overlap.NaiveDDP):
    """It forgets to average."""

    def finish(self, then=None):
        """Nothing happens."""


def test_who_does_not_train_is_not_measured(monkeypatch):
    def broken():
        bench_overlap.rivals = lambda: {"torch DDP": theirs, "lazy": Lazy}
        bench_overlap._race(16, 0.0)

    usual = bench_overlap.rivals
    theirs = usual()["torch DDP"]
    try:
        with pytest.raises(d2lpar.RankError, match="lazy does not train as torch DDP"):
            d2lpar.run(broken, world_size=2, backend="sim")
    finally:
        bench_overlap.rivals = usual


def test_the_table_has_a_row_for_each():
    rows = [
        {"ranks": n, "width": width, "ddp": name, "seconds": 0.002, "ratio": 1.25}
        for n in (2, 4)
        for width in (256, 512)
        for name in bench_overlap.rivals()
    ]
    console = Console(width=79, record=True, file=io.StringIO())
    for table in bench_overlap.tables({"ddp": rows}):
        console.print(table)
    text = console.export_text()
    assert text.count("2 ms") == 4 and text.count("1.25") == 4 * (len(rows) // 4 - 1)
    assert "on 2 Gloo ranks" in text and "on 4 Gloo ranks" in text
    assert list(bench_overlap.tables({})) == []
