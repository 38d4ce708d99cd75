"""`d2lpar.bench_pipeline`: all rivals train alike, and have the right figures."""

import io

import pytest
from rich.console import Console

import d2lpar
from d2lpar.tools.bench import pipeline as bench_pipeline


def test_the_plan_is_what_was_asked_for():
    names = [name for name, _ in bench_pipeline.plan("2,3")]
    assert len(names) == 6
    assert names[0] == "a pipeline, 2 ranks, width 256"
    assert names[-1] == "a pipeline, 3 ranks, width 1024"
    assert len(bench_pipeline.plan(quick=True)) == 1
    with pytest.raises(ValueError, match="from 2 on"):
        bench_pipeline.plan("1")


def test_race():
    rows = bench_pipeline.race(2, 16, 0.0)["pipeline"]
    names = [row["schedule"] for row in rows]
    assert names == ["torch Schedule1F1B", "1f1b", "gpipe", "zb-h1"]
    assert rows[0]["ratio"] == 1
    for row in rows:
        assert row["rounds"] == 3 and row["ranks"] == 2 and row["width"] == 16
        assert 0 < row["fastest"] <= row["seconds"]


def test_who_does_not_train_is_not_measured():
    def broken():
        bench_pipeline.our_step = lambda name, stage, x, y: (
            lambda: [p.square().sum().backward() for p in stage.parameters()]
        )
        bench_pipeline._race(16, 0.0)

    usual = bench_pipeline.our_step
    try:
        with pytest.raises(d2lpar.RankError, match="1f1b does not train as torch"):
            d2lpar.run(broken, world_size=2, backend="sim")
    finally:
        bench_pipeline.our_step = usual


def test_the_table_has_a_row_for_each():
    names = (bench_pipeline.TORCH, *bench_pipeline.OURS)
    rows = [
        {"ranks": n, "width": w, "schedule": name, "seconds": 0.002, "ratio": 1.25}
        for n in (2, 4)
        for w in (256, 512)
        for name in names
    ]
    console = Console(width=79, record=True, file=io.StringIO())
    for table in bench_pipeline.tables({"pipeline": rows}):
        console.print(table)
    text = console.export_text()
    assert text.count("2 ms") == 4 and text.count("1.25") == 4 * (len(names) - 1)
    assert "on 2 Gloo ranks" in text and "on 4 Gloo ranks" in text
    assert list(bench_pipeline.tables({})) == []
