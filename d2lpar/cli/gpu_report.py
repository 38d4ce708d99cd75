"""`d2lpar doctor --prove`: run `test_gpu.py`, and report a row per path and world.

    NCCL, n ranks       one GPU each, n = 1, 2, 3, 4, 8 and as many as there are
    Gloo on the GPU     ranks that are processes share what GPUs there are
    sim on the GPU      ranks that are threads share one GPU
    NCCL, afterwards    once more, from a process that has used CUDA itself

NCCL comes first: the simulator uses CUDA in this very process.
"""

import datetime
import platform
from collections import Counter
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from ..launch import run as launch
from ..shared import notebooks
from . import doctor

NOTHING = (
    "There is no GPU here, so there is nothing to prove. To rehearse on the CPU: "
    "d2lpar doctor --prove --backend gloo"
)
TIMEOUT = 120.0  # seconds without a call
PASSED, SKIPPED, FAILED = "passed", "skipped", "FAILED"


class World(NamedTuple):
    """What the ranks are, and how many."""

    name: str
    backend: str
    device: str | None
    n: int
    used: bool = False  # this process uses CUDA before it starts the ranks

    def run(self, program, *args, timeout=TIMEOUT):
        """The Run of the program in this world."""
        if self.backend == "nccl" and not dist.is_nccl_available():
            pytest.skip("this torch has no NCCL")
        if self.used:
            torch.ones(1, device="cuda").item()
        options = dict(world_size=self.n, backend=self.backend, device=self.device)
        return launch.run(program, *args, timeout=timeout, **options)


def worlds(rehearse=None, ranks="2,4"):
    """The worlds of this machine's GPUs, or "sim" or "gloo" on the CPU."""
    if rehearse is None:
        gpus = torch.cuda.device_count()
        if not gpus:
            return []
        counts = sorted({n for n in (1, 2, 3, 4, 8, gpus) if n <= gpus})
        names = {n: f"NCCL, {n} rank{'s' * (n > 1)}" for n in counts}
        found = [World(name, "nccl", None, n) for n, name in names.items()]
        found.append(World("Gloo on the GPU, 4 ranks", "gloo", "cuda", 4))
        found.append(World("sim on the GPU, 4 ranks", "sim", "cuda", 4))
        after = "NCCL, after this process used CUDA"
        return [*found, World(after, "nccl", None, gpus, used=True)]
    numbers = [int(n) for n in ranks.split(",") if n.strip().isdecimal() and int(n) > 1]
    if len(numbers) <= ranks.count(","):
        raise ValueError(f"Ranks are numbers from 2 on, such as 2,4, not {ranks!r}.")
    return [World(f"{rehearse}, {n} ranks", rehearse, None, n) for n in numbers]


class Rows:
    """What pytest calls: `rows` has (world, path, state, seconds, remark)."""

    def __init__(self, worlds):
        self.worlds, self.rows = worlds, []

    def pytest_configure(self, config):
        """An installed package has no settings of pytest."""
        config.worlds = self.worlds
        config.addinivalue_line("markers", "gpu: runs on the GPUs of this machine")

    def pytest_collection_modifyitems(self, items):
        """A report knows its test's world and path by these properties."""
        for item in items:
            world = item.callspec.params["world"]
            path = item.originalname.removeprefix("test_").replace("_", " ")
            item.user_properties += [("world", world), ("path", path)]

    def pytest_runtest_logreport(self, report):
        """The test's own outcome is a row, and so is a failure around it."""
        if report.when != "call" and not report.failed:
            return
        told, state = dict(report.user_properties), PASSED
        remark = told.get("remark", "")
        if report.skipped:
            state, remark = SKIPPED, report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", report.longrepr)
            state, remark = FAILED, getattr(crash, "message", str(crash)).split("\n")[0]
        row = told["world"], told["path"], state, report.duration, remark
        self.rows.append(row)


def prove(worlds, *words):
    """Rows of the paths in these worlds; `words` are further ones for pytest."""
    plugin, alone = Rows(worlds), ["--noconftest", "-p", "no:cacheprovider"]
    words = [*alone, "-q", "--tb=short", *words]
    here = notebooks.installed() or notebooks.repository() / "tests"
    code = pytest.main([str(here / "test_gpu.py"), *words], [plugin])
    if code > pytest.ExitCode.TESTS_FAILED:  # interrupted, or nothing was run
        raise RuntimeError(f"pytest did not run all paths: {code!r}.")
    return plugin.rows


def verdict(rows, rehearsed=None):
    """A sentence or two: what is proven now."""
    count = Counter(state for _, _, state, *_ in rows)
    tried = count[PASSED] + count[FAILED]
    text = f"{count[PASSED]} of {tried} paths passed, {count[SKIPPED]} were skipped."
    if rehearsed is not None:
        return f"A rehearsal on the CPU, which proves nothing about GPUs: {text}"
    done = [w.n for w, _, s, *_ in rows if (w.backend, s) == ("nccl", PASSED)]
    if max(done, default=0) < 2:
        return f"{text} NCCL between GPUs is not proven: that needs two of them."
    return f"NCCL on up to {max(done)} GPUs: {text}"


def report(rows, rehearsed=None):
    """The report as Markdown."""
    today = datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z")
    lines = ["# d2lpar doctor --prove", ""]
    lines += [f"{today}. {verdict(rows, rehearsed)}", "", "## Machine", ""]
    lines += ["| | found |", "|---|---|"]
    lines += [f"| {topic} | {_cell(value)} |" for topic, value in machine()]
    lines += ["", "## Paths", "", "| world | path | result | seconds | |"]
    lines += ["|---|---|---|---|---|"]
    for world, path, state, seconds, remark in rows:
        cells = world.name, path, state, f"{seconds:.1f}", _cell(remark)
        lines.append(f"| {' | '.join(cells)} |")
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
