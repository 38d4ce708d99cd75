"""The accelerators of `hardware.csv`, and what share of their rates is reached.

The table holds what data sheets promise at boost clock, each row with its source.
What is measured instead stands below as a share of it, each with its source.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from dataclasses import dataclass
from importlib import resources
from itertools import combinations

PCIE_RATE = {"PCIe2 x16": 8e9, "PCIe3 x16": 15.75e9}  # bytes per second, one way
PCIE_RATE |= {"PCIe4 x16": 31e9, "PCIe5 x16": 63e9}
# Best measured bf16 matrix product over the dense peak (stas00/ml-engineering).
# The others have no such figure: 0.8 is a guess in the same range.
MATMUL_SHARE = {"A100": 0.87, "H100": 0.80, "H200": 0.80, "B200": 0.78}
DEFAULT_SHARE = 0.80
# Streaming multiprocessors (NVIDIA, whitepapers of the architectures).
PROCESSORS = {"P100": 56, "V100": 80, "A100": 108, "H100": 132, "H200": 132}
# float64 over float32 rate, where it is not a half (CUDA C++ programming guide,
# throughput of arithmetic instructions).
DOUBLE_SHARE = {"K20": 1 / 3, "K80": 1 / 3, "T4": 1 / 32, "2070": 1 / 32}
DOUBLE_SHARE |= {"L4": 1 / 64, "4090": 1 / 64}
OPTIONAL_WORDS = {*"SXM SXM2 RTX SUPER 16GB 32GB 40GB 80GB (one GK210)".split()}


@dataclass(frozen=True)
class Gpu:
    """One row of hardware.csv in bytes, bytes per second and FLOP per second.

    `peer_rate` is the sum of all its links to other GPUs, one way, `pair_rate` what
    one pair of GPUs has of it.  Behind a switch both are the same.  In servers of
    V100 each of the six links goes to a neighbour of its own, or two go together:
    the rate of a pair is that of one link.  None: there is only PCIe.
    """

    name: str
    memory: float
    memory_rate: float
    fp32: float  # of a TPU the 16-bit peak: it multiplies float32 in bfloat16
    half: float | None  # dense 16-bit peak; None without 16-bit arithmetic
    peer_rate: float | None
    pair_rate: float | None
    host_rate: float  # to the host by PCIe, one way
    per_slot: int  # GPUs that share one PCIe slot, behind a switch on their board
    source: str

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
    def rate(column, unit):
        return float(row[column]) * unit if row[column] else None

    half = rate("bf16_or_fp16_dense_TFLOPs", 1e12)
    return Gpu(
        name=row["gpu"],
        memory=float(row["memory_GB"]) * 1e9,
        memory_rate=float(row["memory_GBps"]) * 1e9,
        fp32=rate("fp32_TFLOPs", 1e12) or half,
        half=half,
        peer_rate=rate("gpu_to_gpu_GBps_one_way", 1e9),
        pair_rate=rate("one_pair_GBps_one_way", 1e9),
        host_rate=PCIE_RATE[row["host_link"]],
        per_slot=int(row["per_slot"]),
        source=row["source"],
    )


def find_gpu(name):
    """The GPU of that name, whatever its case, spaces and hyphens.

    `A100` is the SXM module with 80 GB, `H100` the SXM one: of several the largest.
    """
    wanted = _plain(re.sub(r"(?i)nvidia|tesla|geforce|hbm\d\w*", "", name))
    found = [gpu for gpu in gpus() if wanted in _spellings(gpu)]
    if not found:
        known = ", ".join(gpu.short for gpu in gpus())
        raise ValueError(f"There is no GPU '{name}': the known ones are {known}.")
    return max(found, key=lambda gpu: gpu.memory)


def recognise(device):
    """The Gpu that CUDA calls so ("NVIDIA H100 80GB HBM3"), or None."""
    try:
        return find_gpu(device)
    except ValueError:
        return None


def _plain(name):
    name = re.sub(r"sxm\d(?!\d*gb)", "sxm", name.lower())  # SXM2, SXM4: one thing
    return re.sub(r"[^a-z0-9]", "", name)


def _spellings(gpu):
    """All ways to write a name: its words, with or without the optional ones."""
    words, memory = gpu.name.split(), f"{gpu.memory / 1e9:.0f}GB"
    words += [memory] if memory in OPTIONAL_WORDS - {*words} else []  # CUDA says it
    some = [w for w in words if w in OPTIONAL_WORDS]
    drops = (set(d) for k in range(len(some) + 1) for d in combinations(some, k))
    return {_plain(" ".join(w for w in words if w not in drop)) for drop in drops}


def parse_cluster(spec):
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


def parse_network(text):
    """(network cards of a node, bits per second of each) of "8x400Gb", or "100Gb"."""
    several = re.fullmatch(r"\s*([1-9]\d*)\s*x(.*)", str(text))
    count, rate = several.groups() if several else (1, text)
    return int(count), bits_per_second(rate)


def bits_per_second(text):
    """Return 1e11 of "100Gb"."""
    number = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([MGT])b(?:it)?(?:/s|ps)?\s*", str(text)
    )
    if not number or float(number[1]) == 0:
        raise ValueError(
            f"A network needs its rate in bits per second, such as '100Gb', "
            f"not {text!r}."
        )
    return float(number[1]) * {"M": 1e6, "G": 1e9, "T": 1e12}[number[2]]


def check_count(n, what):
    """Raise ValueError where this is no whole number above 0."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"The number of {what} is a whole number above 0, not {n}.")


def check_shares(shares, cards=1, share=1, **values):
    """Raise ValueError where a share is not in (0, 1], or another figure below 0."""
    check_count(cards, "network cards in a node")
    shares = {"share": share, **shares}
    check_positive(**shares, **values)
    for name, part in shares.items():
        if not 0 < part <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, not {part}.")


def check_positive(**values):
    """Raise ValueError where one of these figures is no number from 0 on."""
    for name, value in values.items():
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be 0 or more, not {value}.")
