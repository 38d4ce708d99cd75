"""`d2lpar simulate`: scripts written for torchrun, as they are, on simulated ranks."""

import builtins
import functools
import importlib.util
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from typer.testing import CliRunner

from conftest import ROOT, WATCHDOG
from d2lpar.cli import main as cli
from d2lpar.cli import simulate


def write(folder, **parts):
    for part, text in parts.items():
        path = folder / f"{part}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def command(*words):
    return CliRunner().invoke(cli.app, ["simulate", *words])


def call(folder, *words, arguments=(), **parts):
    """The command with `train` as its script, which ranks print to the result."""
    write(folder, **parts)
    return command(*words, "train.py", *arguments)


def passed(folder, *words, **parts):
    """What the command says where it succeeds."""
    result = call(folder, *words, **parts)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(folder, *words, **parts):
    """The errors that it tells where it fails."""
    result = call(folder, *words, **parts)
    assert result.exit_code == 1, result.output
    return result.stderr


START = """
import argparse, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device(int(os.environ["LOCAL_RANK"])))
"""
TOP = len(START.splitlines())  # lines above a body


def script(body, **more):
    return {"train": START + textwrap.dedent(body), **more}


# A script is executed as torchrun would


def test_ranks_that_join_no_group_are_an_error(folder):
    """Else two models would be trained alone, and the exit status be 0."""
    start = "import torch.distributed as dist\n"
    join = start + "print(dist.is_initialized(), {0})\n"
    join += "if {0}: dist.init_process_group()\n"
    rank = 'int(__import__("os").environ["RANK"]) == 1'
    for condition, who in (("False", "2 ranks of 2 (0, 1)"), (rank, "1 rank of 2 (0)")):
        result = call(folder, "-n", "2", train=join.format(condition))
        assert result.exit_code == 1
        assert f"RuntimeError: {who} joined no process group" in result.stderr
        assert "[rank 1] False" in result.stdout  # as under torchrun
        passed(folder, "-n", "1", train=join.format(condition))
    passed(folder, "-n", "2", train=join.format("True"))
    errors = failed(folder, "-n", "2", train=start + "dist.barrier()")
    assert "Default process group has not been initialized" in errors


def test_a_profiler_on_every_rank_is_refused(folder):
    """Two at once ended the process with a segmentation fault."""
    body = """
        with torch.profiler.profile() if {} else open(os.devnull):
            x = torch.ones(3)
            dist.all_reduce(x)
            assert x.tolist() == [2.0] * 3
        """
    errors = failed(folder, "-n", "2", **script(body.format("True")))
    assert "torch.profiler already watches rank 0. Simulated ranks" in errors
    for _ in range(2):  # nothing of the last one is left
        passed(folder, "-n", "2", **script(body.format("rank")))


def test_every_rank_has_its_arguments_modules_and_globals(folder):
    body = """
        import shared
        from package import inside
        words = argparse.ArgumentParser()
        words.add_argument("--width", type=int)
        width = words.parse_args().width
        seen = rank
        for each in shared.SEEN, inside.SEEN, sys.argv:
            each.append(str(rank))
        dist.barrier()
        mine = sys.modules["__main__"].seen, shared.SEEN, inside.SEEN, sys.argv[-1]
        print(width, __name__, mine, os.path.basename(__file__), os.getcwd())
        """
    modules = {"package/inside": "SEEN = []\n"}
    # the ranks take turns in the middle of this import
    modules["shared"] = "import torch.distributed as dist\nSEEN = []\ndist.barrier()\n"
    parts = script(body, **modules)
    out = passed(folder, "-n", "3", arguments=["--width", "7"], **parts)
    for r in range(3):
        line = f"7 __main__ ({r}, ['{r}'], ['{r}'], '{r}') train.py {folder}"
        assert f"[rank {r}] {line}\n" in out
    assert not {"shared", "package", "package.inside"} & sys.modules.keys()
    assert sys.modules["__main__"].__name__ == "__main__"
    assert str(folder) not in sys.path


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a package of such a text; or with a compiled part."""
    place = tmp_path / "site-packages"

    def install(name, text, part=None):
        write(place, **{f"{name}/__init__": text})
        if part is not None:
            shutil.copy(part, place / name)

    monkeypatch.syspath_prepend(place)
    return install


REMEMBERS = """
import torch, torch.distributed as dist
RANK = None
class Mine:
    pass
def rank():
    global RANK
    assert RANK in (None, dist.get_rank()), f"{RANK} is remembered"
    RANK = dist.get_rank()
    return RANK, torch.cuda.device_count()
"""


def test_an_installed_package_is_each_ranks_own(folder, installed):
    body = """
        import remembers
        for _ in range(2):
            assert remembers.rank() == (rank, 2)
            dist.barrier()
        parts = [None] * n
        dist.all_gather_object(parts, remembers.Mine())
        if rank == 0:
            torch.save(remembers.Mine(), "mine.pt")
        dist.barrier()
        parts.append(torch.load("mine.pt", weights_only=False))
        assert all(type(part) is remembers.Mine for part in parts)
        """
    installed("remembers", REMEMBERS)
    passed(folder, "-n", "2", **script(body))
    assert "remembers" not in sys.modules
    errors = failed(folder, "-n", "2", "--share", "remembers", **script(body))
    assert "AssertionError: 0 is remembered" in errors


def test_a_package_with_compiled_code_is_shared_but_for_a_wish(folder, installed):
    part = importlib.util.find_spec("_heapq").origin
    installed("fast", REMEMBERS + "from fast import _heapq\n", part)
    body = """
        import fast
        fast.rank()
        dist.barrier()
        fast.rank()
        assert fast._heapq.heappop([rank]) == rank
        """
    errors = failed(folder, "-n", "2", **script(body))
    assert "AssertionError: 0 is remembered" in errors
    assert "--own fast gives each rank its own" in errors
    passed(folder, "-n", "2", "--own", "fast", **script(body))


def test_what_a_rank_sets_is_its_own(folder, monkeypatch):
    body = """
        import builtins, logging, multiprocessing, warnings
        assert dist.is_torchelastic_launched() and os.environ["GROUP_RANK"] == "0"
        os.makedirs(f"of{rank}")
        os.chdir(f"of{rank}")
        torch.set_num_threads(torch.get_num_threads() + rank)
        torch.set_float32_matmul_precision(["highest", "high"][rank])
        multiprocessing.set_start_method(["spawn", "fork"][rank])
        logging.basicConfig(level=[logging.INFO, logging.ERROR][rank])
        warnings.simplefilter(["ignore", "always"][rank])
        if rank == 1:
            builtins.print = lambda *words: None
        dist.barrier()
        print("loud")
        logging.info("told")
        seen = os.path.basename(os.getcwd()), torch.get_float32_matmul_precision()
        seen += multiprocessing.get_start_method(), warnings.filters[0][0]
        assert torch.get_num_threads() == 1 + rank
        mine = ("of0", "highest", "spawn", "ignore"), ("of1", "high", "fork", "always")
        assert seen == mine[rank], seen
        """
    here = os.getcwd, torch.get_float32_matmul_precision, lambda: warnings.filters
    here += (lambda: builtins.print, lambda: logging.root.level)
    before = [get() for get in here]
    default = multiprocessing.context._default_context
    chosen = multiprocessing.get_context("spawn")  # as others may have done
    monkeypatch.setattr(default, "_actual_context", chosen)
    result = call(folder, "-n", "2", **script(body))
    assert result.exit_code == 0, result.output
    said = result.stdout + result.stderr
    assert said.count("[rank 0] loud") == said.count("[rank 0] INFO:root:told") == 1
    assert not re.search("rank 1. (loud|INFO)", said)
    assert "Run: 2 ranks" in said
    assert [get() for get in here] == before


def test_a_group_of_another_rank_is_named(folder, monkeypatch):
    monkeypatch.setattr(torch, "kept", None, raising=False)
    body = """
        group = dist.new_group()
        if rank == 0:
            torch.kept = group
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=torch.kept)
        """
    said = "rank 1 calls all_reduce on a process group object of rank 0"
    assert said in failed(folder, "-n", "2", **script(body))


def test_objects_threads_logging_and_what_comes_at_the_end(folder):
    body = """
        import atexit, dataclasses, logging, threading
        @dataclasses.dataclass
        class Part:
            rank: int
        parts = [None] * n
        dist.all_gather_object(parts, Part(rank))
        assert parts == [Part(r) for r in range(n)]  # of this rank's own class
        atexit.register(print, "destroyed")
        atexit.register(dist.destroy_process_group)
        thread = threading.Thread(target=print, args=("beside",))
        thread.start()
        thread.join()
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        dist.barrier()
        logging.getLogger("mine").info("step")
        """
    result = call(folder, "-n", "2", **script(body))
    assert result.exit_code == 0, result.output
    assert result.stdout.count("beside\n") == 2
    assert "[rank 1] destroyed\n" in result.stdout
    assert "[rank 1] INFO:mine:step" in result.stderr


@pytest.mark.parametrize("world", [(), ("--gloo",)])
def test_random_numbers_of_ranks_and_dtensors(folder, world):
    """Those differ until a script seeds them; these between shards, not replicas."""
    body = """
        first = torch.rand(1).item()
        torch.manual_seed(5)
        print("first", first, torch.rand(1).item())
        from torch.distributed import tensor
        from torch.distributed.tensor import Replicate, Shard
        mesh = tensor.init_device_mesh("cuda", (2, 2))
        halves = {"device_mesh": mesh, "placements": [Replicate(), Shard(0)]}
        def tell(name, x):
            every = [torch.empty_like(x.to_local()) for _ in range(n)]
            dist.all_gather(every, x.to_local())
            assert torch.equal(every[0], every[2]) and torch.equal(every[1], every[3])
            print(name, torch.equal(every[0], every[1]))
        torch.manual_seed(rank)  # other rows on every rank, and replicas all the same
        torch.cuda.manual_seed(0)
        tell("made", tensor.rand(6, 3, **halves))
        x = tensor.zeros(6, 3, **halves)
        tell("filled", x.normal_())
        tell("dropped", nn.functional.dropout(x + 1, 0.5))
        tell("whole", tensor.rand(6, 3, device_mesh=mesh))
        print("host", torch.rand(1).item())
        again = []
        for _ in range(2):
            torch.manual_seed(3)
            again += [tensor.randn(4, device_mesh=mesh).to_local() for _ in range(2)]
        assert torch.equal(again[0], again[2]) and not torch.equal(again[0], again[1])
        """
    result = call(folder, "-n", "4", *world, **script(body))
    assert result.exit_code == 0, result.stderr
    assert "UserWarning" not in result.stderr
    for name, equal in (("made", 0), ("filled", 0), ("dropped", 0), ("whole", 1)):
        assert result.stdout.count(f"] {name} {bool(equal)}\n") == 4
    assert len(set(re.findall(r"host (\S+)", result.stdout))) == 4
    firsts, seeded = zip(*re.findall(r"first (\S+) (\S+)", result.stdout), strict=True)
    assert len(set(firsts)) == 4 and len(set(seeded)) == 1


def test_nodes_of_a_cluster_have_local_ranks_of_their_own(folder):
    body = """
        print(os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"],
              torch.cuda.device_count(), torch.cuda.get_device_name())
        import subprocess
        print(subprocess.check_output(["nvidia-smi", "-L"], text=True))
        """
    words = "--cluster", "2x2xV100", "--timeline", "t.json"
    out = passed(folder, *words, **script(body))
    for r in range(4):
        assert f"[rank {r}] {r % 2} 2 2 NVIDIA V100" in out
        assert f"[rank {r}] GPU 1: NVIDIA V100 SXM2, simulated\n[rank {r}] \n" in out
    assert json.loads((folder / "t.json").read_text())["traceEvents"]


def test_output_of_the_first_rank_or_of_none(folder):
    body = "print('here', flush=True)\nprint('bar', 1, end='\\r')\nprint('end')"
    first = passed(folder, "-n", "2", "--output", "first", **script(body))
    assert first.startswith("[rank 0] here\n[rank 0] end\n\nRun: 2 ranks")
    assert "here" not in passed(folder, "-n", "2", "--output", "none", **script(body))


@pytest.mark.parametrize("world", [(), ("--gloo",)])
def test_a_script_may_leave_its_group_and_join_again(folder, world):
    body = """
        for part in range(3):
            if part:
                dist.init_process_group("gloo")
            pair = dist.new_group([0, 1])
            x = torch.ones(1) * part
            dist.all_reduce(x)
            if rank < 2:
                dist.all_reduce(x, group=pair)
            print(part, x.item(), dist.get_backend())
            dist.destroy_process_group()
        """
    out = passed(folder, "-n", "3", *world, **script(body))
    for line in ("[rank 1] 2 12.0 gloo", "[rank 2] 2 6.0 gloo", "[rank 2] 0 0.0 nccl"):
        assert f"{line}\n" in out


# GPUs are played


def test_a_gpu_is_on_the_host_and_its_clock_is_the_clusters(folder):
    body = """
        x = torch.ones(512, 512, device="cuda").cuda(non_blocking=True)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start = time.perf_counter()
        begin.record()
        for _ in range(100):
            x = (x @ x).to(torch.cuda.current_device()) / 512
        launched = time.perf_counter() - start
        end.record()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        assert launched < took and abs(begin.elapsed_time(end) / 1e3 - took) < 1e-5
        device = torch.device(0)
        assert isinstance(device, torch.device) and device == torch.device("cuda:0")
        copy = x.cpu()
        copy.zero_()
        assert x.sum().item() == 512 * 512 and torch.cuda.is_bf16_supported()
        assert torch.cuda.max_memory_allocated() >= 2 * x.nbytes
        del copy
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == x.nbytes
        time.sleep(3600)
        with torch.autocast("cuda"):
            net = torch.compile(nn.Linear(2, 2)).cuda()
            print(x.dtype, (x @ x).dtype, net.weight.device)
        """
    importlib.import_module("torch._dynamo")  # which replaces `torch.manual_seed`
    holders = torch, torch.cuda, torch.accelerator, torch.distributed, signal
    before = [dict(vars(holder)) for holder in holders]
    out = passed(folder, "-n", "1", "--cluster", "1xA100", **script(body))
    for holder, names in zip(holders, before, strict=True):
        assert all(vars(holder)[name] is value for name, value in names.items())
    assert "[rank 0] torch.float32 torch.float16 cpu" in out
    assert "peak memory: 3.1" in out and "3600 s virtual" in out
    assert "Note: torch.compile is left out" in out


def test_a_gpu_in_a_backward_pass_and_what_it_says_of_itself(folder):
    body = """
        x = torch.ones(512, device="cuda", requires_grad=True)
        x.register_hook(lambda grad: grad + torch.ones(1, device="cuda"))
        x.sum().backward()
        assert x.grad.tolist() == [2.0] * 512
        peak = torch.cuda.max_memory_allocated()
        with torch.device("meta"):  # as large models are made
            later = nn.Linear(4096, 4096)
        assert torch.cuda.max_memory_allocated() == peak > x.nbytes
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == peak
        assert torch.cuda.initial_seed() == torch.initial_seed()
        assert torch.cuda.get_device_properties(0).multi_processor_count == 132
        """
    passed(folder, "-n", "1", "--cluster", "1xH100", **script(body))


def test_a_gpu_that_the_node_lacks_and_one_that_all_take(folder):
    body = "torch.zeros(2, device=f'cuda:{rank}')"
    errors = failed(folder, "--cluster", "2x2xA100", **script(body))
    assert "there is no GPU cuda:2 here: a node has 2" in errors
    result = call(folder, "-n", "3", train="import torch\nx = torch.ones(2).cuda()\n")
    said = "Note: 3 ranks of one node use cuda:0, and its other GPUs are idle"
    assert said in result.stdout


def test_spawn_workers_and_signals_are_mapped(folder):
    body = """
        import signal
        import torch.multiprocessing as mp
        from torch.utils.data import DataLoader, TensorDataset
        def work(rank, word):
            data = TensorDataset(torch.arange(4.0))
            loader = DataLoader(data, 2, num_workers=2, persistent_workers=True)
            print(word, rank, sum(x.sum().item() for (x,) in loader))
        if __name__ == "__main__":
            signal.signal(signal.SIGTERM, lambda *_: None)
            mp.spawn(work, args=("part",), nprocs=torch.cuda.device_count())
            sys.exit(0)
        """
    out = passed(folder, "-n", "2", **script(body))
    assert "[rank 1] part 1 6.0\n" in out
    for sentence in ("A DataLoader with", "signal.signal has no", "mp.spawn starts"):
        assert f"Note: {sentence}" in out
    parts = script(body.replace("torch.cuda.device_count()", "3"))
    assert "give simulate -n 3" in call(folder, "-n", "2", **parts).stderr


def test_processes_that_a_script_would_start_are_the_ranks(folder):
    processes = """
        import os
        import sys
        import torch
        import torch.distributed as dist
        from torch.multiprocessing import Process, set_start_method
        def work(rank, size):
            os.environ["MASTER_PORT"] = "29503"
            dist.init_process_group("gloo", rank=rank, world_size=size)
            x = torch.full((1,), rank + 1.0)
            dist.all_reduce(x)
            print("sum", rank, x.item())
        if __name__ == "__main__":
            set_start_method("spawn")
            started = [Process(target=work, args=(r, 3)) for r in range(3)]
            for process in started:
                process.start()
            for process in started:
                process.join()
        """
    out = passed(folder, "-n", "3", train=processes)
    assert all(f"[rank {r}] sum {r} 6.0\n" in out for r in range(3))
    assert "Note: Process starts nothing: every rank is there" in out
    errors = failed(folder, "-n", "2", train=processes)
    assert "Process starts 3 processes inside simulate, which runs 2" in errors


# Torch's own parallel training

MODEL = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 8, generator=generator)
    return x, x.sum(1, keepdim=True)
"""


def test_ddp_trains_as_one_device_does_and_tells_bytes_and_memory(folder):
    body = """
        from model import Net, data
        net = DDP(Net().to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        x, y = (t[rank::n].to(f"cuda:{rank}") for t in data())
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(net(x), y)).backward()
            scaler.step(optimizer)
        torch.save(net.module.state_dict(), f"out{rank}.pt")
        dist.barrier()
        state = torch.load("out0.pt", map_location={"cuda:0": f"cuda:{rank}"})
        assert torch.equal(state["0.weight"], net.module[0].weight)
        dist.destroy_process_group()
        """
    parts = script(body, model=MODEL)
    out = passed(folder, "--cluster", "4xA100", "--timeline", "t.html", **parts)
    namespace = {}
    exec(MODEL, namespace)
    net, (x, y) = namespace["Net"](), namespace["data"]()
    for _ in range(3):
        net.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        for p in net.parameters():
            p.data -= 0.1 * p.grad
    torch.testing.assert_close(torch.load(folder / "out3.pt"), net.state_dict())
    each = 2 * 3 * sum(p.nbytes for p in net.parameters())  # a ring on four ranks
    line = parts["train"].partition("    scaler.scale(")[0].count("\n") + 1
    for text in (f"all_reduce  train.py:{line}", f"{3 * each:,} B", "peak memory: "):
        assert text in out
    assert re.match("(?s)<!DOCTYPE html>.*mountAll", (folder / "t.html").read_text())


def test_fsdp_on_a_mesh_and_a_pipeline(folder):
    body = """
        import copy
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "stage"))
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()
        x = torch.randn(8, 4, device="cuda")
        stage = mesh["stage"].get_local_rank()
        mine = nn.Sequential(copy.deepcopy(whole[stage]))
        part = fully_shard(mine, mesh=mesh["data"])
        here = PipelineStage(part, stage, 2, torch.device("cuda", rank),
                             group=mesh["stage"].get_group())
        schedule = ScheduleGPipe(here, 4)
        out = schedule.step(x) if stage == 0 else schedule.step()
        if stage == 1:
            torch.testing.assert_close(out, whole(x))
            print("equal", mesh)
        """
    out = passed(folder, "-n", "4", **script(body))
    assert "[rank 3] equal DeviceMesh" in out
    for kind in ("all_gather", "send"):
        assert re.search(rf"{kind} +train.py", out)


# A step, and where ranks drift apart

STEPS = """
    net = nn.Linear(1000, 1000, bias=False)
    optimizer = torch.optim.SGD(net.parameters())
    others = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    time.sleep(1)
    for step in range(6):
        if step % 2:
            others.step()
        net(torch.ones(1, 1000)).sum().backward()
        if (rank, step) != None:
            dist.all_reduce(net.weight.grad)
        if rank == 1 and step == 3:
            time.sleep(0.25)
        optimizer.step()
    """


@pytest.mark.parametrize("world", [(), ("--gloo",)])
def test_a_typical_step_stands_first(folder, world):
    said = passed(folder, "-n", "2", *world, **script(STEPS))
    pattern = r"\na step: (.*) \(median of 5, (.*) to (.*)\); this one began at (.*)\n"
    took, least, most, before = re.search(pattern, said).groups()
    if world:
        assert re.search(rf"train.py:{TOP + 11} waits .*", said)
        return
    # an all-reduce of 4 MB: two messages of 2 MB at 10 GB/s
    assert (took, least, most, before[0]) == ("420 us", "420 us", "250.4 ms", "1")
    for text in (
        "0% computing, 100% exposed communication, 0% waiting",
        "bound by communication, as computing takes no time without --cluster",
        f"  train.py:{TOP + 11} waits 420 us, 100%\n",
        "420 us virtual, collectives by formula",  # the step's timeline
    ):
        assert text in said


def test_reports_in_files_stand_side_by_side(folder):
    first = call(folder, "-n", "2", "--json", "a.json", **script(STEPS))
    kept = json.loads((folder / "a.json").read_text())
    assert (kept["ranks"], kept["error"], kept["gpu_memory"]) == (2, None, None)
    assert kept["step"]["seconds"] == pytest.approx(420e-6)
    assert "a step: 420 us" in first.stdout and "timeline" not in first.stdout
    again = "-n", "2", "--json", "b.json", "--compare", "a.json"
    larger = STEPS.replace("1000", "2000")  # four times the bytes
    second = call(folder, *again, **script(larger))
    row = r"\na step +420 us +1.62 ms +3.86\n"
    assert re.search(row, second.stdout)
    assert re.search(r"\nall_reduce +\d\S+ MB +\d\S+ MB +4.00\n", second.stdout)
    only = command("--compare", "a.json", "b.json")
    assert re.search(row, only.stdout) and only.stdout in second.stdout
    train = "import torch\nfrom datetime import datetime\ndatetime.now()\n1 / 0"
    failed = call(folder, "-n", "1", "--json", "c.json", train=train)
    assert "Note: datetime tells the time of this machine" in failed.stdout
    assert "Note: " not in first.stdout
    assert failed.exit_code == 1
    kept = json.loads((folder / "c.json").read_text())
    assert "ZeroDivisionError" in kept["error"] and kept["step"] is None
    assert "\nthe run " in command("--compare", "c.json", "a.json").stdout


@pytest.mark.parametrize(
    ("words", "old", "new", "bound"),
    [
        ("--cluster 2xH100", "1000", "3000", "the links: a rank sends 36 MB"),
        ("--cluster 2x1xH100", "", "", "the network: a rank sends 4 MB"),
        ("--cluster 2xT4", "ones(1,", "ones(1 << 13,", "computing, on T4"),
        ("--cluster 2x1xV100", "1000", "10", "latency: 1 call with 400 B from a rank"),
        ("-n 4", "and step == 3", "", "waiting for other ranks"),
    ],
)
def test_what_bounds_a_step(folder, words, old, new, bound):
    out = passed(folder, *words.split(), **script(STEPS.replace(old, new)))
    assert f"  bound by {bound}\n" in out and out.count("a step: ") == 1
    if bound.startswith("waiting"):
        assert "25% computing, 0% exposed communication, 75% waiting" in out


@pytest.mark.parametrize("rows", [700, 1 << 13])
def test_the_speed_of_a_step_stands_beside_the_peak(folder, rows):
    body = STEPS.replace("ones(1,", f"ones({rows},")
    result = call(folder, "--cluster", "2xT4", "--json", "a.json", **script(body))
    step = json.loads((folder / "a.json").read_text())["step"]
    rate = 2 * 2 * rows * 1000**2 / step["seconds"]  # forward, and of the weights
    assert step["flop_rate"] == pytest.approx(rate, rel=0.02)
    part = f"{step['flop_rate'] / 1e12:.3g} TFLOP/s with recomputed and masked work"
    part += f", {step['flop_rate'] / 65e12:.0%} of the 65 of such a GPU\n"
    assert f"\n  {part}" in result.stdout
    alike = "computing and exposed communication alike, on T4"
    assert step["bound"] == (alike if rows == 700 else "computing, on T4")


def test_a_report_shows_four_of_many_ranks_and_no_timeline_of_a_failure(folder):
    body = "dist.all_reduce(torch.ones(9))"
    many = call(folder, "-n", "5", **script(body)).stdout
    assert many.count(" compute |") == 4 and "\n... 1 rank not shown ...\n" in many
    failed = call(folder, "-n", "5", **script(body + "\n1 / 0"))
    assert "all_reduce" in failed.stdout and " compute |" not in failed.stdout


def test_the_step_in_which_ranks_drift_apart_is_named(folder):
    errors = failed(folder, "-n", "2", **script(STEPS.replace("None", "(1, 3)")))
    assert "DeadlockError: deadlock: rank 1 has returned" in errors
    told = "Ranks made different calls in step 3. From there on, values of different"
    told += f" steps met.\n  train.py:{TOP + 11} all_reduce: 1 on rank 0, 0 on rank 1"
    assert told in errors
    body = "if rank == 0:\n    dist.barrier()\ndist.all_reduce(torch.ones(1))"
    result = call(folder, "-n", "2", **script(body))
    assert "Ranks made different calls.\n" in result.stderr
    assert f"  train.py:{TOP + 2} barrier: 1 on rank 0, 0 on rank 1" in result.stderr
    assert "a step: " not in result.stdout


# What goes wrong is explained with the script's lines


def test_a_deadlock_and_a_mismatch_name_the_scripts_lines(folder):
    body = """
        x = torch.ones(4, device="cuda")
        dist.recv(x, (rank + 1) % n)
        """
    errors = failed(folder, "-n", "2", **script(body))
    assert "deadlock: ranks 0 and 1 wait for each other" in errors
    code = "dist.recv(x, (rank + 1) % n)"
    assert f"rank 1: recv(src=0), train.py:{TOP + 3}    {code}" in errors
    assert "Traceback" not in errors
    body = "x = torch.ones(4 + rank)\ndist.all_reduce(x)"
    errors = failed(folder, "-n", "2", **script(body))
    assert "MismatchError: rank 1 calls all_reduce(sum) of float32[5]" in errors
    assert f"train.py:{TOP + 2}    dist.all_reduce(x)" in errors


@pytest.mark.parametrize("world", [(), ("--gloo",)])
def test_an_exception_shows_the_scripts_own_traceback(folder, world):
    body = """
        import helper
        torch.cuda.Event().record()
        if rank == 1:
            helper.fail(rank)
        dist.barrier()
        """
    helper = "def fail(rank):\n    raise KeyError('no shard for me')\n"
    parts = script(body, helper=helper)
    trace, _, rest = failed(folder, "-n", "2", *world, **parts).partition("RankError: ")
    assert f'train.py", line {TOP + 5}, in <module>' in trace
    assert "helper.py" in trace and "KeyError: 'no shard for me'" in trace
    assert "d2lpar" not in trace.replace(str(folder), "")
    assert "rank 1 raised KeyError" in rest and "helper.py:2" in rest
    assert "rank 0: barrier" in rest


def test_what_is_not_played_is_said(folder):
    body = "torch.cuda.comm.broadcast(torch.ones(2).cuda(), [0, 1])"
    assert simulate.NOT_PLAYED in failed(folder, "-n", "2", **script(body))
    errors = failed(folder, "-n", "2", train="import sys\nsys.exit(3)\n")
    assert "called sys.exit(3)" in errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere.py"], "The script nowhere.py cannot be read: No such file"),
        (["bad.py"], "bad.py:2 is not Python: "),
        (["-n", "9", "--cluster", "8xA100", "good.py"], "8 ranks, but the run wants 9"),
        (["--cluster", "8xA1", "good.py"], "There is no GPU 'A1'"),
        (["--gloo", "--cluster", "8xA100", "good.py"], "--gloo measures here"),
        (["--timeline", "t.pdf", "good.py"], "writes .png, .html, .json, not t.pdf"),
        (["--timeline", "no/t.png", "good.py"], "There is no folder no for t.png"),
        (["--json", "no/t.json", "good.py"], "There is no folder no for t.json"),
        (["--compare", "good.py", "good.py"], "is no report: simulate --json good.py"),
        (["--compare", "none.json", "good.py"], "none.json cannot be read: No such"),
        (["--timeout", "0", "good.py"], "timeout must be a number of seconds > 0"),
        (["-m", "good.py"], "-m asks for a module, and good.py is none in this folder"),
        (["--own", "slow", "good.py"], "--own and --share take an installed"),
        (["-m", "bad.x"], "-m asks for a module, and bad.x is none in this folder"),
    ],
)
def test_bad_input_gets_a_sentence(folder, words, sentence, capsys, monkeypatch):
    write(folder, good="print(1)\n", bad="x = 1\nx = = 2\n")
    monkeypatch.setattr(sys, "argv", ["d2lpar", "simulate", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pack.train", "pack"])
def test_a_module_by_its_name(folder, name):
    text = "print(__name__, __package__, SEEN, sys.argv[1:])\nSEEN.append(rank)\n"
    main = START + "from .shared import SEEN\n" + text + "dist.barrier()\n"
    write(folder, **{"pack/train": main, "pack/__main__": main})
    write(folder, **{"pack/shared": "SEEN = []\n", "pack/__init__": "print('once')\n"})
    out = command("-n", "2", "-m", name, "--width", "3").stdout
    for rank in range(2):
        assert out.count(f"[rank {rank}] once\n") == 1
        assert f"[rank {rank}] __main__ pack [] ['--width', '3']\n" in out
    path = f"pack/{'__main__' if name == 'pack' else 'train'}.py"
    assert re.search(rf"\nbarrier +{path}:\d+ ", out)
    assert out.count("once") == 2


def test_options_of_torchrun_are_not_taken_for_the_script(folder):
    result = command("--nproc-per-node", "2", "x.py")
    assert result.exit_code == 2
    assert re.search("No such option:? '?--nproc-per-node", result.stderr)


def test_a_page_holds_the_first_part_of_a_long_run(folder, monkeypatch):
    monkeypatch.setattr(simulate.player, "MOST_EVENTS", 20)
    body = "for _ in range(9):\n    dist.all_reduce(torch.ones(9))"
    result = call(folder, "-n", "2", "--timeline", "t.html", **script(body))
    assert re.search(r"timeline: t.html, the first \d+ us\n", result.stdout)
    assert "mountAll" in (folder / "t.html").read_text()


def test_ctrl_c_ends_it_with_a_line_for_every_rank(folder):
    body = "print('ready', flush=True)\nwhile True:\n    dist.barrier()\n"
    write(folder, **script(body))
    words = [sys.executable, "-m", "d2lpar", "simulate", "-n", "2", "train.py"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    how["env"] = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    heard = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(words, cwd=folder, preexec_fn=heard, **how) as process:
        try:
            assert "ready" in process.stdout.readline()
            process.send_signal(signal.SIGINT)  # which a shell may have ignored
            text = process.communicate(timeout=WATCHDOG)[0]
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.search(r"KeyboardInterrupt: interrupted after .*\n  rank 0: ", text)
    assert f"train.py:{TOP + 3}" in text


@pytest.mark.parametrize("words", [["--cluster", "3xA100"], ["--gloo"]])
def test_replicas_that_drift_apart_are_told(folder, words):
    body = """
    net = DDP(nn.Linear(4, 3).cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=FASTER * dist.get_rank() + 1)
    for _ in range(2):
        net(torch.ones(2, 4, device="cuda")).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    alike = call(folder, "-n", "3", *words, **script(body.replace("FASTER", "0")))
    assert alike.exit_code == 0 and "drifted" not in alike.stdout
    apart = call(folder, "-n", "3", *words, **script(body.replace("FASTER", "1")))
    assert "rank 1 has another weight than rank 0" in apart.stdout


def test_flex_attention_and_scaled_sums_are_right(folder):
    body = """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, "cuda")
        x = torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True)
        usual = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        ours = flex_attention(x, x, x, block_mask=mask)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, usual)]
        print(*((a - b).norm().item() < 1e-4 for a, b in ((ours, usual), grads)))
        net = torch.distributed.fsdp.fully_shard(nn.Linear(2, 1, bias=False).cuda())
        net.set_gradient_divide_factor(4.0)
        net(torch.full((1, 2), rank + 1.0).cuda()).sum().backward()
        print(net.weight.grad.full_tensor().tolist())
        """
    out = call(folder, "-n", "2", **script(body)).stdout
    assert "[rank 0] True True" in out and "[rank 1] [[0.75, 0.75]]" in out
    out = call(folder, "-n", "2", "--shapes", **script(body)).stdout
    assert "[rank 0] False False" in out and "[rank 1] [[1.0, 1.0]]" in out
