"""Programs at the sizes of real machines: simulated, and measured beside it."""

import json
import re
from pathlib import Path

import pytest
import torch

import d2lpar
from d2lpar import experiments, sharding
from d2lpar.experiments import (
    Case,
    Row,
    Table,
    experiment,
    measure,
    measuring,
    sharded_models,
    tables,
)
from d2lpar.experiments.sharded_models import lighten
from d2lpar.sim.cluster import Cluster
from d2lpar.sim.hardware import recognise

EVERY = experiments.every()
MARKED = r"(?m)^@experiment\((?:.|\n)*?\)\ndef (\w+)"


@experiment(small={"width": 8})
def squares(width=1024, deep=2):
    def prepare(k):
        x = torch.ones(width, width)
        return lambda: x @ x if k == 0 else (x @ x) @ x

    return {"one": lambda: prepare(0), "two": lambda: prepare(1)}


def test_the_simulated_figures_are_those_of_the_data_sheet():
    table = measure(squares)
    assert (table.where, table.is_measured) == ("1xA100", False)
    one, two = table.rows
    assert (one.flops, two.flops) == (2 * 1024**3, 4 * 1024**3)
    gpu = Cluster.of("1xA100")
    wanted = gpu.compute_seconds(0, one.flops, 3 * 4 * 1024**2, torch.float32)
    assert one.simulated == pytest.approx(wanted + gpu.launch, rel=1e-6)
    assert one.simulated_peak == 2 * 4 * 1024**2  # x and its square
    assert one.rate == one.flops / one.simulated
    assert measure(squares) == table


def test_small_sizes_are_for_tests(monkeypatch):
    monkeypatch.setenv("D2LPAR_SMALL", "1")
    assert measure(squares)["one"].flops == 2 * 8**3
    assert measure(squares, width=99)["one"].flops == 2 * 8**3


def test_a_size_that_the_experiment_does_not_have():
    with pytest.raises(TypeError, match="squares has no parameter 'height'"):
        experiment(small={"height": 1})(squares.__wrapped__)


def test_a_case_that_cannot_run_on_meta_predicts_itself(monkeypatch):
    monkeypatch.delenv("D2LPAR_SMALL", raising=False)
    copied = Case(None, predicted=lambda c: 1e6 / c.host_rate, moved=10**6)
    cases = experiment(small={})(lambda: {"copy": copied})
    table = measure(cases)
    assert table["copy"].simulated == 1e6 / Cluster.of("1xA100").host_rate
    assert table["copy"].rate == pytest.approx(Cluster.of("1xA100").host_rate)
    assert "GB/s" in str(table)


@experiment(small={}, ranks=None)
def summed(size=2**20):
    def prepare():
        x = torch.ones(size)
        return lambda: torch.distributed.all_reduce(x)

    return {"all-reduce": prepare, "later": Case(prepare, simulated=False)}


def test_several_gpus_are_simulated_where_there_are_none():
    table = measure(summed)
    assert table.where == "8xA100"
    ring = 2 * 7 / 8 * 4 * 2**20 / Cluster.of("8xA100").rate
    assert ring < table["all-reduce"].simulated < 2 * ring + 100e-6
    assert table["later"].simulated is None


def made(*rows, source="measured on 8xNVIDIA X"):
    return Table("made", "8xA100", source, rows)


def test_a_measured_table_is_paced_kept_and_shown(tmp_path):
    slow = Row("slow", 1e-3, 5000, 10**9, None, 3e-3, 2.9e-3, 3.2e-3, 7_000_000)
    other = Row("other", 1e-3, 5000, 10**9, None, 1e-3, 1e-3, 1e-3, 7_000_000)
    full = Row("full", 1.0, 10**11, 10**9, failed="out of memory")
    table = made(slow, other, full)
    assert table.pace == 2.0
    assert (table["slow"].seconds, table["full"].seconds) == (3e-3, 1.0)
    assert table.cluster(4).slow_factor(3) == 2.0
    assert table.cluster(4).rate == Cluster.of("4xA100").rate
    shown = str(table).splitlines()
    assert shown[0] == "simulated on 8xA100, measured on 8xNVIDIA X"
    assert shown[3].split() == "slow 1 5 kB 1 3 7 MB 0.333".split()
    assert shown[5].endswith("out of memory")
    assert shown[6] == "More than the 80 GB of a GPU: full"
    kept = json.loads(json.dumps(table.figures("recorded on 8xNVIDIA X")))
    again = tables.from_figures("made", kept)
    assert again.rows == table.rows
    assert again.source == "recorded on 8xNVIDIA X"


def test_a_record_is_shown_where_there_is_no_gpu(tmp_path, monkeypatch):
    folder = tmp_path / "launch" / "records"
    folder.mkdir(parents=True)
    table = made(Row("one", 1.0, measured=2.0, low=2.0, high=2.0))
    record = {"experiments": {"squares": table.figures("recorded on X")}}
    (folder / "x.json").write_text(json.dumps(record))
    usual = tables.resources.files
    here = lambda name: tmp_path if name == "d2lpar" else usual(name)
    monkeypatch.setattr(tables.resources, "files", here)
    assert measure(squares)["one"].measured == 2.0
    assert measure(squares, width=4)["one"].measured is None  # other sizes
    assert measure(summed)["all-reduce"].measured is None


def test_nothing_measured_is_said():
    table = measure(squares)
    assert str(table).endswith(measuring.NO_GPU)
    assert table.pace == 1 and table.cluster(2) == Cluster.of("2xA100")
    with pytest.raises(KeyError, match="no case 'three': there are one, two"):
        table["three"]


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", None),
        ("NVIDIA H200", "H200"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("", None),
    ],
)
def test_a_gpu_is_recognised_by_the_name_that_cuda_gives(device, gpu):
    found = recognise(device)
    assert (found and found.short) == gpu


def test_no_two_experiments_share_a_name():
    folder = Path(experiments.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    named = [name for text in texts for name in re.findall(MARKED, text)]
    assert sorted(named) == sorted(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_every_experiment_is_simulated_at_small_sizes(name, monkeypatch):
    monkeypatch.setenv("D2LPAR_SMALL", "1")
    table = measure(EVERY[name])
    assert table.name == name
    assert any(row.simulated for row in table.rows)
    assert all(row.simulated is None or row.simulated > 0 for row in table.rows)
    assert str(table)


def among_many(kind):
    model = kind(sharded_models.stack(sharded_models.transformer, 64, 3, lighten))
    adam = torch.optim.Adam(model.shards, foreach=False)
    for _ in range(2):
        sharded_models.one_step(model, adam, torch.randn(1, 4, 64))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_rank_alone_holds_what_a_rank_of_eight_holds(stage):
    kind = (sharding.ZeRO1, sharding.ZeRO2, sharding.FSDP)[stage - 1]
    cluster = Cluster.of("8xA100")
    how = {"backend": "sim", "device": "meta", "cluster": cluster}
    whole = d2lpar.run(among_many, kind, world_size=8, **how)
    alone = measure(sharded_models.one_of_many, width=64, depth=3, tokens=4)
    assert alone[f"stage {stage}"].simulated_peak == max(whole.peak_memory)
