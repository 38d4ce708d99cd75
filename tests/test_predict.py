"""This machine is measured once, and what runs on it is predicted beside."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist
from test_here import MB, figures

import d2lpar
from conftest import WATCHDOG
from d2lpar.launch import this_machine
from d2lpar.sim.measured import FORMAT, cluster_of

# Measured once, and kept


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder; what measures is counted, and takes no time."""
    monkeypatch.delenv(this_machine.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(this_machine, "_measured", {})
    monkeypatch.measured = []

    def measure(ranks, seconds, device):
        monkeypatch.measured.append(tuple(ranks))
        found = figures()
        about = this_machine.machine(device) | {"allowed": seconds}
        found["machine"] = found["machine"] | about
        found["sharing"] = {"1": [1] * 5} | {str(n): [n, 1, 1, 1, 9] for n in ranks}
        return cluster_of(found)

    monkeypatch.setattr(this_machine.measuring, "measure", measure)
    return monkeypatch


def test_this_machine_is_measured_once_and_kept(cache, tmp_path, capsys):
    first = d2lpar.Cluster.here()
    [path] = tmp_path.glob("d2lpar/*.json")
    line = f"Measuring this machine, about a minute; kept in {path}\n"
    assert capsys.readouterr().out == line
    this_machine._measured.clear()  # as in a different process
    again = d2lpar.Cluster.here(seconds=10)
    assert again.figures == first.figures and repr(again) == repr(first)
    assert f"measured on {this_machine.machine()['date'][:10]}" in repr(again)
    assert capsys.readouterr().out == "" and cache.measured == [(2, 4)]
    d2lpar.Cluster.here(fresh=True)
    d2lpar.Cluster.here(seconds=40)
    assert cache.measured == [(2, 4)] * 3
    assert [path] == [*tmp_path.glob("d2lpar/*.json")]  # no draft is left


def test_a_busy_machine_is_told(cache, capsys):
    usual = this_machine.measuring.measure

    def disturbed(*how):
        found = usual(*how)
        found.figures["machine"]["others"] = 0.4
        return found

    cache.setattr(this_machine.measuring, "measure", disturbed)
    here = d2lpar.Cluster.here()
    sentence = "Other programs took 40% of the processors while it was measured."
    assert sentence in capsys.readouterr().out and sentence in repr(here)


def test_more_ranks_are_measured_when_they_are_asked_for(cache):
    for ranks in ((2,), (2, 4), (4,), (8,)):
        assert d2lpar.Cluster.here(ranks).figures["sharing"][str(max(ranks))]
    assert cache.measured == [(2,), (2, 4), (2, 4, 8)]


CHANGED = {"processor": "a newer one", "cores": 99, "torch": "9.9", "device": "cuda"}


@pytest.mark.parametrize("name", CHANGED)
def test_what_holds_for_a_different_machine_is_measured_anew(name, cache):
    here = d2lpar.Cluster.here()
    here.figures["machine"][name] = CHANGED[name]
    here.save(this_machine.path_for(this_machine.machine()))
    again = d2lpar.Cluster.here()
    assert again.figures["machine"][name] == this_machine.machine()[name]
    assert cache.measured == [(2, 4)] * 2


UNUSABLE = ["", "[1, 2]", "{}", json.dumps({"d2lpar": FORMAT + 1}), "\udc80"]


@pytest.mark.parametrize("text", UNUSABLE)
def test_an_unusable_file_is_replaced(text, cache):
    path = this_machine.path_for(this_machine.machine())
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    d2lpar.Cluster.here()
    assert cache.measured == [(2, 4)] and d2lpar.Cluster.load(path)


def test_a_folder_that_cannot_be_written_is_no_error(cache, tmp_path, capsys):
    (tmp_path / "d2lpar").write_text("a file where the folder should be")
    first = d2lpar.Cluster.here()
    assert capsys.readouterr().out.endswith(
        f"{tmp_path / 'd2lpar'} cannot be written\n"
    )
    assert d2lpar.Cluster.here() is first and cache.measured == [(2, 4)]


@pytest.mark.skipif(this_machine.fcntl is None, reason="Windows: both measure")
def test_who_comes_second_waits_and_loads(cache, tmp_path, capsys):
    usual, began = this_machine.measuring.measure, threading.Event()

    def slowly(*how):
        began.set()
        time.sleep(0.3)
        return usual(*how)

    cache.setattr(this_machine.measuring, "measure", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(d2lpar.Cluster.here)
        assert began.wait(WATCHDOG)
        this_machine._measured.clear()
        second = pool.submit(d2lpar.Cluster.here)
        assert first.result().figures == second.result().figures
    assert cache.measured == [(2, 4)]
    assert "Waiting for a process that measures" in capsys.readouterr().out


def test_a_file_that_the_environment_names_is_loaded(cache, tmp_path):
    machine = cluster_of(figures())
    path = tmp_path / "made_up.json"
    machine.save(path)
    before = path.read_bytes()
    cache.setenv(this_machine.VARIABLE, str(path))
    here = d2lpar.Cluster.here()
    assert here.figures == machine.figures and cache.measured == []
    assert repr(here).endswith("Loaded from made_up.json, which D2LPAR_HERE names.")
    d2lpar.Cluster.here(fresh=True)
    assert cache.measured == [(2, 4)] and path.read_bytes() == before
    with pytest.raises(ValueError, match="made_up.json was not measured with 8 ranks"):
        d2lpar.Cluster.here(ranks=(2, 8))
    path.write_text("[]")
    with pytest.raises(ValueError, match=r"D2LPAR_HERE: .*no entry 'd2lpar'.*or unset"):
        d2lpar.Cluster.here()


def test_ranks_of_a_launcher_do_not_measure(cache):
    for name in ("TORCHELASTIC_RUN_ID", "RANK"):
        cache.setenv(name, "0")
    with pytest.raises(RuntimeError, match="Before you start them, type once: python"):
        d2lpar.Cluster.here()
    assert cache.measured == []


# Measured and predicted


def large_and_small():
    """Two programs on each rank: their times are sums of round numbers."""
    x, y = torch.empty(MB // 4), torch.empty(MB // 2)
    return {
        "small": lambda: dist.all_reduce(x),
        "large": lambda: dist.all_reduce(y),
    }


@pytest.fixture
def named(monkeypatch, tmp_path):
    """D2LPAR_HERE names the machine of round numbers."""
    cluster_of(figures()).save(tmp_path / "made_up.json")
    monkeypatch.setenv(this_machine.VARIABLE, str(tmp_path / "made_up.json"))


def test_programs_are_measured_and_predicted(named):
    both = d2lpar.predict(large_and_small, world_size=2, seconds=0.0)
    small, large = both.rows
    assert [small["program"], large["program"]] == ["small", "large"]
    assert small["predicted"] == pytest.approx(3e-4 + 2e-9 * MB, rel=0.01)
    assert large["predicted"] == pytest.approx(3e-4 + 4e-9 * MB, rel=0.01)
    for row in both.rows:
        assert 0 < row["low"] <= row["measured"] <= row["high"]
        assert row["error"] == row["predicted"] / row["measured"] - 1
    assert both.measured.backend == "gloo" and both.predicted.clock == "virtual"
    _, _, *lines = str(both).splitlines()
    assert lines[0].startswith("small    2 processes  ")
    made_up = "2 CPU cores, made up, from made_up.json, which D2LPAR_HERE names"
    assert f"Predicted for {made_up}." in lines
    alt = both.plot("large").alt
    assert "measured: Timeline of 2 ranks" in alt and "predicted: Timeline" in alt


def test_one_function_has_the_name_of_what_prepares_it(named):
    def a_sum(size):
        x = torch.empty(size // 4)
        return lambda: dist.all_reduce(x)

    [row] = d2lpar.predict(a_sum, MB, world_size=2, seconds=0.0).rows
    assert row["program"] == "a_sum"
    assert row["predicted"] == pytest.approx(3e-4 + 2e-9 * MB, rel=0.01)
    [row] = d2lpar.predict(partial(a_sum, 2 * MB), world_size=2, seconds=0.0).rows
    assert row["program"] == "a_sum"


def test_what_cannot_be_timed_is_refused(named):
    with pytest.raises(d2lpar.RankError, match=r"times what <lambda> .*not float"):
        d2lpar.predict(lambda: 1.5, world_size=2)
    with pytest.raises(TypeError, match="large_and_small cannot be called so"):
        d2lpar.predict(large_and_small, 3, world_size=2)
