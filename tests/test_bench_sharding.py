"""`d2lpar.bench_sharding`: figures of the right form, of trainers that agree."""

import pytest
from rich.console import Console

import d2lpar
from d2lpar.tools.bench import sharding as b

SMALL = (16, 2, 4)


def losses(name):
    step = b.TRAINERS[name](SMALL)
    return [step() for _ in range(3)]


def test_both_train_alike():
    ours, torchs = (
        d2lpar.run(losses, name, world_size=2, backend="sim").results
        for name in (b.OURS, b.TORCHS)
    )
    for mine, theirs in zip(ours, torchs, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
        assert mine[0] > mine[2] > 0


def test_a_row_per_trainer_and_a_table():
    found = b.compare(2, SMALL, 0.1)
    rows = {row["trainer"]: row for row in found["sharding"]}
    assert set(rows) == {b.OURS, b.TORCHS}
    assert rows[b.TORCHS]["ratio"] == 1
    for row in rows.values():
        assert row["parameters"] == 2 * 17 * 16 and row["rounds"] >= 3
        assert row["seconds"] > 0 and row["peak"] >= row["grown"] >= 0
    console = Console(width=100, record=True, quiet=False)
    for table in b.tables(found):
        console.print(table)
    text = console.export_text()
    assert "on 2 Gloo ranks" in text and "fully_shard" in text and "MB" in text
    assert list(b.tables({})) == []


def test_the_plan_has_a_step_per_number_of_ranks():
    names = [name for name, _ in b.plan("4,2", quick=True)]
    assert names == ["sharded training, 2 ranks", "sharded training, 4 ranks"]
    assert len(b.plan()) == 1


def test_memory_is_read_where_the_system_tells():
    assert b.resident("VmHWM") >= b.resident("VmRSS") > 0
    assert b.resident("VmNothing") == 0
