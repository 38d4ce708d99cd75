"""Broken programs end soon, name the culprit and its line, and leave nothing."""

import contextlib
import datetime
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist

import d2lpar
from conftest import WATCHDOG
from d2lpar import DeadlockError, MismatchError, RankError
from d2lpar.launch import limits
from d2lpar.report import engine
from d2lpar.sim import patience
from d2lpar.sim.pipes import OUTPUT_LIMIT

TIMEOUT = 5.0  # seconds until a run counts as stuck
BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])


def healthy():
    x = torch.ones(3)
    dist.all_reduce(x)
    return x.sum().item()


def processes():
    """Child processes of this one, but for the server that starts ranks."""
    me = psutil.Process()
    return sum(len(child.children(recursive=True)) for child in me.children())


def fails(fn, *args, n=3, backend="sim", **options):
    """The error of a broken program, after checking what every failure must be."""
    d2lpar.run(healthy, world_size=2, backend=backend)
    before = processes(), threading.active_count(), psutil.Process().num_fds()
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        d2lpar.run(fn, *args, world_size=n, backend=backend, timeout=TIMEOUT, **options)
    assert time.monotonic() - start < TIMEOUT + WATCHDOG
    error = caught.value
    again = d2lpar.run(healthy, world_size=n, backend=backend)
    assert again.results == [3.0 * n] * n
    after = processes(), threading.active_count(), psutil.Process().num_fds()
    assert after == before
    assert error.run.world_size == n
    return error


@pytest.mark.parametrize(
    "name",
    [
        "/venv/lib/python3.13/site-packages/filelock/_api.py",
        "/usr/local/lib/python3.12/dist-packages/numpy/linalg.py",  # Colab
        torch.__file__,
        d2lpar.__file__,
        os.__file__,
        "<frozen importlib._bootstrap>",
    ],
)
def test_what_is_installed_is_not_the_users(name):
    assert not engine.is_users(name)
    assert engine.is_users("/home/ada/train.py")


def names(error, *texts):
    """All the texts stand in the message."""
    for text in texts:
        assert text in str(error), f"{text!r} is missing in:\n{error}"


def line_of(fn, text):
    """`file:line` of the line of `fn` that contains `text`, as messages show it."""
    import inspect

    lines, first = inspect.getsourcelines(fn)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"test_causes.py:{first + number}"


# exceptions


def divide():
    if dist.get_rank() == 1:
        return 1 / 0
    x = torch.ones(2)
    dist.all_reduce(x)
    return x


@BOTH
def test_exception_while_others_wait(backend):
    error = fails(divide, backend=backend)
    names(error, "rank 1", "ZeroDivisionError: division by zero")
    names(error, line_of(divide, "1 / 0"))
    assert error.rank == 1 and error.line.endswith(line_of(divide, "1 / 0"))
    assert isinstance(error.__cause__, ZeroDivisionError)


def leave():
    if dist.get_rank() == 1:
        sys.exit(3)
    dist.barrier()


@BOTH
def test_sys_exit(backend):
    names(fails(leave, backend=backend), "rank 1", "sys.exit(3)")


def prints_then_fails():
    print("before", dist.get_rank())
    dist.barrier()
    if dist.get_rank() == 2:
        raise KeyError("missing")


@BOTH
def test_what_was_printed_before_is_kept(backend, capsys):
    error = fails(prints_then_fails, backend=backend)
    assert "before 2\n" in error.run.output
    assert "before 0\n" in capsys.readouterr().out
    names(error, "rank 2", "KeyError")


# deadlocks


def receive_first():
    other = 1 - dist.get_rank()
    x = torch.ones(100_000)
    dist.recv(x, other)
    dist.send(x, other)


@BOTH
def test_receives_that_face_each_other(backend):
    error = fails(receive_first, n=2, backend=backend)
    assert isinstance(error, DeadlockError)
    names(error, "rank 0: recv(src=1)", "rank 1: recv(src=0)")
    names(error, line_of(receive_first, "dist.recv"), "receive first")


def send_first():
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(5_000_000)
    dist.send(x, (r + 1) % n)
    dist.recv(x, (r - 1) % n)


@BOTH
@pytest.mark.parametrize("n", [2, 3])
def test_sends_in_a_cycle(backend, n):
    error = fails(send_first, n=n, backend=backend)
    assert isinstance(error, DeadlockError)
    for rank in range(n):
        names(error, f"rank {rank}: send(dst={(rank + 1) % n})")
    names(error, line_of(send_first, "dist.send"))


def receive_in_a_cycle():
    r, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(3)
    dist.recv(x, (r - 1) % n)
    dist.send(x, (r + 1) % n)


@BOTH
def test_receives_in_a_cycle(backend):
    error = fails(receive_in_a_cycle, n=4, backend=backend)
    assert isinstance(error, DeadlockError)
    names(error, "rank 0 -> rank 3 -> rank 2 -> rank 1 -> rank 0")


def skip_a_collective():
    if dist.get_rank() != 2:
        dist.all_reduce(torch.ones(2))


@BOTH
def test_skipped_collective(backend):
    error = fails(skip_a_collective, backend=backend)
    assert isinstance(error, DeadlockError)
    names(error, "rank 2", "returned", "rank 0: all_reduce")
    names(error, line_of(skip_a_collective, "all_reduce"))
    assert error.rank == 2


def wrong_destination():
    r = dist.get_rank()
    x = torch.ones(2_000_000)
    if r == 0:
        dist.send(x, 2)
    elif r == 1:
        dist.recv(x, 0)


@BOTH
def test_wrong_destination(backend):
    error = fails(wrong_destination, backend=backend)
    names(error, "rank 0: send(dst=2)", "rank 1: recv(src=0)")
    names(error, line_of(wrong_destination, "dist.send"))


def no_such_rank():
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 7)


@BOTH
def test_destination_that_does_not_exist(backend):
    error = fails(no_such_rank, backend=backend)
    names(error, "rank 0", "7", line_of(no_such_rank, "dist.send"))


def returns_early():
    if dist.get_rank() == 0:
        return
    x = torch.ones(1)
    dist.recv(x, 0)


@BOTH
def test_early_return(backend):
    error = fails(returns_early, n=2, backend=backend)
    assert isinstance(error, DeadlockError)
    names(error, "rank 0", "returned", "rank 1: recv(src=0)")
    assert error.rank == 0


# mismatches


def other_order():
    x = torch.ones(4)
    if dist.get_rank() == 1:
        dist.broadcast(x, 0)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.broadcast(x, 0)


def other_shape():
    dist.all_reduce(torch.ones(3 if dist.get_rank() == 1 else 4))


def other_dtype():
    dtype = torch.int32 if dist.get_rank() == 1 else torch.float32
    dist.all_reduce(torch.ones(4, dtype=dtype))


def other_operation():
    ops = dist.ReduceOp.MAX, dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4), ops[dist.get_rank() == 1])


@BOTH
@pytest.mark.parametrize(
    "fn, words",
    [
        (other_order, ["broadcast", "all_reduce"]),
        (other_shape, ["float32[3]", "float32[4]"]),
        (other_dtype, ["int32[4]", "float32[4]"]),
        (other_operation, ["max", "sum"]),
    ],
)
def test_collectives_that_differ(backend, fn, words):
    error = fails(fn, backend=backend)
    assert isinstance(error, MismatchError)
    names(error, "rank 1", *words, "test_causes.py:")


def message(sent, received):
    if dist.get_rank() == 0:
        dist.send(sent, 1)
    else:
        dist.recv(received, 0)


@BOTH
@pytest.mark.parametrize(
    "received",
    [torch.ones(5), torch.ones(2), torch.ones(4, dtype=torch.int32)],
    ids=["longer", "shorter", "dtype"],
)
def test_messages_whose_ends_differ(backend, received):
    error = fails(message, torch.ones(4), received, n=2, backend=backend)
    assert isinstance(error, MismatchError)
    kind = str(received.dtype)[6:]
    names(error, "float32[4]", f"{kind}[{len(received)}]", "rank 0", "rank 1")
    names(error, line_of(message, "dist.recv"))


# loops and sudden ends


def endless():
    while dist.get_rank() == 1:
        pass
    dist.barrier()


@BOTH
def test_endless_loop(backend):
    error = fails(endless, backend=backend)
    names(error, "rank 1", "endless loop", "test_causes.py:")
    assert error.rank == 1


# what goes on for ever and says so


def polls(pause):
    if dist.get_rank() == 1:
        work = dist.irecv(torch.ones(1), 0)
        while not work.is_completed():  # polls
            if pause:
                d2lpar.sleep(pause)  # sleeps


@BOTH
@pytest.mark.parametrize("pause", [0, 1e-3])
def test_endless_looks_at_a_call(backend, pause):
    error = fails(polls, pause, backend=backend)
    since = f"for {TIMEOUT:g} s|in 1,000,000 sleeps"  # whatever comes first
    assert re.match(f"no progress ({since}): rank 1 asks again and again", str(error))
    names(error, "whether recv(src=0) is_completed() at ", "Call wait() instead")
    names(error, "rank 1: polls recv(src=0), ", "rank 0: returned")
    assert error.rank == 1 and error.call == "recv(src=0)"
    lines = [line_of(polls, "# polls"), line_of(polls, "# sleeps")]
    assert error.line.endswith(tuple(lines))


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


@BOTH
def test_looks_that_end_are_allowed(backend):
    run = d2lpar.run(gives_up, world_size=2, backend=backend, timeout=20.0)
    assert run.results[0] >= 100


def waits_in_vain():
    if dist.get_rank() == 0:
        work = dist.irecv(torch.ones(1), 1)
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(datetime.timedelta(seconds=0.1))


def test_endless_waits_with_a_timeout():
    error = fails(waits_in_vain, n=2, backend="gloo")
    names(error, "rank 0: ", "recv(src=1)", "rank 1: returned")


def sleeps_on():
    while dist.get_rank() == 0:
        d2lpar.sleep(1e-9)


def test_so_many_sleeps_are_too_many(monkeypatch):
    monkeypatch.setattr(patience, "NAPS", 1000)
    error = fails(sleeps_on, n=2)
    names(error, "no progress in 1,000 sleeps: rank 0", "tests/test_causes.py:")


def prints_on(way):
    while dist.get_rank() == 1:
        if way == "text":
            print("x" * 1_000_000)  # text
        elif way == "characters":
            print("x" * 200, end="")  # characters
        elif way == "bytes":
            sys.stdout.buffer.write(b"x" * 1_000_000)  # bytes
        else:
            print("x" * 1_000_000, file=sys.stderr)  # errors


@BOTH
@pytest.mark.parametrize("way", ["text", "characters", "bytes", "errors"])
def test_endless_prints(backend, way, monkeypatch):
    out, err = Counted(), Counted()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    error = fails(prints_on, way, backend=backend)
    names(error, "rank 1 has printed 3", "MB at ", "may print 32.0 MB together")
    names(error, line_of(prints_on, f"# {way}"), "rank 0: returned")
    assert error.rank == 1
    if way != "errors":
        kept = len(error.run.output)
        assert OUTPUT_LIMIT * 0.9 < kept <= OUTPUT_LIMIT + 1
        assert 20_000 <= out.count < 30_000  # its two ends
        assert "characters are only in the error's .run.output" in out.text
    assert err.count <= OUTPUT_LIMIT


class Counted:
    """Stands for a stream; keeps how much was written, and of it a little."""

    def __init__(self):
        self.count, self.text = 0, ""

    def write(self, text):
        self.count += len(text)
        self.text += text if len(self.text) < 30_000 else ""
        return len(text)

    def flush(self):
        pass


@BOTH
def test_endless_prints_that_are_streamed(backend, monkeypatch):
    monkeypatch.setenv("D2LPAR_LIVE", "1")
    out = Counted()
    monkeypatch.setattr(sys, "stdout", out)
    error = fails(prints_on, "characters", backend=backend)
    names(error, "rank 1 has printed 3", line_of(prints_on, "# characters"))
    assert OUTPUT_LIMIT * 0.9 < out.count <= OUTPUT_LIMIT


def talks():
    while dist.get_rank() == 1:
        print("still here")  # talks
        time.sleep(0.05)


@BOTH
def test_prints_alone_are_no_progress_for_ever(backend, monkeypatch):
    monkeypatch.setattr(patience, "TALK", 0.3)
    error = fails(talks, backend=backend)
    names(error, f"nothing but prints for {0.3 * TIMEOUT:g} s: rank 1 prints")
    names(error, " bytes so far at ", "End its loop")
    lines = [line_of(talks, text) for text in ("while", "# talks", "time.sleep")]
    assert error.rank == 1 and error.line.endswith(tuple(lines))


# what ranks leave of the process in which they are threads


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 5:
            raise ValueError("no item 5")
        return torch.ones(2) * i


def loads(where):
    fork = {"num_workers": 2, "multiprocessing_context": "fork"}
    for _ in torch.utils.data.DataLoader(Items(), batch_size=2, **fork):
        if where == "around":
            raise RuntimeError("between two batches")


def starts(how):
    fork = multiprocessing.get_context("fork")
    if how == "Popen":
        shell = "sleep 1000 & sleep 1001"
        subprocess.Popen(shell, shell=True, stdout=subprocess.PIPE)
    elif how == "thread":
        sleep = ["sleep", "1000"]
        thread = threading.Thread(target=subprocess.Popen, args=[sleep])
        thread.start()
        thread.join()
    elif how == "Process":
        fork.Process(target=time.sleep, args=[1000]).start()
    else:
        globals()["pool"] = fork.Pool(2)
    dist.barrier()
    return how


def starts_and_fails(how):
    starts(how)
    if dist.get_rank() == 1:
        raise RuntimeError("after a start")


def left():
    """Children, threads and descriptors; the caller's own are among them."""
    me = psutil.Process()
    children = {p.pid for p in me.children(True) if p.status() != "zombie"}
    return children, threading.active_count(), me.num_fds()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
@pytest.mark.filterwarnings("ignore:This DataLoader")
@pytest.mark.parametrize(
    "fn, argument",
    [(loads, "around"), (loads, "in a worker")]
    + [(starts_and_fails, how) for how in ("Popen", "thread", "Process", "Pool")],
)
def test_processes_of_a_failed_rank_end_with_the_run(fn, argument):
    d2lpar.run(healthy, world_size=2, backend="sim")
    with subprocess.Popen(["sleep", "1000"]) as ours:
        before = left()
        with pytest.raises(RankError) as caught:
            d2lpar.run(fn, argument, world_size=2, backend="sim")
        assert left() == before  # while the error is there, as in a notebook
        assert str(caught.value)
        ours.kill()
    assert d2lpar.run(healthy, world_size=2, backend="sim").results == [6.0] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
@pytest.mark.parametrize("how", ["Popen", "thread", "Process", "Pool"])
def test_processes_of_ranks_end_with_the_run(how):
    d2lpar.run(healthy, world_size=2, backend="sim")
    before, start = left(), (subprocess.Popen.__init__, threading.Thread.start)
    assert d2lpar.run(starts, how, world_size=2, backend="sim").results == [how] * 2
    assert left() == before
    assert (subprocess.Popen.__init__, threading.Thread.start) == start


def test_what_the_kernel_starts_meanwhile_goes_on(tmp_path):
    flag = tmp_path / "started"

    def waits_for_the_kernel():
        while not flag.exists():
            time.sleep(0.01)

    def start():
        started.append(subprocess.Popen(["sleep", "1000"]))
        flag.touch()

    started = []
    timer = threading.Timer(0.3, start)
    timer.start()
    d2lpar.run(waits_for_the_kernel, world_size=2, backend="sim")
    timer.join()
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


def deletes_its_folder(go_there, folder):
    if dist.get_rank() == 0:
        if go_there:
            os.chdir(folder)
        os.rmdir(folder)
    dist.barrier()


@BOTH
def test_a_deleted_working_directory(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for go_there in (True, False):
        folder = tmp_path / "for a while"
        folder.mkdir()
        if not go_there:
            monkeypatch.chdir(folder)
        run = d2lpar.run(
            deletes_its_folder, go_there, folder, world_size=2, backend=backend
        )
        again = d2lpar.run(healthy, world_size=2, backend=backend)
        assert again.results == [6.0] * 2
        with pytest.raises(RankError) as caught:
            d2lpar.run(divide, world_size=2, backend=backend)
        names(caught.value, line_of(divide, "1 / 0"))
        if go_there:
            assert os.getcwd() == str(tmp_path) and not run.warnings
        elif backend == "sim":
            [sentence] = run.warnings
            assert sentence.startswith(
                f"A rank deleted the working directory, {folder}"
            )


def patches(what):
    def mine(*args, **kwargs):
        return None

    dist.barrier()
    if dist.get_rank() == 0:
        if what == "function":
            dist.all_reduce = dist.distributed_c10d.all_reduce = mine
        elif what == "class":
            torch.Tensor.sum = None
        else:
            del dist.init_process_group
    dist.barrier()


@BOTH
@pytest.mark.parametrize(
    "what, name",
    [
        ("function", "torch.distributed.all_reduce"),
        ("class", "torch.Tensor.sum"),
        ("deleted", "torch.distributed.init_process_group"),
    ],
)
def test_what_a_rank_replaces_in_torch_is_put_back(backend, what, name):
    before = dist.all_reduce, torch.Tensor.sum, dist.init_process_group
    run = d2lpar.run(patches, what, world_size=2, backend=backend)
    assert (dist.all_reduce, torch.Tensor.sum, dist.init_process_group) == before
    again = d2lpar.run(healthy, world_size=2, backend=backend)
    assert again.results == [6.0] * 2 and not again.warnings
    if backend == "sim":
        [sentence] = run.warnings
        assert sentence.startswith(f"A rank replaced {name}")


def writes_bytes():
    print("text", dist.get_rank())
    sys.stdout.buffer.write("bytes \u00e9\n".encode())
    sys.stdout.writelines(["lines\n"])
    print("more text")


@BOTH
def test_bytes_arrive_among_the_text_of_their_rank(backend, capsys):
    run = d2lpar.run(writes_bytes, world_size=2, backend=backend)
    text = "text {}\nbytes \u00e9\nlines\nmore text\n"
    assert run.output == text.format(0) + text.format(1)
    assert capsys.readouterr().out == run.output


def exits(how):
    dist.barrier()
    if dist.get_rank() == 1:
        if how == "os._exit":
            os._exit(7)
        os.kill(os.getpid(), getattr(signal, how))
    dist.all_reduce(torch.ones(1000))


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL", "SIGABRT"])
def test_sudden_death(how):
    error = fails(exits, how, backend="gloo")
    names(error, "rank 1 died", "7" if how == "os._exit" else how)
    assert error.rank == 1


def nested():
    d2lpar.run(healthy, world_size=2)


@BOTH
def test_run_inside_run(backend):
    names(fails(nested, n=2, backend=backend), "inside run", "rank 0")


# what never starts


@BOTH
def test_something_that_cannot_be_copied(backend):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be copied.*lock"):
        d2lpar.run(lambda: lock, backend=backend)
    with pytest.raises(TypeError, match="cannot be copied"):
        d2lpar.run(print, (i for i in range(3)), backend=backend)


def returns_a_lock():
    return threading.Lock()


@BOTH
def test_result_that_cannot_be_copied(backend):
    error = fails(returns_a_lock, n=2, backend=backend)
    names(error, "rank 0", "cannot be copied", "_thread.lock")
    names(error, line_of(returns_a_lock, "def returns_a_lock"))


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
    assert not isinstance(caught.value, RankError)
    if not isinstance(kind, tuple):
        assert "\n" not in str(caught.value)


def takes_timeout(x, timeout=1):
    return timeout


def needs_seed(seed):
    return seed


def test_a_keyword_of_both_is_not_swallowed():
    with pytest.raises(TypeError, match="`timeout` is a keyword of run and of takes_"):
        d2lpar.run(takes_timeout, 1, timeout=5)
    with pytest.raises(TypeError, match="`seed` is a keyword"):
        d2lpar.run(needs_seed, seed=3)
    assert d2lpar.run(takes_timeout, 1, world_size=1).results == [1]
    assert d2lpar.run(needs_seed, 3, world_size=1).results == [3]
    with pytest.raises(TypeError, match="needs a function"):
        d2lpar.run(3)
    with pytest.raises(TypeError, match="healthy cannot be called so"):
        d2lpar.run(healthy, 1)


# what a rank says


def raises_of_the_network():
    if dist.get_rank() == 1:
        raise dist.DistNetworkError("my own words")
    dist.barrier()


@BOTH
def test_an_error_of_the_network_that_the_user_raises(backend):
    error = fails(raises_of_the_network, backend=backend)
    line = line_of(raises_of_the_network, "raise dist")
    names(error, "rank 1 raised DistNetworkError: my own words at ", line)
    assert isinstance(error.__cause__, dist.DistNetworkError)


def raises_much():
    if dist.get_rank() == 1:
        try:
            raise KeyError("k" * 3_000_000, 3)
        except KeyError:
            raise ValueError("the head" + "x" * 10_000_000 + "the tail")  # noqa: B904
    dist.barrier()


@BOTH
def test_a_text_without_end_is_cut(backend):
    error = fails(raises_much, backend=backend)
    names(error, "ValueError: the headxxx", "xxxthe tail at ", "9,998,516 characters")
    cause = error.__cause__
    for text in (str(error), str(cause), str(cause.__context__)):
        assert len(text) < 5000
    assert cause.__context__ is None or cause.__context__.args[1] == 3


# messages without their other end


def loses_messages(boxes, any_source):
    r = dist.get_rank()
    if r == 0:
        for _ in range(3):
            dist.isend(torch.ones(2), 1, tag=4)
    if r == 1:
        boxes.append(dist.irecv(torch.ones(2), 0))
    if any_source:
        if r == 0:
            dist.isend(torch.ones(2), 2)
        if r == 2:
            boxes += [dist.irecv(torch.ones(2)), dist.irecv(torch.ones(2), tag=9)]
    dist.barrier()


@BOTH
def test_messages_without_their_other_end_are_named(backend):
    any_source = backend == "sim"
    run = d2lpar.run(loses_messages, [], any_source, world_size=3, backend=backend)
    at = lambda text: "at tests/" + line_of(loses_messages, text)
    wanted = [
        f"Rank 0 sends to rank 1 {at('tag=4')} (3 times), but rank 1 never receives "
        "the message.",
        f"Rank 1 receives from rank 0 {at('boxes.append')}, but rank 0 never sends a "
        "message for it.",
        f"Rank 2 receives from any rank {at('tag=9')}, but no rank sends a message for "
        "it.",
    ]
    found = [text.replace(os.getcwd() + os.sep, "") for text in run.warnings]
    assert found == wanted[: 2 + any_source]


def many_lost():
    if dist.get_rank() == 0:
        for r in range(1, dist.get_world_size()):
            dist.isend(torch.ones(1), r)


def test_many_lost_messages_are_few_sentences():
    warnings = d2lpar.run(many_lost, world_size=30, backend="sim").warnings
    assert len(warnings) == 9 and warnings[-1] == "There are 21 more such calls."
    assert d2lpar.run(healthy, world_size=30, backend="sim").warnings == []


# imports


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


def test_the_delay_of_a_thread_is_read():
    assert patience.processor_delay(threading.get_native_id()) >= 0.0
    assert patience.processor_delay(0) == 0.0  # there is none
