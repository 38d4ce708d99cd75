"""Clusters for the simulator: how long a message and an operation take.

A cluster is data.  It answers five questions and never changes:

    path(src, dst)                     how a message travels between two ranks
    compute_seconds(rank, flops, ...)  how long a GPU works on an operation
    launch, contention, protocols      what the host, overlap and NCCL add to that
    memory(rank), host_path(rank)      what a GPU holds, and its way to the host
    node(rank)                         which machine the rank sits in

The figures of the GPUs stand in `hardware.csv`, each with its source.  What is
not on a data sheet stands below with its source, and is a keyword of `Cluster.of`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from ..report.topology import plot_cluster
from . import hardware
from .hardware import DEFAULT_SHARE, DOUBLE_SHARE, MATMUL_SHARE, Gpu
from .hardware import find_gpu as find_gpu
from .hardware import gpus as gpus
from .hardware import parse_cluster as parse_cluster

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

    from ..report.runs import Run

# Seconds per message, software included.  Eight A100 need 84 us besides the bytes
# for the 14 messages of a ring all-reduce of 4 MiB and more, 6 us each (fitted to the
# sweep of stas00/ml-engineering, network/README.md).  The others stand to that as in
# the table of NCCL, src/graph/tuning.cc: 3.4 us, 5.7 us and 14 us per hop.
NVLINK_LATENCY = 6e-6
PCIE_LATENCY = 10e-6
NETWORK_LATENCY = 20e-6
# The part of a link's rate that a large all-reduce reaches.
# NVLink: 235 of 300 GB/s, 8 A100; NCCL caps its own estimate there (tuning.cc).
# PCIe: 20 of 31 GB/s between A100s (github.com/NVIDIA/nccl-tests/issues/178); NCCL
# expects 12 of 15.75, less a sixth through Intel's CPUs: 0.63 (src/graph/topo.h).
# Network: 96 of 100 GB/s, 3 nodes with 4 x 200 Gbit/s (nccl-tests/issues/119).
# Host: 55.4 of 63 GB/s over PCIe 5, from memory; the README of NVIDIA/nvbandwidth has
# 12.36 of 15.75 GB/s over PCIe 3.
NVLINK_SHARE, PCIE_SHARE, NETWORK_SHARE, HOST_SHARE = 0.783, 0.65, 0.96, 0.88
LAUNCH = 5e-6  # seconds in which the host starts one kernel, round
# How much longer a GPU computes while it communicates: mean of A100, H100, MI210 and
# MI250 (Lee et al. 2025, arXiv 2507.03114, abstract: 18.9 %, at most 40 %).
CONTENTION = 0.19
# NCCL sends small messages by another protocol (LL): half the latency and a quarter
# of the rate.  tuning.cc says the quarter; the half fits small messages of the sweep.
PROTOCOLS = ((1.0, 1.0), (0.5, 4.0))  # (times the latency, times the seconds per byte)
SLOTS = 4  # of a CPU socket; GPUs 0-3 and 4-7 have one each (nccl-tests/issues/178)
SHARES = "link_share", "network_share", "host_share"
HOST_BYTES_PER_GPU = 128e9  # a server with eight A100 has about 1 TB


@dataclass(frozen=True, repr=False)
class Cluster:
    """An unchangeable description of ranks, links and GPUs.

    Use `Cluster.of`, `Cluster.ideal` or `Cluster.plain`.  Rates are in bytes per
    second, latencies in seconds; `n` is None where any number of ranks fits.

    NVLink joins all GPUs of a node.  GPUs without it have PCIe lanes of their own: four
    slots hang on one CPU socket, and what goes from one socket to the other shares a
    link per direction.  The two GPUs of a K80 share a slot.
    """

    plain: ClassVar[Cluster]  # 10 us and 10 GB/s between all ranks

    name: str
    n: int | None = None
    latency: float = 1e-5  # seconds per message inside a node
    rate: float = 1e10  # bytes per second between two ranks of a node
    links_rate: float | None = None  # all links of a GPU together; None: `rate`
    host_rate: float = 1e10  # bytes per second between a GPU and the host
    per_node: int | None = None  # ranks in a node; None: all ranks in one
    pcie: bool = False  # the GPUs of a node have no other way to each other
    network_latency: float = NETWORK_LATENCY
    network_rate: float = math.inf
    cards: int = 1  # network cards in a node
    gpu: Gpu | None = None  # None: computing takes no time
    share: float = DEFAULT_SHARE
    launch: float = LAUNCH
    contention: float = 0.0
    protocols: tuple = ((1.0, 1.0),)  # of native collectives, see PROTOCOLS
    host_memory: float | None = None  # bytes per node; None: as much as one likes
    slowed: tuple = ()  # (rank, factor), one per slow rank
    _paths: dict = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def ideal(
        cls, n: int | None = None, alpha: float = 1e-5, beta: float = 1e-10
    ) -> Self:
        """Every message takes `alpha + beta * bytes` seconds, all else is free.

        No link is shared: each rank sends one message and receives one at a time.
        """
        hardware.check_positive(alpha=alpha, beta=beta)
        if n is not None:
            hardware.check_count(n, "ranks")
        return cls("ideal", n, alpha, 1 / beta if beta else math.inf)

    @classmethod
    def of(
        cls,
        spec: str,
        network: str = "100Gb",
        *,
        latency: float | None = None,
        network_latency: float | None = None,
        cards: int | None = None,
        link_share: float | None = None,
        network_share: float | None = None,
        host_share: float | None = None,
        share: float | None = None,
        launch: float | None = None,
        contention: float | None = None,
        host_memory: float | None = None,
    ) -> Self:
        """The cluster `"8xH100"`, or `"4x8xA100"`: four nodes of eight GPUs.

        A keyword that is None stands for the figure after it; the sources of all
        figures are at the top of this module and in `hardware.csv`.

        network          bits per second of a card, one way: "100Gb", "8x400Gb" (eight)
        cards            network cards of a node; rank r uses card r % cards: 1
        latency          seconds per message in a node: 6 us by NVLink, 10 us by PCIe
        network_latency  seconds per message between nodes: 20 us
        link_share       part of the rate of NVLink or PCIe that is reached: 0.783, 0.65
        network_share    the same of the network: 0.96
        host_share       the same of copies between host and GPU: 0.88
        share            part of the 16-bit peak that a product reaches: 0.78 to 0.87
        launch           seconds in which the host, ahead of its GPU, starts it: 5 us
        contention       by how much an operation takes longer for the time in which
                         its GPU also communicates: 0.19
        host_memory      bytes of each node: 128 GB per GPU

        Raises ValueError on what it does not know.
        """
        given = {name: it for name, it in locals().items() if it not in (None, cls)}
        return _described(**given)

    def slow(self, rank: int, factor: float) -> Self:
        """A copy in which this rank computes `factor` times as long; links stay.

        Where computing is free (`plain`, `ideal`), only `d2lpar.sleep` takes time:
        there the factor stretches the sleeps of the rank and nothing else.
        """
        self._check_rank(rank)
        if not (isinstance(factor, int | float) and 0 < factor < math.inf):
            raise ValueError(f"The factor of a slow rank is above 0, not {factor}.")
        slowed = dict(self.slowed)
        slowed[rank] = slowed.get(rank, 1) * factor
        name = f"{self.name}, rank {rank} {factor:g}x slower"
        return replace(self, name=name, slowed=tuple(sorted(slowed.items())))

    def slow_factor(self, rank: int) -> float:
        """How many times as long this rank computes and sleeps; 1 as a rule."""
        return dict(self.slowed).get(rank, 1) if self.slowed else 1

    def node(self, rank: int) -> int:
        """The number of the machine in which the rank sits."""
        return rank // self.per_node if self.per_node else 0

    def path(self, src: int, dst: int) -> tuple[float, float, tuple]:
        """(latency, bytes per second, names of shared links) from rank to rank.

        The ports of the two ranks are not listed.  A shared link passes the bytes of
        one transfer at a time: `node0.out` and `node0.in` are the two directions of a
        node's network card, `node0.socket0.out` those of the link between its two
        sockets, `node0.slot0.out` those of the PCIe slot of a board with two GPUs.
        """
        if self.n is not None and not (0 <= src < self.n and 0 <= dst < self.n):
            self._check_rank(src)
            self._check_rank(dst)
        if src == dst:
            return 0.0, math.inf, ()
        if self.per_node is None:
            return self.latency, self.rate, ()
        if (src, dst) not in self._paths:
            self._paths[src, dst] = self._path(src, dst)
        return self._paths[src, dst]

    def _path(self, src, dst):
        a, b = self.node(src), self.node(dst)
        if a == b:
            return self.latency, self.rate, self._inside(a, src, dst)
        out, into = self.card(src), self.card(dst)
        shared = f"node{a}.out{out}", f"node{b}.in{into}"
        return self.network_latency, self.network_rate, shared

    def _inside(self, node, src, dst):
        """Names of the shared links between two GPUs of a node."""
        if not self.pcie:
            return ()
        slots = [rank % self.per_node // self.gpu.per_slot for rank in (src, dst)]
        if slots[0] == slots[1]:
            return ()  # the switch on the board joins them
        shared = []
        if self.gpu.per_slot > 1:
            shared += [
                f"node{node}.slot{slots[0]}.out",
                f"node{node}.slot{slots[1]}.in",
            ]
        a, b = (slot // SLOTS for slot in slots)
        if a != b:
            shared += [f"node{node}.socket{a}.out", f"node{node}.socket{b}.in"]
        return tuple(shared)

    def card(self, rank: int) -> int | str:
        """The number of the rank's network card; an empty text if there is one."""
        return rank % self.cards if self.cards > 1 else ""

    @property
    def free_compute(self) -> bool:
        """Whether operations take no time."""
        return self.gpu is None

    def peak(self, dtype: str | torch.dtype) -> float:
        """FLOP per second of this type (a torch dtype or its name), at best.

        16-bit (and smaller) floats run at the reachable share of the tensor-core
        peak, float64 at the GPU's share of the float32 rate, all else at that rate.
        """
        if self.gpu is None:
            return math.inf
        kind = str(dtype).removeprefix("torch.")
        small = kind == "bfloat16" or kind.startswith(("float16", "float8", "float4"))
        if small and self.gpu.half:
            return self.gpu.half * self.share
        if kind in ("float64", "complex128"):
            return self.gpu.fp32 * self.gpu.figure(DOUBLE_SHARE, 1 / 2)
        return self.gpu.fp32

    def compute_seconds(self, rank, flops, bytes, dtype=None):
        """Seconds in which a GPU does one operation: the longer of two, a roofline.

        The time to compute and the time to move the bytes; `launch` comes on top
        where the GPU has nothing else to do.
        """
        if self.gpu is None:
            return 0.0
        busy = max(flops / self.peak(dtype), bytes / self.gpu.memory_rate)
        return busy * self.slow_factor(rank)

    def launch_seconds(self, rank):
        """Seconds in which the host of this rank starts one operation."""
        return 0.0 if self.gpu is None else self.launch * self.slow_factor(rank)

    def memory(self, rank: int) -> float | None:
        """Bytes of memory of this rank's GPU; None without a GPU: no limit."""
        return None if self.gpu is None else self.gpu.memory

    def host_path(self, rank):
        """(latency, bytes per second, names of shared links) from a GPU to its host.

        Each PCIe slot has lanes of its own; the two GPUs of a K80 share theirs.
        """
        self._check_rank(rank)
        if self.gpu is None:
            return self.latency, self.rate, ()
        slot = rank % self.per_node // self.gpu.per_slot
        shared = (f"node{self.node(rank)}.slot{slot}.out",)
        return PCIE_LATENCY, self.host_rate, shared if self.gpu.per_slot > 1 else ()

    def plot(self, run: Run | None = None) -> Figure:
        """Draw GPUs, links, network cards and nodes; with a `run`, its traffic too."""
        return plot_cluster(self, run)

    def check_world_size(self, n):
        """Nothing, or ValueError where a run wants more ranks than there are."""
        if self.n is not None and n > self.n:
            raise ValueError(
                f"The cluster {self.name} has {self.n} "
                f"rank{'s' if self.n > 1 else ''}, but the run wants {n}."
            )

    def _check_rank(self, rank):
        if rank < 0 or (self.n is not None and rank >= self.n):
            ranks = "0 and up" if self.n is None else f"0 to {self.n - 1}"
            raise ValueError(f"{self.name} has the ranks {ranks}, not {rank}.")

    def __repr__(self):
        ranks = "any number of" if self.n is None else self.n
        text = f"{ranks} rank{'' if self.n == 1 else 's'}"
        text += f", {_link(self.latency, self.rate)}"
        if self.n and self.per_node and self.n > self.per_node:
            far = _link(self.network_latency, self.network_rate)
            text += f"; {self.n // self.per_node} nodes, {far} between them"
        if self.gpu is None:
            return f"Cluster {self.name}: {text}; computing is free"
        half, memory = self.peak("float16") / 1e12, self.gpu.memory_rate / 1e12
        return f"Cluster {self.name}: {text}; {half:.4g} TFLOP/s, {memory:g} TB/s"


Cluster.plain = Cluster("plain")


def _described(spec, network, **figures):
    """The cluster with these figures in place of the usual ones."""
    nodes, per_node, gpu = parse_cluster(spec)
    count, bits = hardware.parse_network(network)
    shares = {name: figures.pop(name) for name in SHARES if name in figures}
    figures = {"cards": count} | figures
    hardware.check_shares(shares, **figures)
    usual = _usual(nodes, per_node, gpu, bits / 8, **shares)
    name = f"{usual.name}, {network}" if nodes > 1 else usual.name
    return replace(usual, name=name, **figures)


def _usual(
    nodes, per_node, gpu, network, link_share=None, network_share=NETWORK_SHARE,
    host_share=HOST_SHARE,
):  # fmt: skip
    """The cluster as data sheets have it, at the shares that are reached."""
    name = f"{per_node}x{gpu.short}"
    pcie = gpu.peer_rate is None
    if link_share is None:
        link_share = PCIE_SHARE if pcie else NVLINK_SHARE
    return Cluster(
        name=f"{nodes}x{name}" if nodes > 1 else name,
        n=nodes * per_node,
        latency=PCIE_LATENCY if pcie else NVLINK_LATENCY,
        rate=(gpu.pair_rate or gpu.host_rate) * link_share,
        links_rate=(gpu.peer_rate or gpu.host_rate) * link_share,
        host_rate=gpu.host_rate * host_share,
        per_node=per_node,
        pcie=pcie,
        network_rate=min(network * network_share, gpu.host_rate * host_share),
        gpu=gpu,
        share=gpu.figure(MATMUL_SHARE, DEFAULT_SHARE),
        contention=CONTENTION,
        protocols=PROTOCOLS,
        host_memory=per_node * HOST_BYTES_PER_GPU,
    )


def _link(latency, rate):
    speed = "no limit" if rate == math.inf else f"{rate / 1e9:g} GB/s"
    return f"{latency * 1e6:g} us and {speed} per message"
