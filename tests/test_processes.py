"""Ranks that are real processes: what they return, and scripts that start them.

How they fail is in test_causes.py.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import WATCHDOG, completed, eventually, family_of
from d2lpar.launch.journal import BLOCKED, Board
from d2lpar.report.calls import Meta
from d2lpar.report.engine import Waiting
from d2lpar.sim import ship

pytestmark = pytest.mark.timeout(600)


def gloo(fn, *args, world_size=4, **kwargs):
    options = dict(world_size=world_size, backend="gloo", timeout=WATCHDOG)
    return d2lpar.run(fn, *args, **options, **kwargs)


def rank():
    return dist.get_rank()


# What comes back


def test_results_output_and_record(capsys):
    def ring(x):
        n, r = dist.get_world_size(), dist.get_rank()
        print(f"rank {r} of {n}")
        print("a warning", file=sys.stderr)
        incoming = torch.zeros(2)
        sent = dist.isend(x + r, (r + 1) % n)
        dist.recv(incoming, (r - 1) % n)
        sent.wait()
        dist.all_reduce(incoming)
        return incoming

    run = gloo(ring, torch.zeros(2))
    assert [t.tolist() for t in run.results] == [[6, 6]] * 4
    assert run.output.splitlines() == [f"rank {r} of 4" for r in range(4)]
    assert capsys.readouterr() == (run.output, "a warning\n" * 4)
    assert run.clock == "measured" and run.elapsed > 0
    assert run.messages == [1 + 6] * 4
    ends = {}
    for event in run.timeline:
        assert 0 <= event.start <= event.stop
        if event.stream in ("send", "recv"):
            ends.setdefault(event.id, []).append((event.rank, event.peer))
    assert len(ends) == 4 and all(a == b[::-1] for a, b in ends.values())
    assert sum(event.name == "all_reduce" for event in run.timeline) == 4


def test_ranks_know_what_the_caller_knows(tmp_path, monkeypatch):
    (tmp_path / "helper_of_test.py").write_text("value = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("D2LPAR_TEST", "yes")
    monkeypatch.setattr(sys, "argv", ["here", "there"])

    def look():
        import helper_of_test

        return os.environ["D2LPAR_TEST"], os.getcwd(), sys.argv, helper_of_test.value

    for result in gloo(look, world_size=2).results:
        assert result == ("yes", str(tmp_path), ["here", "there"], 42)


def test_distributed_data_parallel_overlaps():
    from torch.nn.parallel import DistributedDataParallel

    def train(hook):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(3)]
        net = torch.nn.Sequential(*layers)
        ddp = DistributedDataParallel(net, bucket_cap_mb=1e-4)
        if hook:
            ddp.register_comm_hook(None, average)
        ddp(torch.full((2, 8), float(rank()), dtype=torch.float64)).sum().backward()
        return [p.grad for p in net.parameters()]

    def average(state, bucket):
        tensor = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(tensor, async_op=True).get_future().then(first)

    def first(future):
        return future.value()[0]

    plain, hooked = gloo(train, False, world_size=2), gloo(train, True, world_size=2)
    for a, b, c in zip(*plain.results, hooked.results[0], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-12)


def test_a_future_and_a_look_at_a_message():
    def look():
        tensor = torch.ones(2)
        if rank() == 0:
            work = dist.irecv(tensor)
            while not work.is_completed():
                pass
            work.wait()
            source = work.source_rank()
            future = dist.all_reduce(tensor, async_op=True).get_future()
            return source, future.wait()[0].tolist()
        dist.send(tensor * 3, 0)
        dist.all_reduce(tensor)

    assert gloo(look, world_size=2).results[0] == (1, [4, 4])


def test_processes_of_ranks_end_with_them():
    def start():
        return subprocess.Popen(["sleep", "60"]).pid

    def running(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    pids = gloo(start, world_size=2).results
    assert eventually(lambda: not any(map(running, pids)))


# Scripts


def environment():
    root = os.path.dirname(os.path.dirname(os.path.abspath(d2lpar.__file__)))
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {k: v for k, v in os.environ.items() if not k.startswith("D2LPAR_")}
    return {**env, "PYTHONPATH": path}


def python(*args, **kwargs):
    return completed([sys.executable, *args], env=environment(), **kwargs)


UNGUARDED = """
import multiprocessing
import torch, torch.distributed as dist
import d2lpar

class Box:
    def __init__(self, value):
        self.value = value

def add(box):
    tensor = torch.tensor(box.value + dist.get_rank())
    dist.all_reduce(tensor)
    print("rank", dist.get_rank())
    return Box(tensor.item())

for _ in range(2):
    run = d2lpar.run(add, Box(1), backend="gloo")
print([box.value for box in run.results])
"""
UNTOUCHED = """
assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("spawn")
assert multiprocessing.active_children() == []
run = d2lpar.run(add, Box(2), world_size=2, backend="gloo")

import sys
def where():
    return {m.__file__ for n, m in sys.modules.items() if n[:6] == "d2lpar"}
files = set.union(*d2lpar.run(where, world_size=2, backend="gloo").results)
print(len(files) > 9, any(file.startswith(sys.argv[1]) for file in files))
"""


def test_a_script_without_a_main_guard_beside_another_copy_of_the_package(tmp_path):
    """The fork server, started in a folder with that copy, finds that one first."""
    drop = shutil.ignore_patterns("__pycache__")
    package = Path(d2lpar.__file__).parent
    shutil.copytree(package, tmp_path / "d2lpar", ignore=drop)
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(UNGUARDED.replace("backend", "world_size=2, backend") + UNTOUCHED)
    done = python(script, tmp_path, cwd=tmp_path)
    lines = "rank 0\nrank 1\n"
    assert done.stderr == ""
    assert done.stdout == lines * 2 + "[3, 3]\n" + lines + "True False\n"


def test_the_same_script_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        UNGUARDED.replace("print([", "print('all %s' % [")
        + "def fail(): 1 / (1 - dist.get_rank()); dist.barrier()\n"
        + "d2lpar.run(fail, backend='gloo')\n"
    )
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", script]
    done = python(*command)
    assert done.stdout.count("all [3, 3]") == 2
    assert done.returncode != 0
    assert "rank 1 raised ZeroDivisionError" in done.stderr
    # of its own rank 0 has nothing to say; it may see that rank 1 is gone
    own = [x for x in done.stderr.splitlines() if "rank 0 raised" in x]
    assert all("Connection" in line for line in own)


INTERRUPTED = """
import os, signal, threading, time
import psutil, torch, torch.distributed as dist
import d2lpar
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it

def waits():
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), 1)
    time.sleep(60)

def works():
    return dist.get_rank()

def interrupt():
    global sent
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

def inventory():
    me = psutil.Process()
    return me.num_fds(), len(me.children(True))

quiet = set()
for delay in (0.5, 0.02, 0.1, 1.0):  # the first while torch is loaded
    threading.Timer(delay, interrupt).start()
    try:
        d2lpar.run(waits, world_size=2, backend="gloo")
    except KeyboardInterrupt:
        print("interrupted" if time.monotonic() - sent < 60 else "late")
    time.sleep(0.1)
    assert inventory()[1] <= 2, inventory()  # resource tracker, perhaps fork server
    print(d2lpar.run(works, world_size=2, backend="gloo").results)
    quiet.add(inventory())
assert len(quiet) == 1, quiet
print("ready", flush=True)
d2lpar.run(waits, world_size=2, backend="gloo")
"""


def test_a_script_from_standard_input_is_interrupted_and_killed():
    command, pipe = [sys.executable, "-"], subprocess.PIPE
    options = dict(env=environment(), stdin=pipe, stdout=pipe, text=True)
    with subprocess.Popen(command, **options) as child:
        child.stdin.write(INTERRUPTED)
        child.stdin.close()
        lines = [child.stdout.readline() for _ in range(9)]
        assert lines == ["interrupted\n", "[0, 1]\n"] * 4 + ["ready\n"]
        family = family_of(child.pid, 4)
        child.kill()
        gone, alive = psutil.wait_procs(family, timeout=WATCHDOG)
    assert len(gone) >= 4 and not alive


# Parts


def described(text, id=5):
    """What the journal is told of a call."""
    return id, (text, (text, 3), "recv", text, (0, 1), 0, 0, 0, "recv of float32[1]")


def test_the_journal_reads_what_was_written():
    board = Board(2)
    try:
        journal = board.ranks[1]
        assert journal.status().state == "starting"
        journal.set_state("running")
        call = described("recv(src=0)")
        journal.write([call], ("file", 3))
        assert journal.status().call is None
        assert journal.status().open == [Waiting(*call[1])]
        journal.words[BLOCKED] = 5
        status = journal.status()
        assert (status.rank, status.state) == (1, "blocked")
        assert (status.call, status.where) == (Waiting(*call[1]), ("file", 3))
        key, meta = ("c", "0", (0, 1), 1), Meta("barrier", "", None, (), ())
        journal.sign(key, meta, ("file", 4))
        assert journal.signature(key)[:2] == (meta, ("file", 4))
        assert journal.signature(("c", "0", (0, 1), 2)) is None
        assert board.ranks[0].signature(key) is None
    finally:
        board.close()


def test_a_torn_record_is_never_read():
    board = Board(1)
    journal, ended = board.ranks[0], threading.Event()

    def write():
        for i in range(3000):
            journal.write([described(str(i) * (i % 50 + 1), i + 1)], ("file", i))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not ended.is_set():
        for call in journal.status().open:
            assert call.text == call.where[0] == call.group
    writer.join()
    board.close()


# A group of Gloo in a run on NCCL, which has no receive from any source


def takes_any():
    """The run calls itself one on NCCL for as long as no message needs a GPU."""
    from d2lpar.sim.torch_private import current_engine

    engine, r = current_engine(), dist.get_rank()
    engine.backend = "nccl"
    try:
        group = dist.new_group(backend="gloo")
        usual = engine.real(group)
        if r > 0:
            dist.send(torch.full((1,), float(r)), 0, group=group)
            return type(usual).__name__, None
        came = torch.zeros(3)
        sources = [dist.recv(came[i : i + 1], group=group) for i in range(3)]
        return type(usual).__name__, sorted(zip(sources, came.tolist(), strict=True))
    finally:
        engine.backend = "gloo"


def test_a_group_of_gloo_beside_nccl():
    run = gloo(takes_any)
    assert {kind for kind, _ in run.results} == {"ProcessGroupGloo"}
    assert run.results[0][1] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert run.messages == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("new_tensors", "arrives"), [("cuda:1", "cuda:1"), ("cpu", "cpu"), ("meta", "cpu")]
)
def test_memory_arrives_on_the_gpu_of_the_rank(monkeypatch, new_tensors, arrives):
    """What a cell has made on the CPU meets what the rank makes on its GPU."""
    there = torch.device(new_tensors)
    monkeypatch.setattr(torch, "get_default_device", lambda: there)
    assert ship._home() == torch.device(arrives)


# surroundings in which no process can be a rank


def test_a_daemonic_process_gets_one_sentence(monkeypatch):
    """It may have no children: multiprocessing looks at the same mark."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert d2lpar.run(rank, world_size=2, backend="sim").results == [0, 1]
    with pytest.raises(RuntimeError, match="started from a daemonic process") as caught:
        gloo(rank, world_size=2)
    assert "\n" not in str(caught.value)


@pytest.mark.night
def test_no_loopback_device_gets_one_sentence():
    program = (
        "import d2lpar, torch.distributed as dist\n"
        "for world in ('sim', 'gloo'):\n"
        "    try: print(d2lpar.run(dist.get_rank, backend=world).results)\n"
        "    except RuntimeError as error: print(error)\n"
    )
    apart = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"]).returncode:
        pytest.skip("no network of its own can be made here")
    said = subprocess.check_output([*apart, sys.executable, "-c", program], text=True)
    first, second = said.splitlines()
    assert first == "[0, 1, 2, 3]"
    assert second.startswith("ranks that are processes meet at 127.0.0.1, which cannot")
