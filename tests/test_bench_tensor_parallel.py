"""`d2lpar.bench_tensor_parallel`: all rivals train alike; their figures are right."""

import io

import pytest
import torch
from rich.console import Console

import d2lpar
from d2lpar import tensor_parallel
from d2lpar.tensor_parallel import RowParallel
from d2lpar.tools.bench import tensor_parallel as b


def test_the_plan_is_what_was_asked_for():
    names = [name for name, _ in b.plan("2,4")]
    assert len(names) == 12
    assert names[0] == "a split MLP, 2 ranks, width 256"
    assert names[-1] == "a split block, 4 ranks, width 1024"
    assert len(b.plan(quick=True)) == 2
    with pytest.raises(ValueError, match="from 2 on"):
        b.plan("1")


@pytest.mark.parametrize("model", b.MODELS)
def test_race(model):
    rows = b.race(2, model, 16, 0.0)["tensor_parallel"]
    assert [row["trainer"] for row in rows] == list(b.RIVALS)
    assert rows[0]["trainer"] == b.TORCH and rows[0]["ratio"] == 1
    for row in rows:
        assert row["rounds"] == 3 and row["ranks"] == 2 and row["width"] == 16
        assert row["model"] == model and 0 < row["fastest"] <= row["seconds"]


def counted(name, model):
    """A forward and a backward pass, in this order between two barriers."""
    split = b.RIVALS[name](b.make(model, 16))
    x = torch.ones(2, 4, 16, requires_grad=True)
    begin = d2lpar.now()
    split(x).sum().backward()
    return begin


@pytest.mark.parametrize(("model", "sums"), [("MLP", 2), ("block", 4)])
def test_torchs_has_no_more_all_reduces_than_ours(model, sums):
    run = d2lpar.run(counted, b.TORCH, model, world_size=2, backend="sim")
    events = run.timeline.between(run.results[0], run.elapsed).events
    names = [e.name for e in events if e.rank == 0 and e.stream.startswith("comm")]
    assert names == ["all_reduce"] * sums


def test_the_native_rival_calls_the_native_all_reduce():
    def twice():
        usual = tensor_parallel.allreduce
        with b.native_allreduce():
            counted(b.NATIVE, "MLP")
        return tensor_parallel.allreduce is usual

    run = d2lpar.run(twice, world_size=2, backend="gloo")
    assert run.results == [True, True]
    names = [e.name for e in run.timeline if e.rank == 0]
    assert names.count("all_reduce") == 2


def never_adds(model):
    """Ours, whose sums are forgotten."""
    split = b.ours(model)
    split[2] = Forgetful(b.make("MLP", 16)[2])
    return split


class Forgetful(RowParallel):
    """Its partial sums are never added."""

    def forward(self, x):
        """x [..., D/n] -> partial sums."""
        return self.product(x, self.weight) + self.bias


def test_who_does_not_train_is_not_measured():
    def broken():
        b.RIVALS = {b.TORCH: b.torchs, "forgetful": never_adds}
        b._race("MLP", 16, 0.0)

    usual = b.RIVALS
    try:
        with pytest.raises(d2lpar.RankError, match="forgetful does not train"):
            d2lpar.run(broken, world_size=2, backend="sim")
    finally:
        b.RIVALS = usual


def test_the_table_has_a_row_for_each():
    rows = [
        {"ranks": n, "model": model, "width": width, "trainer": name}
        | {"seconds": 0.002, "ratio": 1.25}
        for n in (2, 4)
        for model in b.MODELS
        for width in (256, 512)
        for name in b.RIVALS
    ]
    console = Console(width=99, record=True, file=io.StringIO())
    for table in b.tables({"tensor_parallel": rows}):
        console.print(table)
    text = console.export_text()
    assert text.count("2 ms") == 8 and text.count("1.25") == 16
    assert "A split MLP on 2" in text and "A split block on 4 Gloo ranks" in text
    assert list(b.tables({})) == []
