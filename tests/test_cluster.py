"""Clusters: links and GPUs by name, times by hand, errors in one sentence."""

import csv
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch

import d2lpar.sim.cluster
from d2lpar.report.calls import Meta, cost_of
from d2lpar.sim.cluster import Cluster, find_gpu, gpus
from d2lpar.sim.native import plan


def test_plain_is_ten_us_and_ten_gigabytes_per_second_for_any_number():
    plain = Cluster.plain
    assert plain.path(0, 1) == plain.path(5, 1023) == (1e-5, 1e10, ())
    assert (plain.name, plain.n, plain.free_compute) == ("plain", None, True)
    assert plain.compute_seconds(3, 10**15, 10**12, torch.float32) == 0.0
    assert plain.memory(0) is None and plain.host_memory is None
    plain.check_world_size(100_000)
    assert "any number of ranks, 10 us and 10 GB/s per message" in repr(plain)


def test_ideal_takes_alpha_and_beta():
    assert Cluster.ideal().path(0, 1) == (1e-5, 1e10, ())
    ideal = Cluster.ideal(4, alpha=2e-6, beta=0.5e-9)
    assert ideal.path(0, 3) == (2e-6, pytest.approx(2e9), ()) and ideal.n == 4
    assert Cluster.ideal(4, alpha=0, beta=0).path(0, 3) == (0, math.inf, ())


def test_nvlink_joins_each_pair_of_gpus():
    h100 = Cluster.of("8xH100")
    assert (h100.name, h100.n, h100.free_compute) == ("8xH100", 8, False)
    assert h100.path(0, 7) == (6e-6, 450e9 * 0.783, ())
    assert h100.host_path(5) == (10e-6, 63e9 * 0.88, ())
    assert h100.memory(5) == 80e9 and h100.host_memory == 8 * 128e9


def test_a_pair_of_v100_has_one_of_six_links():
    v100 = Cluster.of("8xV100", link_share=1)
    assert v100.path(0, 1)[1] == 25e9 and v100.links_rate == 150e9
    a100 = Cluster.of("8xA100", link_share=1)
    assert a100.path(0, 1)[1] == a100.links_rate == 300e9


def test_pcie_is_switched():
    t4 = Cluster.of("8xT4")
    rate = 15.75e9 * 0.65
    assert t4.path(1, 2) == t4.path(3, 0) == (10e-6, rate, ())
    across = ("node0.socket0.out", "node0.socket1.in")
    assert t4.path(3, 4) == (10e-6, rate, across)
    assert t4.path(4, 3)[2] == ("node0.socket1.out", "node0.socket0.in")
    assert t4.host_path(3) == (10e-6, 15.75e9 * 0.88, ())


def test_two_gpus_of_a_k80_share_a_slot():
    k80 = Cluster.of("16xK80")
    assert k80.path(0, 1)[2] == ()  # the switch on the board
    assert k80.path(1, 2)[2] == ("node0.slot0.out", "node0.slot1.in")
    assert k80.path(7, 8)[2][2:] == ("node0.socket0.out", "node0.socket1.in")
    assert k80.host_path(2)[2] == k80.host_path(3)[2] == ("node0.slot1.out",)


def test_nodes_share_a_card_each():
    cluster = Cluster.of("4x8xA100", network="100Gb", link_share=1, network_share=1)
    assert (cluster.name, cluster.n) == ("4x8xA100, 100Gb", 32)
    assert [cluster.node(rank) for rank in (0, 7, 8, 31)] == [0, 0, 1, 3]
    assert cluster.path(8, 15) == (6e-6, 300e9, ())
    assert cluster.path(7, 8) == (2e-5, 12.5e9, ("node0.out", "node1.in"))
    assert cluster.path(31, 0) == (2e-5, 12.5e9, ("node3.out", "node0.in"))
    two = Cluster.of("2x4xT4", network="2x10Gb")
    assert two == replace(Cluster.of("2x4xT4", network="10Gb", cards=2), name=two.name)
    assert two.path(1, 6) == (2e-5, 1.25e9 * 0.96, ("node0.out1", "node1.in0"))


def test_a_network_is_no_faster_than_the_link_to_the_host():
    assert Cluster.of("2x1xT4", network="400Gb").path(0, 1)[1] == 15.75e9 * 0.88


def test_every_figure_can_be_replaced():
    figures = dict(network="80Gb/s", latency=1e-6, network_latency=2e-6, launch=0)
    figures |= dict(link_share=0.5, network_share=0.25, host_share=1, share=0.5)
    cluster = Cluster.of("2x2xA100", **figures, contention=0.3, host_memory=1e12)
    assert cluster.path(0, 1) == (1e-6, 150e9, ())
    assert cluster.path(0, 2)[:2] == (2e-6, 2.5e9)
    assert cluster.host_path(0)[1] == 31e9
    assert cluster.compute_seconds(0, 156e12, 0, "bfloat16") == pytest.approx(1)
    assert (cluster.host_memory, cluster.launch_seconds(0)) == (1e12, 0)
    assert cluster.contention == 0.3 and Cluster.plain.contention == 0


def test_a_message_to_oneself_costs_nothing():
    assert Cluster.of("4xT4").path(2, 2) == (0.0, math.inf, ())


@pytest.mark.parametrize(
    ("dtype", "peak"),
    [
        (torch.bfloat16, 312e12 * 0.87),
        (torch.float16, 312e12 * 0.87),
        ("float16", 312e12 * 0.87),
        (torch.float32, 19.5e12),
        (torch.int64, 19.5e12),
        (torch.float64, 19.5e12 / 2),
    ],
)
def test_the_roofline_by_hand(dtype, peak):
    a100 = Cluster.of("A100")
    assert a100.peak(dtype) == pytest.approx(peak)
    flops = 2 * 4096**3
    computing = a100.compute_seconds(0, flops, 8, dtype)
    assert computing == pytest.approx(flops / peak)
    moving = a100.compute_seconds(0, 1, 2.039e9, dtype)
    assert moving == pytest.approx(1e-3) and a100.launch_seconds(0) == 5e-6


def test_cards_without_tensor_cores_or_double_units():
    assert Cluster.of("K80").peak("float16") == 4.37e12
    assert Cluster.of("TPUv4").peak("float32") == 275e12
    assert Cluster.of("T4").peak("float64") == 8.1e12 / 32
    assert Cluster.of("T4").peak("float16") == 65e12 * 0.8


def test_a_slow_rank_computes_longer_and_sends_as_before():
    fast = Cluster.of("8xH100")
    slow = fast.slow(3, 2)
    one = fast.compute_seconds(3, 10**12, 0, "float32")
    assert slow.compute_seconds(3, 10**12, 0, "float32") == 2 * one
    assert slow.compute_seconds(2, 10**12, 0, "float32") == one
    assert slow.path(3, 4) == fast.path(3, 4)
    assert slow.launch_seconds(3) == 2 * fast.launch_seconds(3)
    assert [slow.slow_factor(rank) for rank in (2, 3)] == [1, 2]
    assert slow.slow(3, 1.5).slow_factor(3) == 3
    assert slow.name == "8xH100, rank 3 2x slower"
    assert fast.slow_factor(3) == 1  # the original is as it was
    assert Cluster.plain.slow(1, 4).compute_seconds(1, 1e9, 0) == 0.0
    assert Cluster.plain.slow(1, 4).slow_factor(1) == 4


def test_clusters_are_values():
    a, b = Cluster.of("4xT4"), Cluster.of("4 x t4")
    a.path(0, 1)
    assert a == b and hash(a) == hash(b) and a != a.slow(0, 2)
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(FrozenInstanceError):
        a.n = 5


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("A100", "A100 SXM 80GB"),
        ("a100-sxm", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("A100 40GB", "A100 SXM 40GB"),
        ("h100", "H100 SXM"),
        ("v100", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("rtx4090", "RTX 4090"),
        ("2070 super", "RTX 2070 SUPER"),
        ("K80", "K80 (one GK210)"),
        ("P100", "P100 SXM2"),
        ("tpuv4", "TPU v4"),
    ],
)
def test_names_are_forgiving(name, row):
    assert find_gpu(name).name == row


def test_every_row_of_the_table_can_be_named_by_its_short_and_full_name():
    for gpu in gpus():
        assert find_gpu(gpu.short) == find_gpu(gpu.name) == gpu
        assert Cluster.of(f"2x{gpu.short}").name == f"2x{gpu.short}"
    path = Path(d2lpar.sim.cluster.__file__).with_name("hardware.csv")
    rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    assert len(rows) == len(gpus()) == 14
    assert all("https://" in row["source"] for row in rows)


RATE = "A network needs its rate in bits per second, such as '100Gb', not "


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Cluster.of("8xB300"), "no GPU 'B300': the known ones are K20, K80,"),
        (lambda: Cluster.of(" "), "' ' names no GPU: write '8xH100', or '4x8xA100'"),
        (lambda: Cluster.of("0xH100"), "at least 1 node of 1 GPU, not '0xH100'."),
        (lambda: Cluster.of("2x8xA100", network="100"), RATE + "'100'."),
        (lambda: Cluster.of("2x8xA100", network="100GB"), RATE + "'100GB'."),
        (lambda: Cluster.of("8xA100", network=100), RATE + "100."),
        (
            lambda: Cluster.of("T4", cards=0),
            "network cards in a node is a whole number",
        ),
        (
            lambda: Cluster.of("T4", share=2),
            "share must be above 0 and at most 1, not 2",
        ),
        (
            lambda: Cluster.of("T4", link_share=0),
            "link_share must be above 0 and at most",
        ),
        (lambda: Cluster.ideal(0), "number of ranks is a whole number above 0, not 0."),
        (lambda: Cluster.ideal(2.5), "is a whole number above 0, not 2.5."),
        (lambda: Cluster.ideal(alpha=-1), "alpha must be 0 or more, not -1."),
        (lambda: Cluster.ideal(beta=-1), "beta must be 0 or more, not -1."),
        (lambda: Cluster.of("4xT4").slow(4, 2), "4xT4 has the ranks 0 to 3, not 4."),
        (lambda: Cluster.plain.slow(-1, 2), "plain has the ranks 0 and up, not -1."),
        (lambda: Cluster.plain.slow(0, 0), "factor of a slow rank is above 0, not 0."),
        (lambda: Cluster.of("4xT4").path(0, 9), "4xT4 has the ranks 0 to 3, not 9."),
        (
            lambda: Cluster.of("4xT4").check_world_size(5),
            "4 ranks, but the run wants 5",
        ),
    ],
)
def test_errors_are_one_sentence(make, sentence):
    with pytest.raises(ValueError) as error:
        make()
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_cluster_is_named_by_text():
    with pytest.raises(TypeError, match="A cluster is a text such as '8xH100', not 8."):
        Cluster.of(8)


# Predicted against published: a large or small all-reduce of float32

SWEEP = {  # bytes: us.  8 x A100, nccl-tests; stas00/ml-engineering, network/README.md
    32768: 43.83, 262144: 61.38, 1048576: 101.9, 4194304: 101.5, 8388608: 133.5,
    16777216: 276.6, 67108864: 684.6, 268435456: 2420.6, 1073741824: 8203.9,
    4294967296: 32136, 17179869184: 127997,
}  # fmt: skip
# Bus bandwidth in GB/s: algbw x 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)
PUBLISHED = {
    "2xA100": 208,  # NVIDIA/nccl-tests issue 178
    "4xL4": 20,  # the same issue: A100s that meet over PCIe 4
    "8xL4": 20,
    "8xA100": 235,  # network/README.md, "only 235GBps"
    "8xH100": 450 * 20.6 / 25,  # what NCCL expects of a link, src/graph/topo.h
    "8xV100": 150 * 20 / 25,
    "4xT4": 12 * 5 / 6,  # the same, through the CPU
}


def planned(cluster, n, nbytes):
    entry = (((nbytes // 4,), "float32"),)
    cost = cost_of(Meta("all_reduce", "sum", None, entry, entry), n, 0)
    return plan(cluster, "all_reduce", tuple(range(n)), cost)


def seconds(cluster, n, nbytes):
    return planned(cluster, n, nbytes)[0]


@pytest.mark.parametrize("nbytes", SWEEP)
def test_the_sweep_of_eight_a100(nbytes):
    ends = min(SWEEP), 2**30, 2**32, max(SWEEP)
    predicted = seconds(Cluster.of("8xA100"), 8, nbytes) * 1e6
    assert predicted == pytest.approx(SWEEP[nbytes], rel=0.2 if nbytes in ends else 0.4)


@pytest.mark.parametrize("spec", PUBLISHED)
def test_bus_bandwidths(spec):
    n, nbytes = int(spec[0]), 2**32
    rate = 2 * (n - 1) / n * nbytes / seconds(Cluster.of(spec), n, nbytes)
    assert rate / 1e9 == pytest.approx(PUBLISHED[spec], rel=0.2)


@pytest.mark.parametrize(
    ("nbytes", "algbw"),
    [(2**15, 0.33), (2**26, 102.07), (2**30, 188.90), (2**32, 193.37), (2**34, 194.43)],
)
def test_four_nodes_of_eight_b200(nbytes, algbw):
    """stas00/ml-engineering, network/benchmarks/README.md; 8 x 400 Gbit/s a node."""
    cluster = Cluster.of("4x8xB200", "400Gb", cards=8)
    predicted = seconds(cluster, 32, nbytes)
    assert predicted == pytest.approx(nbytes / algbw / 1e9, rel=0.25)


def test_native_collectives_use_every_network_card_and_all_links():
    one, eight = (Cluster.of("2x8xA100", "100Gb", cards=k) for k in (1, 8))
    slow, fast = (seconds(cluster, 16, 2**32) for cluster in (one, eight))
    assert slow / fast == pytest.approx(8, rel=0.01)
    cards = {
        f"node{i}.{way}{k}" for i in (0, 1) for way in ("in", "out") for k in range(8)
    }
    assert cards <= {*planned(eight, 16, 64)[1]}
    assert cards.isdisjoint(planned(eight, 8, 64)[1])
    latency = 2 * (7 * 6e-6 + 1 * 20e-6) / 2  # of a tree, by the protocol for small
    assert seconds(one, 16, 64) == pytest.approx(latency, rel=0.01)


def test_an_all_to_all_leaves_a_node_through_its_cards():
    """Each of 3 ranks sends a block to each of 3 on the other node, through a card."""
    cluster = Cluster.of("2x3xA100", "400Gb", cards=3)
    took = []
    for numbers in (10**5, 3 * 10**5):
        blocks = (((numbers,), "float32"),) * 6
        cost = cost_of(Meta("all_to_all", "", None, blocks, blocks), 6, 0)
        took.append(plan(cluster, "all_to_all", tuple(range(6)), cost)[0])
    more = 3 * 2 * 10**5 * 4  # bytes through each card
    assert took[1] - took[0] == pytest.approx(more / cluster.network_rate)
