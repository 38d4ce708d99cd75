"""This machine as a cluster: measured, kept in a file, simulated, predicted."""

import json
import socket

import pytest
import torch
import torch.distributed as dist

import d2lpar
from d2lpar.allreduce import ring_allreduce
from d2lpar.launch import rounds
from d2lpar.launch.here import measure
from d2lpar.messages import exchange
from d2lpar.sim.measured import FORMAT, Curve, cluster_of

KB, MB = 2**10, 2**20
ALPHA, BETA = 1e-4, 1e-9


def rows(seconds, sizes=(1, MB, 64 * MB)):
    return [[x, *[seconds(x)] * 3, 9] for x in sizes]


def figures():
    """A machine with two processors on which everything is a round number.

    k messages take k times as long as one; a product runs at 1 TFLOP/s, and bytes
    move at 10 GB/s.
    """
    messages = {
        k: rows(lambda b, k=k: int(k) * (ALPHA + BETA * b), (1, MB, 2 * MB))
        for k in "124"
    }
    moved = rows(lambda b: b / 1e10)
    return {
        "machine": {"name": "2 CPU cores, made up", "cores": 2, "device": "cpu"},
        "products": {"float32": rows(lambda flops: flops / 1e12)},
        "operations": {"add": moved, "add_": moved},
        "launch": [1, 1e-6, 1e-6, 1e-6, 9],
        "messages": messages,
        "all_reduce": {"2": rows(lambda b: 3e-4 + 2e-9 * b)},
        "work": {
            "messages": [[1, 0.0], [MB, 0.0]],
            "all_reduce 2": [[1, 0], [MB, 1e-3]],
        },
        "sharing": {"1": [1, 1, 1, 1, 9], "2": [2, 1, 1, 1, 9], "4": [4, 2, 2, 2, 9]},
        "overlap": {"2": 0.5},
        "copies": {},
        "missing": ["GPUs were not measured."],
        "unsteady": [],
    }


@pytest.fixture
def machine():
    return cluster_of(figures())


def simulated(program, n, cluster):
    return d2lpar.run(program, world_size=n, backend="sim", cluster=cluster)


# Figures and files


def test_a_curve_has_knees_where_it_was_measured():
    curve = Curve([[100, 5.0], [10, 2.0], [200, 5.0], [400, 25.0]])
    known = {1: 2.0, 10: 2.0, 55: 3.5, 100: 5.0, 150: 5.0, 300: 15.0, 500: 35.0}
    assert {x: curve(x) for x in known} == known
    assert Curve([[7, 3.0]])(99) == 3.0
    assert Curve([[1, 3.0], [2, 2.0]])(9) == 2.0  # noise makes nothing free


def test_a_saved_cluster_is_loaded_as_it_was(machine, tmp_path):
    path = tmp_path / "here.json"
    machine.save(path)
    again = d2lpar.Cluster.load(path)
    assert again.figures == machine.figures and repr(again) == repr(machine)
    path.write_text(json.dumps({"cluster": json.loads(path.read_text())}))  # a record
    assert d2lpar.Cluster.load(path).figures == machine.figures
    assert machine.plot().alt


def renamed():
    bad = {"d2lpar": FORMAT, **figures()}
    bad["messages"]["several"] = bad["messages"]["1"]
    return bad


def without(*keys):
    bad = {"d2lpar": FORMAT, **figures()}
    inner = bad
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return bad


BAD = {
    "": "it is no JSON",
    "[1, 2]": "it has no entry 'd2lpar'",
    json.dumps({"d2lpar": 99}): "its format is 99, and 1 is expected",
    json.dumps(without("launch")): "the entry 'launch' is missing",
    json.dumps(without("machine", "cores")): "'machine' has no 'cores'",
    json.dumps(without("messages", "1")): "'messages' has no rows for '1'",
    json.dumps(renamed()): "'messages' has 'several' in place of a number",
    json.dumps(without("all_reduce", "2", 0, 4)): "rows of 'all_reduce', '2' are unus",
}


@pytest.mark.parametrize("text", BAD)
def test_other_files_are_refused_in_a_sentence(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"holds no measured cluster.*{BAD[text]}"):
        d2lpar.Cluster.load(path)


# In the simulator


def test_messages_in_flight_together_share_the_machine(machine):
    def both_ways():
        x, y = torch.empty(MB // 4), torch.empty(MB // 4)
        exchange(x, 1 - dist.get_rank(), y, 1 - dist.get_rank())

    alone = d2lpar.run(one_way, world_size=2, backend="sim", cluster=machine)
    one = ALPHA + BETA * MB
    assert alone.elapsed == pytest.approx(one, rel=0.01)
    assert simulated(both_ways, 2, machine).elapsed == pytest.approx(2 * one, rel=0.01)


def one_way():
    x = torch.empty(MB // 4)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def test_a_message_slows_down_while_a_second_one_travels(machine):
    one = ALPHA + BETA * MB

    def program():
        r, x = dist.get_rank(), torch.empty(MB // 4)
        if r >= 2:
            d2lpar.sleep(one / 2)
        dist.send(x, r + 1) if r % 2 == 0 else dist.recv(x, r - 1)
        return d2lpar.now()

    ends = simulated(program, 4, machine).results
    # half alone, half at half the pace; then the second has its other half alone
    assert ends[1] == pytest.approx(1.5 * one, rel=0.01)
    assert ends[3] == pytest.approx(2.0 * one, rel=0.01)


def compute():
    a = torch.ones(1000, 1000)
    a @ a  # 2 GFLOP: 2 ms


def test_ranks_share_processors(machine):
    alone, two, four = (simulated(compute, n, machine).elapsed for n in (1, 2, 4))
    assert alone == pytest.approx(two) and alone > 2e-3
    assert four == pytest.approx(2 * two, rel=0.01)


def test_a_ring_takes_its_messages_and_sums(machine):
    size = MB
    run = simulated(lambda: ring_allreduce(torch.empty(size // 4)), 4, machine)
    message = 4 * (ALPHA + BETA * size / 4)
    add = 2 * (1e-6 + 3 * size / 4 / 1e10)  # four ranks on two processors
    assert run.elapsed == pytest.approx(6 * message + 3 * add, rel=0.05)


def test_a_native_all_reduce_takes_what_was_measured(machine):
    run = simulated(lambda: dist.all_reduce(torch.empty(MB // 4)), 2, machine)
    assert run.elapsed == pytest.approx(3e-4 + 2e-9 * MB, rel=0.01)


def test_an_all_reduce_takes_processors_from_a_product(machine):
    def program():
        work = dist.all_reduce(torch.empty(MB // 4), async_op=True)  # 1 ms of work
        compute()
        work.wait()

    more = (
        simulated(program, 2, machine).elapsed - simulated(compute, 2, machine).elapsed
    )
    assert more == pytest.approx(1e-3, rel=0.1)


def test_more_ranks_than_were_measured_are_refused(machine):
    with pytest.raises(ValueError, match="up to 4 ranks, but the run wants 5"):
        simulated(compute, 5, machine)


# Rounds


def test_rounds_count_in_which_others_were_quiet():
    spans = [(k, k + 1.0, 1.0, busy) for k, busy in enumerate([1, 1, 3, 1, 1.1, 1, 1])]
    for cores, kept in {2: [0, 1, 3, 4, 5, 6], 1000: list(range(7))}.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rounds, "cores", lambda cores=cores: cores)
            assert rounds.quiet_rounds([{"a": spans}]) == kept
    noisy = [{"a": [(k, k + 1.0, 0.0, 2.0 - k / 10) for k in range(9)]}]
    assert rounds.quiet_rounds(noisy) == [4, 5, 6, 7, 8]  # the quietest
    assert rounds.durations(noisy, quiet=True) == {"a": [1.0] * 5}


def test_a_median_is_steady_when_its_error_is_small():
    assert rounds.is_steady([1.0, 1.01, 0.99, 1.0])
    assert not rounds.is_steady([1.0, 2.0, 3.0])
    assert rounds.is_steady([1.0, 1.1, 1.2] * 30)  # so often that it is certain


# Measured, and predicted


def test_this_machine_is_measured():
    here = measure(ranks=(2,), seconds=0.1)
    found = here.figures
    assert here.peak("float32") > 1e8
    assert 0 < here.message_seconds(64) < here.message_seconds(32 * MB) < 60
    assert set(found["messages"]) == {"1", "2"} and set(found["all_reduce"]) == {"2"}
    assert {"add", "copy_", "fill_", "sum", "tanh", "relu"} < set(found["operations"])
    assert found["machine"]["cores"] >= 1 and 0 <= found["overlap"]["2"] <= 1
    assert socket.gethostname() not in json.dumps(found)
    assert simulated(one_way, 2, here).elapsed >= here.message_seconds(MB)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"ranks": (1,)}, r"ranks are numbers of processes from 2 on, not \(1,\)"),
        ({"device": "tpu"}, "device is 'cpu' or 'cuda', not 'tpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused(how, sentence):
    with pytest.raises(ValueError, match=sentence):
        d2lpar.Cluster.here(**how)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_missing_is_missed_in_a_sentence():
    with pytest.raises(RuntimeError, match="needs a GPU, and torch sees none"):
        d2lpar.Cluster.here(device="cuda")
