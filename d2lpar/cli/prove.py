"""`d2lpar doctor --prove`: the course's paths, run on the GPUs of this machine.

A path is a program with its truth: what one device computes.  A world says what the
ranks are.  Every path runs in every world, and the report has a row per path.

    NCCL, n ranks       one GPU each, n = 1, 2, 3, 4, 8 and as many as there are
    Gloo on the GPU     ranks that are processes share what GPUs there are
    sim on the GPU      ranks that are threads share one GPU
    NCCL, afterwards    once more, from a process that has used CUDA itself

NCCL comes first: the simulator uses CUDA in this very process.  On a machine without a
GPU the same paths can be rehearsed on the CPU, which proves nothing about GPUs.
"""

import datetime
import platform
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..launch import run as launch
from ..report.errors import RankError
from ..report.units import show_seconds
from . import doctor, proofs
from .bench.allreduces import size_name
from .bench.race import numbers_of_ranks

NOTHING = (
    "There is no GPU here, so there is nothing to prove. To rehearse on the CPU: "
    "d2lpar doctor --prove --backend gloo"
)
TIMEOUT = 120.0  # seconds without a call
PASSED, SKIPPED, FAILED = "passed", "skipped", "FAILED"
PATIENCE = 5.0  # the same, where ranks are stuck on purpose
SIZES = {"nccl": (2**16, 2**20, 2**24, 2**28), "gloo": (2**16, 2**20)}  # bytes


class World(NamedTuple):
    """What the ranks are, and how many."""

    name: str
    backend: str
    device: str | None
    n: int
    used: bool = False  # this process uses CUDA before it starts the ranks

    def run(self, program, *args, timeout=TIMEOUT):
        """The Run of the program in this world."""
        options = dict(world_size=self.n, backend=self.backend, device=self.device)
        return launch.run(program, *args, timeout=timeout, **options)


class Proof(NamedTuple):
    """How a path went in a world: passed, failed or skipped, and why."""

    path: str
    world: World
    state: str
    seconds: float = 0.0
    remark: str = ""


class Skipped(Exception):
    """A path that a world does not have, in a few words."""


# Worlds


def worlds(gpus, rehearse=None, ranks=(2, 4)):
    """The worlds to prove with so many GPUs, or those of a rehearsal on the CPU."""
    if rehearse is not None:
        return [World(f"{rehearse}, {_ranks(n)}", rehearse, None, n) for n in ranks]
    if gpus == 0:
        return []
    counts = sorted({n for n in (1, 2, 3, 4, 8, gpus) if n <= gpus})
    found = [World(f"NCCL, {_ranks(n)}", "nccl", None, n) for n in counts]
    found += [
        World("Gloo on the GPU, 4 ranks", "gloo", "cuda", 4),
        World("sim on the GPU, 4 ranks", "sim", "cuda", 4),
        World("NCCL, after this process used CUDA", "nccl", None, gpus, used=True),
    ]
    return found


def _ranks(n):
    return "1 rank" if n == 1 else f"{n} ranks"


# Paths: each takes a world and gives a remark, or raises


def path(program, *args):
    """The program runs on all ranks."""

    def go(world):
        world.run(program, *args)
        return ""

    return go


def failing(program, timeout=TIMEOUT):
    """The program fails, and an error says which rank is why: rank 1."""

    def go(world):
        if world.n < 2:
            raise Skipped("needs two ranks")
        try:
            world.run(program, timeout=timeout)
        except RankError as error:
            if error.rank == 1:
                return _first_line(error)
            text = f"names rank {error.rank}, not rank 1: {_first_line(error)}"
            raise proofs.Wrong(text) from None
        raise proofs.Wrong("no error came")

    return go


def bandwidth(world):
    """Bytes that each rank sends in a second, as a ring would: 2(n-1)/n S / time."""
    if world.backend == "sim":
        raise Skipped("its clock is virtual")
    if world.n < 2:
        raise Skipped("needs two ranks")
    results = world.run(proofs.time_sums, SIZES[world.backend]).results
    share, parts = 2 * (world.n - 1) / world.n, []
    for name, size in results[0]:
        seconds = max(each[name, size] for each in results)
        parts.append(
            f"{name} {size_name(size)}: {show_seconds(float(f'{seconds:.3g}'))}, "
            f"{share * size / seconds / 1e9:.3g} GB/s"
        )
    return "; ".join(parts)


PATHS = {
    "tensors of the caller and of the rank": path(proofs.meet, torch.ones(5)),
    "random numbers": path(proofs.draw),
    "send, recv and exchange in a ring": path(proofs.send_in_a_ring),
    "native all_reduce and reduce": path(proofs.native_sums),
    "native broadcast to all_to_all": path(proofs.native_moves),
    "chapter 05, from scratch": path(proofs.moves_from_scratch),
    "chapter 06, from scratch": path(proofs.sums_from_scratch),
    "chapter 08, DDP": path(proofs.data_parallel, proofs.our_ddp),
    "torch DDP": path(proofs.data_parallel, proofs.torchs_ddp),
    "chapter 10, FSDP": path(proofs.data_parallel, proofs.our_fsdp),
    "torch fully_shard": path(proofs.data_parallel, proofs.torchs_fsdp),
    "chapter 12, split MLP": path(proofs.split_mlp),
    "chapter 13, 1F1B": path(proofs.pipelined, "1f1b"),
    "chapter 13, zero-bubble": path(proofs.pipelined, "zb-h1"),
    "chapter 18, experts": path(proofs.experts_on_ranks),
    "a rank that fails is named": failing(proofs.one_fails),
    "a rank that does not send is named": failing(proofs.one_is_missing, PATIENCE),
    "bandwidth of all-reduces": bandwidth,
}


def plan(rehearse=None, ranks="2,4", paths=PATHS):
    """A list of (name, function that gives a Proof); empty without a GPU.

    `rehearse`: "sim" or "gloo", on the CPU, with ranks such as "2,4".
    """
    found = worlds(torch.cuda.device_count(), rehearse, numbers_of_ranks(ranks))
    return [
        (f"{world.name}: {name}", partial(prove, name, PATHS[name], world))
        for world in found
        for name in paths
    ]


def prove(name, go, world):
    """The Proof of one path in one world; no error leaves it."""
    start = time.perf_counter()
    try:
        if world.backend == "nccl" and not dist.is_nccl_available():
            raise Skipped("this torch has no NCCL")
        if world.used:
            torch.ones(1, device="cuda").item()
        state, remark = PASSED, go(world)
    except Skipped as reason:
        state, remark = SKIPPED, str(reason)
    except Exception as error:
        state, remark = FAILED, f"{type(error).__name__}: {_first_line(error)}"
    return Proof(name, world, state, time.perf_counter() - start, remark)


def _first_line(error):
    return next((line for line in str(error).splitlines() if line.strip()), "")


# The report


def verdict(proofs, rehearsed=None):
    """A sentence or two: what is proven now."""
    count = Counter(proof.state for proof in proofs)
    tried = count[PASSED] + count[FAILED]
    text = f"{count[PASSED]} of {tried} paths passed, {count[SKIPPED]} were skipped."
    if rehearsed is not None:
        return f"A rehearsal on the CPU, which proves nothing about GPUs: {text}"
    done = [p.world.n for p in proofs if (p.world.backend, p.state) == ("nccl", PASSED)]
    if max(done, default=0) < 2:
        return f"{text} NCCL between GPUs is not proven: that needs two of them."
    return f"NCCL on up to {max(done)} GPUs: {text}"


def report(proofs, rehearsed=None):
    """The report as Markdown."""
    today = datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z")
    lines = ["# d2lpar doctor --prove", ""]
    lines += [f"{today}. {verdict(proofs, rehearsed)}", "", "## Machine", ""]
    lines += ["| | found |", "|---|---|"]
    lines += [f"| {topic} | {_cell(value)} |" for topic, value in machine()]
    lines += ["", "## Paths", "", "| world | path | result | seconds | |"]
    lines += ["|---|---|---|---|---|"]
    for each in proofs:
        name, state = each.world.name, each.state
        lines.append(
            f"| {name} | {each.path} | {state} | {each.seconds:.1f} | "
            f"{_cell(each.remark)} |"
        )
    return "\n".join(lines) + "\n"


def machine():
    """Pairs (topic, what was found)."""
    found = [(x.topic, x.value) for x in doctor.examine()]
    found.append(("system", platform.platform()))
    if torch.cuda.is_available():
        found.append(("NCCL", ".".join(map(str, torch.cuda.nccl.version()))))
        found.append(("driver", doctor.driver()))
    return found


def _cell(text):
    """Text that stays in its cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", "<br>").replace("\t", " ")
