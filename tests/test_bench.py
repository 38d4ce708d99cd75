"""`d2lpar bench`: figures of the right form, of rivals that compute the same."""

import json

import pytest
import torch
from rich.console import Console

import d2lpar
from conftest import ROOT
from d2lpar import overlap
from d2lpar.cli.bench import allreduces, bench, mesh, pipeline, race, sequence, sharding
from d2lpar.cli.bench import overlap as ddp
from d2lpar.cli.bench import tensor_parallel as split
from d2lpar.cli.bench.race import LineUp, Race
from d2lpar.tensor_parallel import RowParallel, products

READ = {"64K": 65536, "1M": 2**20, " 1.5 mb": 3 * 2**19, "4096": 4096, "2MiB": 2**21}
SHOWN = {65536: "64 KB", 2**20: "1 MB", 3 * 2**19: "1.5 MB", 12: "12 B"}


@pytest.mark.parametrize(("text", "size"), READ.items())
def test_sizes_are_read(text, size):
    assert allreduces.size_of(text) == size


@pytest.mark.parametrize("text", ["", "big", "-4K", "3", "0", "1T", "5,6", "1.3K"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="A size is .* such as 64K"):
        allreduces.size_of(text)


@pytest.mark.parametrize(("size", "name"), SHOWN.items())
def test_sizes_are_shown(size, name):
    assert allreduces.size_name(size) == name


def names(plan):
    return [name for name, _ in plan]


def test_the_plan_is_what_was_asked_for():
    assert names(bench.plan("1M,64K,1M", "4,2"))[:8] == [
        "start-up",
        "All-reduce, 2 ranks, 64 KB",
        "All-reduce, 2 ranks, 1 MB",
        "All-reduce, 4 ranks, 64 KB",
        "All-reduce, 4 ranks, 1 MB",
        "this machine, predicted",
        "simulator",
        "A training step, 2 ranks, width 256",
    ]
    usual = names(bench.plan())
    assert len(usual) == 2 + 12 + 1 + (3 + 2 + 3 + 3 + 3) + 3 + 2 + 1 + 1
    assert "All-reduce, 2 ranks, 64 KB" in usual
    assert "All-reduce, 4 ranks, 64 MB" in usual
    assert {"A training step, 2 ranks, width 512", "A pipeline, 2 ranks, width 1024",
            "A split block, 2 ranks, width 256"} < set(usual)  # fmt: skip
    assert len(bench.plan(quick=True)) == 5 + 5 + 1 + 1 + 1 + 1


@pytest.mark.parametrize("ranks", ["1", "0,2", "x", "2;4", "-2", ","])
def test_other_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match="from 2 on, such as 2,4"):
        bench.plan("1M", ranks)


def order_of_turns():
    order, ends = [], []
    programs = {name: lambda name=name: order.append(name) for name in "abc"}
    times = race.take_turns(LineUp(programs, after=ends.append), 0.0)
    return order, ends, {name: len(spans) for name, spans in times.items()}


def test_rivals_take_turns():
    run = d2lpar.run(order_of_turns, world_size=3, backend="sim")
    for order, ends, counts in run.results:
        assert "".join(order) == "abc" + "bca" + "cab" + "abc"  # the first warms up
        assert ends == order
        assert counts == {"a": 3, "b": 3, "c": 3}


def test_a_duration_begins_with_the_last_and_ends_with_the_last():
    results = [{"a": [(0, 5), (10, 11)]}, {"a": [(2, 4), (9, 12)]}]
    assert race.durations(results) == {"a": [3, 2]}


def test_a_ratio_is_the_median_over_rounds():
    assert race.ratio([4, 9, 100], [2, 3, 1]) == 3


def test_lists_grow_and_other_figures_are_set():
    results = {"machine": 1}
    bench.add(results, {"rows": [1], "one": 2})
    bench.add(results, {"rows": [3]})
    assert results == {"machine": 1, "rows": [1, 3], "one": 2}


SMALL = [
    (allreduces.race([4096]), "4 KB", list(allreduces.rivals())),
    (ddp.RACE, (16,), list(ddp.rivals())),
    (split.RACES[0], ("MLP", 16), list(split.RIVALS)),
    (split.RACES[1], ("block", 16), list(split.RIVALS)),
    (pipeline.RACE, (16,), [pipeline.TORCH, *pipeline.OURS]),
    (sharding.RACE, (16, 2, 4), [sharding.TORCHS, sharding.OURS]),
    (mesh.RACE, (16, (1, 2, 1)), [mesh.TORCH, mesh.OURS]),
    (sequence.RACE, (16,), list(sequence.RIVALS)),
]


@pytest.mark.parametrize(("raced", "course", "rivals"), SMALL)
def test_a_race_has_a_row_per_rival(raced, course, rivals):
    rows = raced.measure(2, course, 0.0)
    assert [row["rival"] for row in rows] == rivals
    assert rows[0]["ratio"] == 1
    for row in rows:
        assert row["rounds"] == 3 and row["ranks"] == 2 and row["race"] == raced.name
        assert row["course"] == str(course) and 0 < row["fastest"] <= row["seconds"]


def nobody_adds(size):
    made = allreduces.line_up(size)
    return made._replace(programs={"nothing": lambda: None})


class Lazy(overlap.NaiveDDP):
    """It forgets to average."""

    def finish(self, then=None):
        """Nothing happens."""


def lazy_ddp(width):
    ddp.rivals = lambda usual=ddp.rivals: {
        "torch DDP": usual()["torch DDP"],
        "lazy": Lazy,
    }
    return ddp.line_up(width)


def other_gradients(width):
    pipeline.our_step = lambda name, stage, x, y: (
        lambda: [p.square().sum().backward() for p in stage.parameters()]
    )
    return pipeline.line_up(width)


class Forgetful(RowParallel):
    """Its partial sums are never added."""

    def forward(self, x):
        """x [..., D/n] -> partial sums."""
        return self.product(x, self.weight) + self.bias


def never_adds(model):
    made = split.ours(model)
    made[2] = Forgetful(split.make("MLP", 16)[2])
    return made


def forgetful(width):
    split.RIVALS = {split.TORCH: split.torchs, "forgetful": never_adds}
    return split.line_up("MLP", width)


def another_layer(width):
    sharding.TRAINERS[sharding.OURS] = lambda shape: sharding.our_step((width, 3, 4))
    return sharding.line_up(width, 2, 4)


@pytest.mark.parametrize(
    ("line_up", "sentence"),
    [
        (nobody_adds, "nothing gives a wrong sum"),
        (lazy_ddp, "lazy does not train as torch DDP"),
        (other_gradients, "1f1b does not train as torch"),
        (forgetful, "forgetful does not train as parallelize_module"),
        (another_layer, "FSDP does not train as fully_shard"),
    ],
)
def test_who_computes_something_else_is_not_measured(line_up, sentence):
    with pytest.raises(d2lpar.RankError, match=sentence):
        Race("A race", line_up, {}).measure(2, (16,), 0.0)


def losses(name):
    step = sharding.TRAINERS[name]((16, 2, 4))
    return [step() for _ in range(3)]


def test_sharded_training_makes_losses_smaller():
    for name in sharding.TRAINERS:
        for mine in d2lpar.run(losses, name, world_size=2, backend="sim").results:
            assert mine[0] > mine[2] > 0


def test_memory_is_read_where_the_system_tells(monkeypatch):
    assert sharding.resident("VmHWM") >= sharding.resident("VmRSS") > 0
    assert sharding.resident("VmNothing") == 0
    monkeypatch.setattr(sharding, "SHAPES", {"small": (16, 2, 4)})
    rows = sharding.memory(2)["memory"]
    assert [row["rival"] for row in rows] == [sharding.TORCHS, sharding.OURS]
    assert all(row["peak"] >= row["grown"] >= 0 for row in rows)


def counted(name, model):
    """A forward and a backward pass, in this order between two barriers."""
    made = split.RIVALS[name](split.make(model, 16))
    x = torch.ones(2, 4, 16, requires_grad=True)
    begin = d2lpar.now()
    made(x).sum().backward()
    return begin


@pytest.mark.parametrize(("model", "sums"), [("MLP", 2), ("block", 4)])
def test_torchs_has_no_more_all_reduces_than_ours(model, sums):
    run = d2lpar.run(counted, split.TORCH, model, world_size=2, backend="sim")
    events = run.timeline.between(run.results[0], run.elapsed).events
    calls = [e.name for e in events if e.rank == 0 and e.stream.startswith("comm")]
    assert calls == ["all_reduce"] * sums


def test_the_native_rival_calls_the_native_all_reduce():
    def twice():
        usual = products.allreduce
        with split.native_allreduce():
            counted(split.NATIVE, "MLP")
        return products.allreduce is usual

    run = d2lpar.run(twice, world_size=2, backend="gloo")
    assert run.results == [True, True]
    assert [e.name for e in run.timeline if e.rank == 0].count("all_reduce") == 2


def made_up():
    """Results as those of a whole bench."""
    row = {"ranks": 2, "bytes": 2**20, "seconds": 0.002, "fastest": 0.001, "rounds": 3}
    foretold = row | {"program": "ring, 1 MB", "low": 0.001, "high": 0.003}
    foretold |= {"predicted": 0.0018, "error": -0.1, "work": 0.004, "work_error": 0.1}
    foretold |= {"others": 0.2}
    rows = [
        row | {"race": "All-reduce", "course": "1 MB", "rival": name, "ratio": 0.5 + k}
        for k, name in enumerate(allreduces.rivals())
    ]
    memory = {"ranks": 2, "rival": "FSDP", "peak": 3 * 2**30, "grown": 2**20}
    counted = {"course": "data x tensor", "rival": mesh.TORCH, "sent": 4e6, "peak": 2e6}
    ours = counted | {"rival": mesh.OURS, "sent": 3e6}
    return {
        "machine": bench.machine(),
        "races": rows + [each | {"ranks": 4, "ratio": 7} for each in rows],
        "predicted": [foretold],
        "startup": {"run_first": 2, "run": 0.1, "spawn": 4, "ratio": 40},
        "simulator": {"ring of 4": 12345.6},
        "memory": [memory],
        "meshes": [counted, ours],
    }


def test_tables_hold_the_figures():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in bench.tables(made_up()):
        console.print(table)
    text = console.export_text()
    for figure in ("1 MB", "2 ms", "1.50", "7.00", "-10%", "1.8 ms", "40", "12,346"):
        assert figure in text, figure
    assert "3,072 MB" in text
    assert "3.00 MB" in text and "0.75" in text
    assert text.count("All-reduce on") == 2
    assert "on 4 Gloo ranks" in text
    assert list(bench.tables({})) == []


def test_conditions_are_written_down():
    conditions = bench.machine()
    assert conditions["cores"] >= 1
    assert {"date", "processor", "system", "python", "torch"} < set(conditions)
    assert json.loads(json.dumps(made_up()))["machine"]["cores"] == conditions["cores"]


def test_make_has_a_target():
    text = (ROOT / "Makefile").read_text()
    assert "\nbench: setup\n" in text and "d2lpar bench $(BENCH)" in text
