"""`python -m bench`: figures of rivals that compute the same, as tables and as JSON."""

import json
import subprocess
import sys

import pytest
import torch

import d2lpar
from bench import __main__ as bench
from bench import allreduces, local_tensor, mesh, race, training
from bench.race import LineUp, Race
from conftest import ROOT

SIZES = {"64K": ("64 KB", 65536), "1m": ("1 MB", 2**20), "4096": ("4096 B", 4096)}


def test_sizes_are_read():
    assert list(map(allreduces.size_of, SIZES)) == list(SIZES.values())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sizes", "64K,big"], "argument --sizes: invalid"),
        (["--ranks", "two"], "argument --ranks: invalid"),
        (["--json", "nowhere/x.json"], "There is no folder nowhere for x.json."),
    ],
)
def test_what_cannot_be_measured_is_refused_before(
    words, sentence, monkeypatch, capsys
):
    monkeypatch.setattr(race.launch, "run", lambda *_, **__: pytest.fail("it measured"))
    with pytest.raises(SystemExit):
        bench.main(words)
    assert sentence in " ".join(capsys.readouterr().err.split())


def order_of_turns():
    order = []
    programs = {name: lambda name=name: order.append(name) or [] for name in "abc"}
    times, _ = race.take_turns(LineUp(programs), 0.0)
    return order, {name: len(spans) for name, spans in times.items()}


def test_rivals_take_turns():
    run = d2lpar.run(order_of_turns, world_size=3, backend="sim")
    for order, counts in run.results:
        assert "".join(order) == "abc" + "bca" + "cab" + "abc"  # the first warms up
        assert counts == {"a": 3, "b": 3, "c": 3}


def test_a_duration_begins_with_the_last_and_ends_with_the_last():
    results = [{"a": [(0, 5), (10, 11)]}, {"a": [(2, 4), (9, 12)]}]
    assert race.durations(results) == {"a": [3, 2]}


SMALL = [
    (allreduces.race("4 KB", 4096), "4 KB", list(allreduces.rivals())),
    (training.DDP, (16,), list(training.DDPS)),
    (mesh.LAYERS[0], (16,), list(mesh.SPLITS)),
    (mesh.LAYERS[1], (16,), list(mesh.SPLITS)),
    (training.PIPELINE, (16,), [training.TORCHS, *training.SCHEDULES]),
    (training.SHARDED, (16, 2, 4), [training.TORCHS_FSDP, training.OUR_FSDP]),
    (mesh.RACE, (16, (1, 2, 1)), [mesh.TORCH, mesh.OURS]),
    (training.SEQUENCE, (16,), list(training.ATTENTIONS)),
]


@pytest.mark.parametrize(("raced", "course", "rivals"), SMALL)
def test_a_race_has_a_row_per_rival(raced, course, rivals):
    rows = raced.measure(2, course, 0.0)
    assert [row["row"] for row in rows] == rivals
    assert rows[0]["ratio"] == 1 and rows[0]["shown"].endswith("s")
    for row in rows:
        assert row["rounds"] == 3 and row["seconds"] > 0
        assert row["column"] == str(course) and row["table"].startswith(raced.name)


def nobody_adds(size):
    made, x = allreduces.line_up(size), torch.ones(size // 4)
    first = "dist.all_reduce"
    programs = {first: made.programs[first], "nothing": lambda: [x]}
    return made._replace(programs=programs)


def lazy_ddp(width):
    class Lazy(training.overlap.NaiveDDP):
        def finish(self, then=None):
            """It forgets to average."""

    training.DDPS = {"torch DDP": training.DDPS["torch DDP"], "lazy": Lazy}
    return training.ddps(width)


def other_gradients(width):
    training.our_step = lambda name, stage, x, y: (
        lambda: [p.square().sum().backward() for p in stage.parameters()]
    )
    return training.pipelines(width)


def another_layer(width):
    usual = training.make_step
    training.make_step = lambda name, width, layers, rows: usual(
        name, width, layers + (name == training.OUR_FSDP), rows
    )
    return training.sharded(width, 2, 4)


@pytest.mark.parametrize(
    ("line_up", "sentence"),
    [
        (nobody_adds, "nothing does not compute what dist.all_reduce does"),
        (lazy_ddp, "lazy does not compute what torch DDP does"),
        (other_gradients, "1f1b does not compute what torch"),
        (another_layer, "FSDP does not compute what fully_shard"),
    ],
)
def test_who_computes_something_else_is_not_measured(line_up, sentence):
    with pytest.raises(d2lpar.RankError, match=sentence):
        Race("A race", line_up, {}).measure(2, (16,), 0.0)


def test_memory_is_measured_for_both(monkeypatch):
    monkeypatch.setattr(training, "SHAPES", {"small": (16, 2, 4)})
    rows = training.memory(2)
    assert [row["row"] for row in rows[::2]] == [
        training.TORCHS_FSDP,
        training.OUR_FSDP,
    ]
    peaks, grown = ([row["bytes"] for row in rows[k::2]] for k in (0, 1))
    assert all(a > b >= 0 for a, b in zip(peaks, grown, strict=True))


SMALL_STEPS = {"dtensors": 8, "by_hand": 8, "ring": 64}


def test_local_tensor_mode_computes_the_same(monkeypatch):
    programs = {k: (getattr(local_tensor, k), size) for k, size in SMALL_STEPS.items()}
    monkeypatch.setattr(local_tensor, "PROGRAMS", programs)
    threads = torch.get_num_threads()
    for name in programs:
        (row,) = local_tensor.measure(2, name, 1)
        assert row["row"] == name and row["column"] == "2 ranks"
        assert row["seconds"] > 0 < row["theirs"]
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(
        local_tensor, "our_steps", lambda *_: (1, [torch.zeros(16)] * 2)
    )
    with pytest.raises(AssertionError, match="not close"):
        local_tensor.measure(2, "ring", 1)


def test_what_goes_wrong_is_told_as_it_happened(monkeypatch, capsys):
    said = {name: capsys.readouterr().out for name in wrong_ones(monkeypatch)}
    assert said == {
        "mismatched collectives": "MismatchError: names both lines\n",
        "a cycle of receives": "DeadlockError: names the line\n",
        "a buffer reused after its isend": "RaceError: names both lines\n",
        "DDP": "runs, and is right\n",
        "FSDP2": "runs, and is right\n",
        "Schedule1F1B": "runs, and is right\n",
        "other": "runs, and is wrong\n",
        "no error": "returns 3 without a word\n",
    }


def wrong_ones(monkeypatch):
    monkeypatch.setitem(local_tensor.WRONG, "other", lambda _: (torch.ones(1), 2 * X))
    monkeypatch.setitem(local_tensor.WRONG, "no error", lambda _: (3 * X, None))
    for name in local_tensor.WRONG:
        local_tensor.tell(local_tensor.OURS, name)
        yield name


X = torch.ones(1)


def test_a_program_that_hangs_is_ended():
    theirs, ours = local_tensor.outcomes("a cycle of receives", 0.01)
    assert theirs["shown"] == ours["shown"] == "hangs for 0.01 s"
    assert [theirs["column"], ours["column"]] == ["LocalTensorMode", "our simulator"]


def test_a_torch_without_local_tensors_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed._local_tensor", None)
    (step,) = local_tensor.plan([2], True)
    ((row,),) = [step()]
    assert row["shown"] == f"left out: torch {torch.__version__} does not have it"
    assert list(race.tables([row]))


def test_rows_are_printed_and_written(monkeypatch, tmp_path, capsys):
    rows = [race.row("A table", "one", "width 1", "2 ms", seconds=0.002)]
    rows += [race.row("A table", "two", f"width {k}", f"{k}.50") for k in (1, 2)]
    steps = [lambda: rows[:2], lambda: rows[2:]]
    monkeypatch.setattr(bench, "plan", lambda *given: steps)
    monkeypatch.setenv("D2LPAR_PROGRESS", "1")  # as it was, afterwards
    bench.main(["--json", str(tmp_path / "a.json")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "2", "ms"] in lines and ["two", "1.50", "2.50"] in lines
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["rows"] == rows and "cores" in found["machine"]["machine"]


def test_make_bench_measures_what_was_asked_for():
    text = (ROOT / "Makefile").read_text()
    assert "\nbench: setup\n" in text and "python -m bench $(BENCH)" in text
    steps = bench.plan([("1 MB", 2**20), ("64 KB", 2**16)], [2, 4])
    races = [step.func.__self__ for step in steps if hasattr(step.func, "__self__")]
    titles = [race.name for race in races]
    assert titles.count("All-reduce") == 4 and titles.count("A pipeline") == 6
    command = [sys.executable, "-m", "bench", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "--quick" in done.stdout and "--nodes" in done.stdout
