"""Broken programs end soon, name the culprit and its line, and leave nothing."""

import contextlib
import ctypes
import datetime
import inspect
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import WATCHDOG, inventory
from d2lpar import DeadlockError, MismatchError, RankError
from d2lpar.launch import limits
from d2lpar.report import engine
from d2lpar.sim import patience
from d2lpar.sim.pipes import OUTPUT_LIMIT

TIMEOUT = 1.5  # seconds until a run counts as stuck
BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])
EACH, SIM, GLOO = ["sim", "gloo"], ["sim"], ["gloo"]  # backends of a broken program


def healthy():
    x = torch.ones(3)
    dist.all_reduce(x)
    return x.sum().item()


def all_is_well(n=2, backend="sim"):
    run = d2lpar.run(healthy, world_size=n, backend=backend)
    assert run.results == [3.0 * n] * n and not run.warnings


@pytest.fixture(scope="module", autouse=True)
def ready():
    """What is made once, by the first run of a kind, is there."""
    for backend in EACH:
        all_is_well(backend=backend)


def fails(fn, *args, n=3, backend="sim"):
    """The error of a broken program, after checking what every failure must be."""
    before, start = inventory(), time.monotonic()
    with pytest.raises(RankError) as caught:
        d2lpar.run(fn, *args, world_size=n, backend=backend, timeout=TIMEOUT)
    assert time.monotonic() - start < TIMEOUT + WATCHDOG
    assert inventory() == before
    all_is_well(n, backend)
    error = caught.value
    assert error.run.world_size == n and "d2lpar/launch" not in str(error)
    return error


def names(error, *texts):
    """All the texts stand in the message."""
    for text in texts:
        assert text in str(error), f"{text!r} is missing in:\n{error}"


def lines_of(fn, mark="culprit"):
    """`file:line` of the lines of `fn` that have the mark, as messages show them."""
    lines, first = inspect.getsourcelines(fn)
    marked = re.compile(f"# .*\\b{mark}\\b").search
    return tuple(f"test_causes.py:{i}" for i, x in enumerate(lines, first) if marked(x))


# The broken programs.  The word behind a line is the mistake that is made there.


def alone(how):
    """Rank 1 has a way of its own; the others wait."""
    if dist.get_rank() == 1:
        if how == "raises":
            return 1 / 0  # raises
        if how == "network":
            raise dist.DistNetworkError("my own words")  # network
        if how in (0, 3):
            sys.exit(how)  # 0 3
        if how == "input":
            input()  # input
        if how == "_exit":
            os._exit(7)  # _exit
        if how == "SIGSEGV":
            ctypes.string_at(0)  # SIGSEGV
        if how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, how))  # SIGKILL SIGABRT
        while how == "loop":  # loop
            pass  # loop
    dist.all_reduce(torch.ones(1000))


def polls(pause):
    if dist.get_rank() == 1:
        work = dist.irecv(torch.ones(1), 0)
        while not work.is_completed():  # 0 0.001
            if pause:
                d2lpar.sleep(pause)  # 0.001


def goes_on(way):
    while dist.get_rank() == 1:  # sleeps talks
        if way == "sleeps":
            d2lpar.sleep(1e-9)  # sleeps
        elif way == "talks":
            print("still here")  # talks
            time.sleep(0.05)  # talks
        elif way == "text":
            print("x" * 1_000_000)  # text
        elif way == "characters":
            print("x" * 200, end="")  # characters
        elif way == "bytes":
            sys.stdout.buffer.write(b"x" * 1_000_000)  # bytes
        else:
            print("x" * 1_000_000, file=sys.stderr)  # errors


def returns_a_lock():  # culprit
    return threading.Lock() if dist.get_rank() == 1 else None


def runs_inside():
    d2lpar.run(healthy, world_size=2)  # culprit


def cycle(first):
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(5_000_000)
    if first == "send":
        dist.send(x, (r + 1) % n)  # send
    dist.recv(x, (r - 1) % n)  # recv
    dist.send(x, (r + 1) % n)


def messages(how, count=4, dtype=torch.float32, pause=0):
    r, x = dist.get_rank(), torch.ones(4)
    if how == "misses":
        x = torch.ones(count)
        if r < 2:
            [dist.send, dist.recv][r](x, [2, 0][r])  # misses
    elif how == "nobody" and r == 0:
        dist.send(x, 7)  # nobody
    elif how == "early" and r == 0:
        dist.recv(x, 1)  # early
    elif how == "in vain" and r == 0:
        work = dist.irecv(x, 1)  # in vain
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(datetime.timedelta(seconds=0.1))  # in vain
    elif how == "other":
        time.sleep([pause, 0.1 - pause, 0][r])
        if r == 0:
            dist.send(x, 1)
        elif r == 1:
            dist.recv(torch.ones(count, dtype=dtype), 0)  # other


def collectives(how, count=4, dtype=torch.float32, op=dist.ReduceOp.SUM):
    x, other = torch.ones(4), dist.get_rank() == 1
    if how == "skips" and not other:
        dist.all_reduce(x)  # skips
    elif how == "one of two":
        if not other:
            dist.all_reduce(x)
        dist.barrier()  # one of two
    elif how == "group" and not other:
        dist.new_group([0, 1])  # group
    elif how == "order":
        first, second = (dist.broadcast, dist.all_reduce)[:: 1 if other else -1]
        first(x, *[0] * other)  # order
        second(x, *[0] * (not other))
    elif how == "differs" and other:
        dist.all_reduce(torch.ones(count, dtype=dtype), op)  # differs
    elif how == "differs":
        dist.all_reduce(x)


F, INT, MAX = torch.float32, torch.int32, dist.ReduceOp.MAX
R, D, M = RankError, DeadlockError, MismatchError
ASKS = (
    "no progress |: rank 1 asks again and again whether recv(src=0) is_completed() at |"
    "Call wait() instead|rank 0: returned|rank 1: polls recv(src=0), "
)
# (program, arguments, backends, kind of error, culprit, what the message says)
BROKEN = [
    (alone, ["raises"], EACH, R, 1, "raised ZeroDivisionError: division by zero at "),
    (alone, ["network"], EACH, R, 1, "raised DistNetworkError: my own words at "),
    *[(alone, [k], EACH, R, 1, f"rank 1 called sys.exit({k})") for k in (3, 0)],
    (alone, ["input"], GLOO, R, 1, "cannot read input"),
    (alone, ["_exit"], GLOO, R, 1, "rank 1 died with exit code 7"),
    *[(alone, [name], GLOO, R, 1, f"rank 1 died by {name}")
      for name in ("SIGKILL", "SIGABRT", "SIGSEGV")],
    (alone, ["loop"], EACH, R, 1, f"no progress for {TIMEOUT:g} s: rank 1 |"
     "endless loop"),
    *[(polls, [pause], EACH, R, 1, ASKS) for pause in (0, 1e-3)],
    (goes_on, ["sleeps"], SIM, R, 1, "no progress in 1,000 sleeps: rank 1"),
    (goes_on, ["talks"], EACH, R, 1, f"nothing but prints for {TIMEOUT:g} s: rank 1 "
     "prints| bytes so far at |End its loop"),
    (returns_a_lock, [], EACH, R, 1, "cannot be copied|_thread.lock"),
    (runs_inside, [], EACH, R, 0, "inside run"),
    (cycle, ["send"], EACH, D, 0, "rank 0 -> rank 1 -> rank 2 -> rank 0|send first|"
     "rank 0: send(dst=1)|rank 1: send(dst=2)|rank 2: send(dst=0)"),
    (cycle, ["recv"], EACH, D, 0, "rank 0 -> rank 2 -> rank 1 -> rank 0|receive first|"
     "rank 0: recv(src=2)|rank 1: recv(src=0)|rank 2: recv(src=1)"),
    (messages, ["early"], EACH, D, 1, "rank 1: returned|rank 0: recv(src=1)"),
    (messages, ["misses", 2_000_000], EACH, D, 2, "rank 0: send(dst=2)|"
     "rank 1: recv(src=0)"),
    (messages, ["misses", 2], GLOO, D, None, "rank 1: recv(src=0)"),
    (messages, ["nobody"], EACH, R, 0, "rank 0 raised |7"),
    (messages, ["in vain"], GLOO, R, None, "rank 0: |recv(src=1)|rank 1: returned"),
    (messages, ["other", 5, F], EACH, M, 1, "float32[4]|float32[5]|rank 0: |rank 1: "),
    (messages, ["other", 2, F, 0.1], EACH, M, 1, "float32[4]|float32[2]"),
    (messages, ["other", 4, INT], EACH, M, 1, "float32[4]|int32[4]"),
    (collectives, ["skips"], EACH, D, 1, "rank 1: returned|rank 0: all_reduce"),
    (collectives, ["group"], GLOO, D, 1, "rank 1: returned|rank 0: new_group"),
    (collectives, ["one of two"], EACH, M, 1, "rank 1 calls barrier|calls all_reduce"),
    (collectives, ["order"], EACH, M, 1, "rank 1 calls broadcast|calls all_reduce"),
    (collectives, ["differs", 3], EACH, M, 1, "float32[3]|float32[4]"),
    (collectives, ["differs", 4, INT], EACH, M, 1, "int32[4]|float32[4]"),
    (collectives, ["differs", 4, F, MAX], EACH, M, 1, "max|sum"),
]  # fmt: skip
CASES = [(row[0], row[1], backend, *row[3:]) for row in BROKEN for backend in row[2]]


@pytest.mark.parametrize(
    "fn, args, backend, kind, culprit, says",
    [pytest.param(*c, id=f"{c[0].__name__}-{c[1]}-{c[2]}") for c in CASES],
)
def test_a_broken_program_names_its_culprit(
    fn, args, backend, kind, culprit, says, monkeypatch
):
    if fn is goes_on:
        monkeypatch.setattr(patience, "NAPS", 1000)
        monkeypatch.setattr(patience, "TALK", 1)
    error = fails(fn, *args, backend=backend)
    assert isinstance(error, kind)
    names(error, *says.split("|"), "rank 1: ")
    assert error.rank == culprit or culprit is None
    lines = lines_of(fn, args[0] if args else "culprit")
    assert any(line in str(error) for line in lines)
    if error.line is not None:
        assert error.line.endswith(lines)
    else:  # what has returned is at no line
        assert f"rank {error.rank}: returned" in str(error)
    if raised := re.search(r"raised (\w+)", str(error)):
        assert type(error.__cause__).__name__ == raised[1]
    if fn is polls:
        assert error.call == "recv(src=0)"


class Refusal(Exception):
    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code = code


def raises_much(kind):
    if dist.get_rank() == 1:
        try:
            raise Refusal(3, "k" * 3_000_000)
        except Refusal as refusal:
            if kind == "own":
                raise
            raise ValueError("the head" + "x" * 10_000_000 + "the tail") from refusal
    dist.barrier()


@BOTH
def test_an_exception_of_the_users_own_comes_back_and_is_cut_where_it_is_long(backend):
    error = fails(raises_much, "own", backend=backend)
    assert error.__cause__.code == error.__cause__.args[0] == 3
    assert type(error.__cause__).__name__ == "Refusal"
    error = fails(raises_much, "long", backend=backend)
    names(error, "ValueError: the headxxx", "xxxthe tail at ", "9,998,516 characters")
    cause = error.__cause__
    for text in (str(error), str(cause), str(cause.__cause__)):
        assert len(text) < 5000
    assert cause.__cause__ is None or cause.__cause__.args[0] == 3


@BOTH
def test_looks_that_end_are_allowed(backend):
    def gives_up():
        if dist.get_rank() == 1:
            dist.barrier()
            return dist.send(torch.ones(1), 0)
        work, looks = dist.irecv(torch.ones(1), 1), 0
        while not work.is_completed():
            looks += 1
            if looks == 100:
                dist.barrier()
        return looks

    run = d2lpar.run(gives_up, world_size=2, backend=backend, timeout=20.0)
    assert run.results[0] >= 100


# prints


def speaks(ends, noise, end):
    r = dist.get_rank()
    print("text", r)
    print("a warning", file=sys.stderr)
    sys.stdout.buffer.write("bytes \u00e9\n".encode())
    sys.stdout.writelines(["lines\n"])
    print("more", end=" ")
    print("text", r, end=end)
    if noise:
        os.write(2, b"noise of C code")
    dist.barrier()
    if r == 1 and ends == "raises":
        raise KeyError("missing")
    if r == 1 and ends == "dies":
        os._exit(0)
    dist.barrier()


@pytest.mark.parametrize("live", ["0", "1"])
@pytest.mark.parametrize(
    "backend, ends",
    [(b, e) for b in EACH for e in ("well", "raises")] + [("gloo", "dies")],
)
def test_prints_are_kept_in_the_order_of_the_ranks(
    backend, ends, live, monkeypatch, capfd
):
    monkeypatch.setenv("D2LPAR_LIVE", live)
    end = "\n" if live == "1" else ""  # a line that is kept ends with the rank
    program = speaks, ends, backend == "gloo", end
    if ends == "well":
        run = d2lpar.run(*program, world_size=3, backend=backend)
    else:
        error = fails(*program, backend=backend)
        run = error.run
        assert ("rank 1 wrote: noise of C code" in str(error)) == (ends == "dies")
    out, err = capfd.readouterr()
    text = "text {0}\nbytes é\nlines\nmore text {0}\n"
    assert run.output == "".join(text.format(r) for r in range(3))
    assert out == run.output or live == "1"
    assert err == "a warning\n" * 3
    for r in range(3):
        assert out.count(f"text {r}\n") == 2 and out.count(f"more text {r}\n") == 1


@BOTH
@pytest.mark.parametrize(
    "way, live",
    [(way, "0") for way in ("text", "characters", "bytes", "errors")]
    + [("characters", "1")],
)
def test_endless_prints(backend, way, live, monkeypatch, capsys):
    monkeypatch.setenv("D2LPAR_LIVE", live)
    error = fails(goes_on, way, backend=backend)
    out, err = capsys.readouterr()
    names(error, "rank 1 has printed 3", "MB at ", "may print 32.0 MB together")
    names(error, *lines_of(goes_on, way), "rank 0: returned")
    assert error.rank == 1 and len(err) <= OUTPUT_LIMIT
    low, high = OUTPUT_LIMIT * 0.9, OUTPUT_LIMIT + 1
    assert way == "errors" or low < len(error.run.output) <= high
    if live == "1":
        assert low < len(out) <= high
    elif way != "errors":
        assert 20_000 <= len(out) < 30_000  # its two ends
        assert "characters are only in the error's .run.output" in out


# what ranks leave of the process in which they are threads


def collate(items):
    if 5 in items:
        raise ValueError("no item 5")
    return items


def starts(how, fails):
    fork = multiprocessing.get_context("fork")
    if how == "Popen":
        shell = "sleep 1000 & sleep 1001"
        subprocess.Popen(shell, shell=True, stdout=subprocess.PIPE)
    elif how == "thread":
        thread = threading.Thread(target=subprocess.Popen, args=[["sleep", "1000"]])
        thread.start()
        thread.join()
    elif how == "Process":
        fork.Process(target=time.sleep, args=[1000]).start()
    elif how == "Pool":
        globals()["pool"] = fork.Pool(2)
    elif how == "held pool":  # nobody lets go of it
        vars(dist).setdefault("pools", []).append(fork.Pool(2))
    else:
        two = {"num_workers": 2, "batch_size": 2, "multiprocessing_context": "fork"}
        for _ in torch.utils.data.DataLoader(range(8), collate_fn=collate, **two):
            if how == "around":
                raise RuntimeError("between two batches")
    dist.barrier()
    if fails and dist.get_rank() == 1:
        raise RuntimeError("after a start")
    return how


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
@pytest.mark.filterwarnings("ignore:This DataLoader")
@pytest.mark.parametrize(
    "how", ["Popen", "thread", "Process", "Pool", "held pool", "around", "in a worker"]
)
def test_processes_of_ranks_end_with_the_run(how):
    start = subprocess.Popen.__init__, threading.Thread.start
    with subprocess.Popen(["sleep", "1000"]) as ours, contextlib.ExitStack() as stack:
        stack.callback(ours.kill)
        stack.callback(vars(dist).pop, "pools", None)
        before = inventory()
        with pytest.raises(RankError) as caught:
            d2lpar.run(starts, how, True, world_size=2, backend="sim")
        assert inventory() == before  # while the error is there, as in a notebook
        assert str(caught.value) and ours.poll() is None
        if how not in ("around", "in a worker"):
            run = d2lpar.run(starts, how, False, world_size=2, backend="sim")
            assert run.results == [how] * 2
            assert inventory() == before
    assert (subprocess.Popen.__init__, threading.Thread.start) == start
    all_is_well()


def test_what_the_kernel_starts_meanwhile_goes_on(tmp_path):
    flag, started = tmp_path / "started", []

    def waits_for_the_kernel():
        while not flag.exists():
            time.sleep(0.01)

    def start():
        started.append(subprocess.Popen(["sleep", "1000"]))
        flag.touch()

    timer = threading.Timer(0.3, start)
    timer.start()
    d2lpar.run(waits_for_the_kernel, world_size=2, backend="sim")
    timer.join()
    with started[0] as child:
        assert child.poll() is None
        child.kill()


@BOTH
@pytest.mark.parametrize("go_there", [True, False])
def test_a_deleted_working_directory(backend, go_there, tmp_path, monkeypatch):
    def deletes_its_folder():
        if dist.get_rank() == 0:
            if go_there:
                os.chdir(folder)
            os.rmdir(folder)
        dist.barrier()

    folder = tmp_path / "for a while"
    folder.mkdir()
    monkeypatch.chdir(tmp_path if go_there else folder)
    run = d2lpar.run(deletes_its_folder, world_size=2, backend=backend)
    all_is_well(backend=backend)
    names(fails(alone, "raises", backend=backend), *lines_of(alone, "raises"))
    if go_there:
        assert os.getcwd() == str(tmp_path) and not run.warnings
    elif backend == "sim":
        [sentence] = run.warnings
        assert sentence.startswith(f"A rank deleted the working directory, {folder}")


def patches(name):
    dist.barrier()
    if dist.get_rank() == 0:
        if name == "distributed.all_reduce":
            dist.all_reduce = dist.distributed_c10d.all_reduce = patches
        elif name == "Tensor.sum":
            torch.Tensor.sum = None
        else:
            del dist.init_process_group
    dist.barrier()


@BOTH
@pytest.mark.parametrize(
    "name",
    ["distributed.all_reduce", "Tensor.sum", "distributed.init_process_group"],
)
def test_what_a_rank_replaces_in_torch_is_put_back(backend, name):
    before = dist.all_reduce, torch.Tensor.sum, dist.init_process_group
    run = d2lpar.run(patches, name, world_size=2, backend=backend)
    assert (dist.all_reduce, torch.Tensor.sum, dist.init_process_group) == before
    all_is_well(backend=backend)
    if backend == "sim":
        [sentence] = run.warnings
        assert sentence.startswith(f"A rank replaced torch.{name}")


@BOTH
def test_something_that_cannot_be_copied(backend):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be copied.*lock"):
        d2lpar.run(lambda: lock, backend=backend)
    with pytest.raises(TypeError, match="cannot be copied"):
        d2lpar.run(print, (i for i in range(3)), backend=backend)


@pytest.mark.parametrize(
    "options, kind, words",
    [
        (dict(world_size=0), ValueError, "at least 1 rank, not 0"),
        (dict(world_size=-1), ValueError, "at least 1 rank, not -1"),
        (dict(world_size=2.5), TypeError, "whole number of ranks, not 2.5"),
        (dict(world_size=True), TypeError, "whole number"),
        (dict(backend="mpi"), ValueError, "sim, gloo, nccl, auto, not 'mpi'"),
        (dict(cluster="8xH9000"), ValueError, "H9000"),
        (dict(cluster=3), TypeError, "must be a Cluster"),
        (dict(cluster="2xT4", world_size=4), ValueError, "4"),
        (dict(timeout=0), ValueError, "timeout"),
        (dict(seed=-1), ValueError, "seed"),
        (dict(backend="nccl", world_size=4096), RuntimeError, 'use backend="auto"'),
        (dict(device="nonsense"), ValueError, "nonsense"),
        (dict(device="meta", backend="gloo"), ValueError, "meta"),
    ],
)
def test_bad_arguments_get_one_sentence(options, kind, words):
    with pytest.raises(kind) as caught:
        d2lpar.run(healthy, **options)
    assert words in str(caught.value)
    assert not isinstance(caught.value, RankError) and "\n" not in str(caught.value)


def takes(timeout=1, seed=0, world_size=7, cluster="y"):
    return timeout


def test_a_keyword_of_both_is_not_swallowed():
    for given in ({"timeout": 5}, {"seed": 3}, {"world_size": 2}, {"cluster": "2xT4"}):
        said = f"`{[*given][0]}` is a keyword of run and of takes"
        with pytest.raises(TypeError, match=said):
            d2lpar.run(takes, **given)
    assert d2lpar.run(takes, 3, 0, 7, "y", world_size=1).results == [3]
    with pytest.raises(TypeError, match="needs a function"):
        d2lpar.run(3)
    with pytest.raises(TypeError, match="healthy cannot be called so"):
        d2lpar.run(healthy, 1)


def test_what_is_installed_is_not_the_users():
    installed = torch.__file__, d2lpar.__file__, os.__file__, "<frozen importlib._x>"
    elsewhere = "/venv/lib/python3.13/site-packages/filelock/_api.py"
    colab = "/usr/local/lib/python3.12/dist-packages/numpy/linalg.py"
    assert not any(map(engine.is_users, [*installed, elsewhere, colab]))
    assert engine.is_users("/home/ada/train.py")


# messages without their other end


def loses_messages(boxes, any_source):
    r = dist.get_rank()
    if r == 0:
        for _ in range(3):
            dist.isend(torch.ones(2), 1, tag=4)  # sent
    if r == 1:
        boxes.append(dist.irecv(torch.ones(2), 0))  # received
    if any_source:
        if r == 0:
            dist.isend(torch.ones(2), 2)
        if r == 2:
            boxes.append(dist.irecv(torch.ones(2)))
            boxes.append(dist.irecv(torch.ones(2), tag=9))  # any
    dist.barrier()


@BOTH
def test_messages_without_their_other_end_are_named(backend):
    any_source = backend == "sim"
    run = d2lpar.run(loses_messages, [], any_source, world_size=3, backend=backend)
    at = lambda text: "at tests/" + lines_of(loses_messages, text)[0]
    wanted = [
        f"Rank 0 sends to rank 1 {at('sent')} (3 times), but rank 1 never receives "
        "the message.",
        f"Rank 1 receives from rank 0 {at('received')}, but rank 0 never sends a "
        "message for it.",
        f"Rank 2 receives from any rank {at('any')}, but no rank sends a message for "
        "it.",
    ]
    found = [text.replace(os.getcwd() + os.sep, "") for text in run.warnings]
    assert found == wanted[: 2 + any_source]


def test_many_lost_messages_are_few_sentences():
    def many_lost():
        if dist.get_rank() == 0:
            for r in range(1, dist.get_world_size()):
                dist.isend(torch.ones(1), r)

    warnings = d2lpar.run(many_lost, world_size=30, backend="sim").warnings
    assert len(warnings) == 9 and warnings[-1] == "There are 21 more such calls."
    all_is_well(30)


@pytest.fixture
def slow_module(tmp_path, monkeypatch):
    """A module whose import takes longer than the runs below may be quiet."""
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nfor _ in range(30):\n    time.sleep(0.1)\nvalue = 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("slow_to_import", None)


def imports_slowly():
    if dist.get_rank() == 1:
        import slow_to_import

        return slow_to_import.value


def test_a_rank_that_imports_is_not_stuck(slow_module):
    run = d2lpar.run(imports_slowly, world_size=2, backend="sim", timeout=0.5)
    assert run.results == [None, 7]


def test_a_thread_that_starts_runs_without_end_is_ended_between_two_of_them():
    def runs_on_and_on():
        with contextlib.suppress(limits.TimeUp):
            while True:
                with contextlib.suppress(Exception):
                    d2lpar.run(dist.get_rank, world_size=2, backend="sim")

    for _ in range(20):
        thread = threading.Thread(target=runs_on_and_on, daemon=True)
        thread.start()
        thread.join(0.05)
        limits.end_thread(thread, WATCHDOG)
        assert not thread.is_alive()
        assert d2lpar.run(dist.get_rank, world_size=2, backend="sim").results == [0, 1]


def test_an_import_is_not_cut_in_two_where_the_time_is_over(slow_module):
    with limits.time_limit(0.5), pytest.raises(RankError, match="not at an end"):
        d2lpar.run(imports_slowly, world_size=2, backend="sim")
    assert sys.modules["slow_to_import"].value == 7


def test_waiting_for_a_processor_is_no_standing_still(monkeypatch):
    """Beside busy programs a rank gets less of a second; only its share counts."""
    seconds, delays = [0.0], {7: 0.0, 8: 0.0}
    monkeypatch.setattr(patience.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(patience, "processor_delay", delays.get)
    waits = patience.Patience(10.0)
    for _ in range(9):  # ten times as slow as alone
        seconds[0] += 10.0
        delays |= {7: delays[7] + 9.0, 8: delays[8] + 1.0}
        assert waits.over(1, 0, tasks=[7, 8]) is None
    seconds[0] += 3.0
    assert waits.over(1, 0, tasks=[7, 8]) == "no progress for 10 s"
    assert waits.over(2, 0, tasks=[8]) is None
    seconds[0] += 11.0  # nobody keeps it from a processor
    assert waits.over(2, 0, tasks=[8]) == "no progress for 10 s"


def test_after_an_import_there_is_time_for_the_next_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    waits = patience.Patience(1.0)
    for second, imports, says in [(1, True, None), (3, True, None), (3.9, False, None),
                                  (4.1, False, "no progress for 1 s")]:  # fmt: skip
        now[0] = second
        assert waits.over(0, 0, importing=lambda: imports) == says  # noqa: B023


def test_the_delay_of_a_thread_is_read():
    assert patience.processor_delay(threading.get_native_id()) >= 0.0
    assert patience.processor_delay(0) == 0.0  # there is none
