"""Clusters for the simulator: how long a message and an operation take.

A cluster is data.  It answers four questions and never changes:

    path(src, dst)                     how a message travels between two ranks
    compute_seconds(rank, flops, ...)  how long an operation takes on a rank
    memory(rank), host_path(rank)      what a GPU holds, and its way to the host
    node(rank)                         which machine the rank sits in

The figures of the GPUs stand in `hardware.csv`, each with its source.  What is
not on a data sheet is a round figure, named below, and a keyword of `Cluster.of`.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    import torch

# Seconds per message, software included.  NVLink: eight A100 need 44 us for the
# 14 messages of a small ring all-reduce, so about 3 us each.  The other two are
# round: through the host costs a little more, through a network card more again.
NVLINK_LATENCY = 3e-6
PCIE_LATENCY = 5e-6
NETWORK_LATENCY = 10e-6
LAUNCH = 5e-6  # seconds to start one kernel, round
PCIE_RATE = {"PCIe3 x16": 15.75e9, "PCIe4 x16": 31e9, "PCIe5 x16": 63e9}  # one way
# Best measured bf16 matrix product over the dense peak (stas00/ml-engineering).
# The others have no such figure: 0.8 is a guess in the same range.
MATMUL_SHARE = {"A100": 0.87, "H100": 0.80, "H200": 0.80, "B200": 0.78}
DEFAULT_SHARE = 0.80
# float64 over float32 rate, where it is not a half (CUDA C++ programming guide,
# throughput of arithmetic instructions).
DOUBLE_SHARE = {"K80": 1 / 3, "T4": 1 / 32, "2070": 1 / 32}
DOUBLE_SHARE |= {"L4": 1 / 64, "4090": 1 / 64}
HOST_BYTES_PER_GPU = 128e9  # a server with eight A100 has about 1 TB
OPTIONAL_WORDS = {"SXM", "SXM2", "RTX", "SUPER", "40GB", "80GB", "(one", "GK210)"}


@dataclass(frozen=True)
class Gpu:
    """One row of hardware.csv in bytes, bytes per second and FLOP per second."""

    name: str
    memory: float
    memory_rate: float
    fp32: float
    half: float | None  # dense 16-bit peak; None without tensor cores
    peer_rate: float | None  # to another GPU of the node by NVLink, one way
    host_rate: float  # to the host by PCIe, one way

    @property
    def short(self):
        """The name as one writes it: `A100`, `A100-40GB`, `RTX4090`."""
        silent = OPTIONAL_WORDS - {"40GB", "RTX", "SUPER"}
        words = [word for word in self.name.split() if word not in silent]
        return "-".join(words).replace("RTX-", "RTX")

    def figure(self, table, default):
        """The entry of a table by the model's number, or the default."""
        return next((v for k, v in table.items() if k in self.name.split()), default)


@functools.cache
def gpus():
    """All known GPUs, as in hardware.csv."""
    text = resources.files(__package__).joinpath("hardware.csv").read_text("utf-8")
    return tuple(_gpu(row) for row in csv.DictReader(text.splitlines()))


def _gpu(row):
    half = row["bf16_or_fp16_dense_TFLOPs"]
    peer = row["gpu_to_gpu_GBps_one_way"]
    return Gpu(
        name=row["gpu"],
        memory=float(row["memory_GB"]) * 1e9,
        memory_rate=float(row["memory_GBps"]) * 1e9,
        fp32=float(row["fp32_TFLOPs"]) * 1e12,
        half=float(half) * 1e12 if half else None,
        peer_rate=float(peer) * 1e9 if peer else None,
        host_rate=PCIE_RATE[row["host_link"]],
    )


def find_gpu(name):
    """The GPU of that name, whatever its case, spaces and hyphens.

    `A100` is the SXM card with 80 GB, `H100` the SXM card: of several the largest.
    """
    wanted = _plain(re.sub(r"(?i)nvidia|tesla|geforce", "", name))
    found = [gpu for gpu in gpus() if wanted in _spellings(gpu.name)]
    if not found:
        known = ", ".join(gpu.short for gpu in gpus())
        raise ValueError(f"There is no GPU '{name}': the known ones are {known}.")
    return max(found, key=lambda gpu: gpu.memory)


def _plain(name):
    name = re.sub(r"sxm\d(?!\d*gb)", "sxm", name.lower())  # SXM2, SXM4: one thing
    return re.sub(r"[^a-z0-9]", "", name)


def _spellings(name):
    """All ways to write a name: its words, with or without the optional ones."""
    words = name.split()
    some = [w for w in words if w in OPTIONAL_WORDS]
    drops = (set(d) for k in range(len(some) + 1) for d in combinations(some, k))
    return {_plain("".join(w for w in words if w not in drop)) for drop in drops}


@dataclass(frozen=True, repr=False)
class Cluster:
    """An unchangeable description of ranks, links and GPUs.

    Use `Cluster.of`, `Cluster.ideal` or `Cluster.plain`.  Rates are in bytes per
    second, latencies in seconds; `n` is None where any number of ranks fits.
    """

    plain: ClassVar[Cluster]  # 10 us and 10 GB/s between all ranks

    name: str
    n: int | None = None
    latency: float = 1e-5  # seconds per message inside a node
    rate: float = 1e10  # bytes per second inside a node
    per_node: int | None = None  # ranks in a node; None: all ranks in one
    shared_host: bool = False  # the GPUs of a node share one way through the host
    network_latency: float = NETWORK_LATENCY
    network_rate: float = math.inf
    cards: int = 1  # network cards in a node
    gpu: Gpu | None = None  # None: computing takes no time
    share: float = DEFAULT_SHARE
    launch: float = LAUNCH
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
        _positive(alpha=alpha, beta=beta)
        if n is not None:
            _count(n, "ranks")
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
        share: float | None = None,
        launch: float | None = None,
        host_memory: float | None = None,
    ) -> Self:
        """The cluster `"8xH100"`, or `"4x8xA100"`: four nodes of eight GPUs.

        Between nodes there is a network of so many bits per second (`"100Gb"`),
        by one card per node, which all ranks of the node share.  Inside a node
        NVLink joins each pair of GPUs; GPUs without it share the PCIe root.
        `latency` is inside a node; `share` is the part of the 16-bit peak that a
        matrix product reaches; None stands for the round figures of this module.
        Raises ValueError on what it does not know.
        """
        nodes, per_node, gpu = _parse(spec)
        given = {"latency": latency, "network_latency": network_latency}
        given |= {"launch": launch, "host_memory": host_memory}
        given |= {"cards": cards, "share": share}
        given = {name: value for name, value in given.items() if value is not None}
        _check(**given)
        rate = min(_network(network), gpu.host_rate)  # the card hangs on the PCIe
        usual = _usual(nodes, per_node, gpu)
        name = f"{usual.name}, {network}" if nodes > 1 else usual.name
        return replace(usual, name=name, network_rate=rate, **given)

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

        The ports of the two ranks are not listed.  A shared link serves one
        transfer at a time: `node0.host` is the PCIe root of a node, `node0.out`
        and `node0.in` are the two directions of its network card.
        """
        if self.n is not None and not (0 <= src < self.n and 0 <= dst < self.n):
            self._check_rank(src)
            self._check_rank(dst)
        if src == dst:
            return 0.0, math.inf, ()
        if self.per_node is None:
            return self.latency, self.rate, ()
        a, b = src // self.per_node, dst // self.per_node
        key = a, b, src % self.cards, dst % self.cards
        if key not in self._paths:
            self._paths[key] = self._path(*key)
        return self._paths[key]

    def _path(self, a, b, card_a, card_b):
        if a == b:
            shared = (f"node{a}.host",) if self.shared_host else ()
            return self.latency, self.rate, shared
        many = self.cards > 1
        out = f"node{a}.out{card_a if many else ''}"
        into = f"node{b}.in{card_b if many else ''}"
        return self.network_latency, self.network_rate, (out, into)

    @property
    def free_compute(self) -> bool:
        """Whether operations take no time."""
        return self.gpu is None

    def peak(self, dtype: str | torch.dtype) -> float:
        """FLOP per second of this type (a torch dtype or its name), at best.

        16-bit (and smaller) floats run at the reachable share of the tensor-core
        peak, float64 at the card's share of the float32 rate, all else at that rate.
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
        """Seconds of one operation: the longer of computing and moving, + launch."""
        if self.gpu is None:
            return 0.0
        busy = max(flops / self.peak(dtype), bytes / self.gpu.memory_rate)
        return (busy + self.launch) * self.slow_factor(rank)

    def memory(self, rank: int) -> float | None:
        """Bytes of memory of this rank's GPU; None without a GPU: no limit."""
        return None if self.gpu is None else self.gpu.memory

    def host_path(self, rank):
        """(latency, bytes per second, names of shared links) between GPU and host.

        With NVLink each GPU has a PCIe link of its own; the others share the root.
        """
        self._check_rank(rank)
        if self.gpu is None:
            return self.latency, self.rate, ()
        shared = (f"node{self.node(rank)}.host",) if self.shared_host else ()
        return PCIE_LATENCY, self.gpu.host_rate, shared

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


def _usual(nodes, per_node, gpu):
    """The cluster as the data sheet and the round figures have it."""
    name = f"{per_node}x{gpu.short}"
    return Cluster(
        name=f"{nodes}x{name}" if nodes > 1 else name,
        n=nodes * per_node,
        latency=NVLINK_LATENCY if gpu.peer_rate else PCIE_LATENCY,
        rate=gpu.peer_rate or gpu.host_rate,
        per_node=per_node,
        shared_host=gpu.peer_rate is None,
        gpu=gpu,
        share=gpu.figure(MATMUL_SHARE, DEFAULT_SHARE),
        host_memory=per_node * HOST_BYTES_PER_GPU,
    )


def _parse(spec):
    """(nodes, GPUs in each, Gpu) of "4x8xA100"."""
    if not isinstance(spec, str):
        raise TypeError(f"A cluster is a text such as '8xH100', not {spec!r}.")
    match = re.fullmatch(r"\s*(?:(\d+)\s*x\s*)?(?:(\d+)\s*x\s*)?(.*\S)\s*", spec, re.I)
    if not match or not re.search(r"[a-z0-9]", match[3], re.I):
        raise ValueError(
            f"'{spec}' names no GPU: write '8xH100', or '4x8xA100' for four nodes."
        )
    first, second = match[1], match[2]
    nodes, per_node = (first, second) if second else ("1", first or "1")
    if int(nodes) < 1 or int(per_node) < 1:
        raise ValueError(f"A cluster has at least 1 node of 1 GPU, not '{spec}'.")
    return int(nodes), int(per_node), find_gpu(match[3])


def _network(text):
    """Bytes per second of "100Gb", which is 100 Gbit/s."""
    number = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([MGT])b(?:it)?(?:/s|ps)?\s*", str(text)
    )
    if not number or float(number[1]) == 0:
        raise ValueError(
            f"A network needs its rate in bits per second, such as '100Gb', "
            f"not {text!r}."
        )
    return float(number[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[number[2]] / 8


def _count(n, what):
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"The number of {what} is a whole number above 0, not {n}.")


def _check(cards=1, share=1, **values):
    _count(cards, "network cards in a node")
    _positive(share=share, **values)
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}.")


def _positive(**values):
    for name, value in values.items():
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be 0 or more, not {value}.")


def _link(latency, rate):
    speed = "no limit" if rate == math.inf else f"{rate / 1e9:g} GB/s"
    return f"{latency * 1e6:g} us and {speed} per message"
