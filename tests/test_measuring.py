"""Steps at the sizes of real machines: simulated, and measured beside it."""

import pytest
import torch

from d2lpar.launch import run as launch
from d2lpar.launch.measuring import Case, Row, Table, measure
from d2lpar.sim.cluster import Cluster


def squares(width=1024):
    def prepare(k):
        x = torch.ones(width, width)
        return lambda: x @ x if k == 0 else (x @ x) @ x

    return {"one": lambda: prepare(0), "two": lambda: prepare(1)}


def summed(size=2**20):
    def prepare():
        x = torch.ones(size)
        return lambda: torch.distributed.all_reduce(x)

    return {"all-reduce": prepare, "later": Case(prepare, simulated=False)}


def test_the_simulated_figures_are_those_of_the_data_sheet():
    table = measure(squares)
    assert (table.where, table.gpu, table.is_measured) == ("1xA100", "A100", False)
    one, two = table.rows
    assert (one.flops, two.flops) == (2 * 1024**3, 4 * 1024**3)
    gpu = Cluster.of("1xA100")
    wanted = gpu.compute_seconds(0, one.flops, 3 * 4 * 1024**2, torch.float32)
    assert one.simulated == pytest.approx(wanted + gpu.launch, rel=1e-6)
    assert one.simulated_peak == 2 * 4 * 1024**2  # x and its square
    assert one.rate == one.flops / one.simulated
    assert measure(squares) == table != measure(squares, width=99)
    assert table.cluster(2) == Cluster.of("2xA100")


def test_a_case_that_cannot_run_on_meta_predicts_itself():
    copied = Case(None, predicted=lambda c: 1e6 / c.host_rate, moved=10**6)
    table = measure(lambda: {"copy": copied})
    assert table["copy"].rate == pytest.approx(Cluster.of("1xA100").host_rate)
    assert "GB/s" in str(table)


def test_several_gpus_are_simulated_where_there_are_none():
    table = measure(summed, ranks=None)
    assert table.where == "8xA100"
    ring = 2 * 7 / 8 * 4 * 2**20 / Cluster.of("8xA100").rate
    assert ring < table["all-reduce"].simulated < 2 * ring + 100e-6
    assert str(table).endswith("not simulated")


def test_a_measured_table_is_paced_and_shown():
    slow = Row("slow", 5000, 1e-3, 10**9, 0, 3e-3, 7_000_000)
    full = Row("full", 5000, 1.0, 10**11, 0)
    table = Table("8xA100", (slow, Row("same", 5000, 1e-3, 10**9, 0, 1e-3), full))
    assert table.cluster(4).slow_factor(3) == 2.0
    shown = str(table).splitlines()
    assert shown[3].split() == "slow 1 1 GB 0.005 3 7 MB 0.00167".split()
    assert shown[5].endswith("out of memory")
    assert shown[6] == "More than the 80 GB of a GPU: full"


def test_gpus_add_measured_columns(monkeypatch):
    usual, pair = launch.run, Cluster.ideal(2, alpha=0, beta=1e-9)
    gpus = {"nccl": {"backend": "sim", "cluster": pair}}
    ranks = lambda *args, **how: usual(*args, **how | gpus.get(how["backend"], {}))
    monkeypatch.setattr(launch, "run", ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setenv("D2LPAR_PRETEND", "2")
    assert not measure(summed, ranks=None).is_measured
    monkeypatch.delenv("D2LPAR_PRETEND")
    table = measure(summed, ranks=None)
    assert table.where == "2xH200"
    assert [row.measured for row in table.rows] == pytest.approx([4 * 2**20 / 1e9] * 2)
    assert min(row.peak for row in table.rows) >= 4 * 2**20
