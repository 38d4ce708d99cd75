"""`d2lpar.bench`: figures of the right form, whatever the machine takes."""

import json

import psutil
import pytest
import torch.distributed as dist
from rich.console import Console

import d2lpar
from conftest import ROOT
from d2lpar import costs
from d2lpar.tools.bench import bench

READ = {"64K": 65536, "1M": 2**20, " 1.5 mb": 3 * 2**19, "4096": 4096, "2MiB": 2**21}
SHOWN = {65536: "64 KB", 2**20: "1 MB", 3 * 2**19: "1.5 MB", 12: "12 B"}


@pytest.mark.parametrize(("text", "size"), READ.items())
def test_sizes_are_read(text, size):
    assert bench.size_of(text) == size


@pytest.mark.parametrize("text", ["", "big", "-4K", "3", "0", "1T", "5,6", "1.3K"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="A size is .* such as 64K"):
        bench.size_of(text)


@pytest.mark.parametrize(("size", "name"), SHOWN.items())
def test_sizes_are_shown(size, name):
    assert bench.size_name(size) == name


def names(plan):
    return [name for name, _ in plan]


def test_the_plan_is_what_was_asked_for():
    assert names(bench.plan("1M,64K,1M", "4,2")) == [
        "start-up",
        "all-reduce, 2 ranks, 64 KB",
        "all-reduce, 2 ranks, 1 MB",
        "all-reduce, 4 ranks, 64 KB",
        "all-reduce, 4 ranks, 1 MB",
        "a ring, 2 ranks",
        "a ring, 4 ranks",
        "simulator",
    ]
    usual = names(bench.plan())
    assert len(usual) == 2 + 12 + 2
    assert "all-reduce, 2 ranks, 64 KB" in usual
    assert "all-reduce, 4 ranks, 64 MB" in usual
    assert len(bench.plan(quick=True)) < 7


@pytest.mark.parametrize("ranks", ["1", "0,2", "x", "2;4", "-2", ","])
def test_other_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match="from 2 on, such as 2,4"):
        bench.plan("1M", ranks)


def order_of_turns():
    r, order = dist.get_rank(), []
    programs = {name: lambda name=name: order.append(name) for name in "abc"}
    ends = []
    times = bench.take_turns(programs, lambda: None, ends.append, 0.0)
    return order, ends, {name: len(spans) for name, spans in times.items()}, r


def test_rivals_take_turns():
    run = d2lpar.run(order_of_turns, world_size=3, backend="sim")
    for order, ends, counts, _ in run.results:
        assert "".join(order) == "abc" + "bca" + "cab" + "abc"  # the first warms up
        assert ends == order
        assert counts == {"a": 3, "b": 3, "c": 3}


def test_a_duration_begins_with_the_last_and_ends_with_the_last():
    results = [{"a": [(0, 5), (10, 11)]}, {"a": [(2, 4), (9, 12)]}]
    assert bench.durations(results) == {"a": [3, 2]}


def test_a_ratio_is_the_median_over_rounds():
    assert bench.ratio([4, 9, 100], [2, 3, 1]) == 3


def test_lists_grow_and_other_figures_are_set():
    results = {"machine": 1}
    bench.add(results, {"rows": [1], "one": 2})
    bench.add(results, {"rows": [3]})
    assert results == {"machine": 1, "rows": [1, 3], "one": 2}


def test_race():
    rows = bench.race(2, 4096, 0.0)["allreduce"]
    assert [row["algorithm"] for row in rows] == list(bench.rivals())
    assert rows[0]["algorithm"] == "dist.all_reduce" and rows[0]["ratio"] == 1
    assert {"ring", "shared_memory", "allreduce"} < set(bench.rivals())
    for row in rows:
        assert row["rounds"] == 3 and row["ranks"] == 2 and row["bytes"] == 4096
        assert 0 < row["fastest"] <= row["seconds"]


def test_a_wrong_sum_is_not_measured(monkeypatch):
    def broken():
        bench.rivals = lambda: {"nothing": lambda x: None}
        bench._race(64, 0.0)

    usual = bench.rivals
    try:
        with pytest.raises(d2lpar.RankError, match="nothing gives a wrong sum"):
            d2lpar.run(broken, world_size=2, backend="sim")
    finally:
        bench.rivals = usual


def test_prediction():
    sizes = [2**14, 2**18]
    rows = bench.prediction(3, sizes, 0.0)["prediction"]
    assert [(row["ranks"], row["bytes"]) for row in rows] == [(3, s) for s in sizes]
    for row in rows:
        for model in (row["steps"], row["ping_pong"]):
            cost = costs.ring_cost(row["bytes"] // 4, 3)
            expected = cost.seconds(model["alpha"], model["beta"])
            assert model["seconds"] == expected
            error = model["seconds"] / row["seconds"] - 1
            assert model["error"] == pytest.approx(error)


def test_prediction_is_exact_where_the_model_holds(monkeypatch):
    """On an ideal cluster steps and single messages cost the same."""
    ideal = d2lpar.Cluster.ideal(3, alpha=2e-5, beta=3e-9)

    def simulated(fn, *arguments, world_size, **_):
        return d2lpar.run(
            fn, *arguments, world_size=world_size, backend="sim", cluster=ideal
        )

    monkeypatch.setattr(bench.launch, "run", simulated)
    for row in bench.prediction(3, [12_000, 120_000], 0.0)["prediction"]:
        expected = costs.ring_cost(row["bytes"] // 4, 3).seconds(2e-5, 3e-9)
        assert row["seconds"] == pytest.approx(expected)
        for model in (row["steps"], row["ping_pong"]):
            assert model["alpha"] == pytest.approx(2e-5)
            assert model["beta"] == pytest.approx(3e-9)
            assert abs(model["error"]) < 1e-6


def test_no_chunk_of_the_ring_is_fitted():
    sizes = [2**k for k in range(16, 27, 2)]
    for n in (2, 3, 4, 8):
        low, high = bench._span(sizes, n)
        assert low < min(sizes) / n and high > max(sizes) / n
        chunks = {int(c) // 4 * 4 for c in bench.np.geomspace(low, high, 7)}
        assert len(chunks) == 7
        assert not chunks & {size // n for size in sizes}


def test_startup_and_nothing_left():
    bench._by_run()
    before = len(psutil.Process().children(recursive=True))
    figures = bench.startup(quick=True)["startup"]
    assert set(figures) == {"run_first", "run", "spawn", "ratio"}
    assert figures["ratio"] == figures["spawn"] / figures["run"] > 0
    # the resource tracker of multiprocessing may have come
    assert len(psutil.Process().children(recursive=True)) <= before + 1


def test_spawn_leaves_nothing_when_interrupted(monkeypatch):
    class Interrupted:
        processes = []

        def join(self):
            raise KeyboardInterrupt

    made = Interrupted()
    spawn = bench.torch.multiprocessing.spawn

    def start(*arguments, **options):
        made.processes = spawn(*arguments, **options).processes
        return made

    monkeypatch.setattr(bench.torch.multiprocessing, "spawn", start)
    with pytest.raises(KeyboardInterrupt):
        bench._by_spawn()
    assert [process.is_alive() for process in made.processes] == [False] * 4


def test_simulator():
    rates = bench.simulator(0.0)["simulator"]
    assert len(rates) == 3 and all(rate > 0 for rate in rates.values())


@pytest.mark.parametrize(("program", "n"), [("_to_and_fro", 2), ("_round", 5)])
def test_messages_are_those_of_the_programs(program, n):
    run = d2lpar.run(getattr(bench, program), 6, world_size=n, backend="sim")
    assert sum(run.messages) == (6 if n == 2 else 6 * n)
    assert run.warnings == []


def made_up():
    """Results as those of a whole bench."""
    row = {"ranks": 2, "bytes": 2**20, "seconds": 0.002, "fastest": 0.001, "rounds": 3}
    model = {"alpha": 1e-4, "beta": 1e-9, "seconds": 0.0018, "error": -0.1}
    rows = [
        row | {"algorithm": name, "ratio": 0.5 + k}
        for k, name in enumerate(bench.rivals())
    ]
    return {
        "machine": bench.machine(),
        "allreduce": rows + [each | {"ranks": 4, "ratio": 7} for each in rows],
        "prediction": [row | {"steps": model, "ping_pong": model}],
        "startup": {"run_first": 2, "run": 0.1, "spawn": 4, "ratio": 40},
        "simulator": {"ring of 4": 12345.6},
    }


def test_tables_hold_the_figures():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in bench.tables(made_up()):
        console.print(table)
    text = console.export_text()
    for figure in ("1 MB", "2 ms", "1.50", "7.00", "-10%", "1.8 ms", "40", "12,346"):
        assert figure in text, figure
    assert text.count("All-reduce on") == 2
    assert "on 4 Gloo ranks" in text


def test_conditions_are_written_down():
    conditions = bench.machine()
    assert conditions["cores"] >= 1
    assert {"date", "processor", "system", "python", "torch"} < set(conditions)
    assert json.loads(json.dumps(made_up()))["machine"]["cores"] == conditions["cores"]


def test_make_has_a_target():
    text = (ROOT / "Makefile").read_text()
    assert "\nbench: setup\n" in text and "d2lpar bench $(BENCH)" in text
