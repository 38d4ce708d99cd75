"""A run inside a Jupyter kernel: interrupted, it leaves nothing behind."""

import os
import queue
import re
import subprocess
import time

import psutil
import pytest
from jupyter_client.manager import KernelManager

from conftest import WATCHDOG
from d2lpar.cli.execution import without_ports

ANSI = re.compile(r"\x1b\[[0-9;]*m")
BOTH = pytest.mark.parametrize("backend", ["sim", "gloo"])
SETUP = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
from d2lpar.launch import progress

def add_up():
    x = torch.ones(1) * dist.get_rank()
    dist.all_reduce(x)
    return x.item()

def endless(flag):
    pathlib.Path(f"{flag}{dist.get_rank()}").touch()
    while True:
        time.sleep(0.001)

def one_skips(flag):
    pathlib.Path(f"{flag}{dist.get_rank()}").touch()
    if dist.get_rank() == 0:
        time.sleep(1000)
    dist.barrier()

def fails():
    return 1 / dist.get_rank()

def slow(seconds):
    if dist.get_rank() == 1:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
    dist.barrier()
"""


@pytest.fixture(scope="module")
def kernel():
    """(its manager, its client, the processes that it has made ready for ranks)."""
    environ = {**os.environ, "D2LPAR_PROGRESS": "0"}
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager = KernelManager(**without_ports())
    manager.start_kernel(env=environ, **quiet)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=WATCHDOG)
        runs(client, "import d2lpar; d2lpar.defaults(world_size=1)")
        assert not children(manager)
        runs(client, "d2lpar.defaults(world_size=4)")
        ready = children(manager)
        runs(client, SETUP)
        yield manager, client, ready
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(client, code, meanwhile=None):
    """(name of the error or None, all messages as (kind, content)).

    `meanwhile()` is called now and then until it says that it is done.
    """
    request, error, messages = client.execute(code), None, []
    deadline = time.monotonic() + WATCHDOG
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            message = None
        if message and message["parent_header"].get("msg_id") == request:
            messages.append((message["msg_type"], message["content"]))
            if message["msg_type"] == "error":
                error = message["content"]["ename"]
            if message["content"].get("execution_state") == "idle":
                return error, messages
        if meanwhile is not None and meanwhile():
            meanwhile = None
    raise AssertionError("the kernel did not come back to its prompt")


def runs(client, code):
    """The code raises nothing; its messages."""
    error, messages = execute(client, code)
    assert error is None, shown(messages)
    return messages


def children(manager):
    return [
        child.pid
        for child in psutil.Process(manager.provisioner.pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    ]


def shown(messages):
    """The lines of a traceback, without colours."""
    [content] = [content for kind, content in messages if kind == "error"]
    return ANSI.sub("", "\n".join(content["traceback"])).splitlines()


def assert_table(lines, hanging, call):
    """After the call of the cell, a line for every rank, and nothing of the library."""
    first = next(i for i, line in enumerate(lines) if "interrupted after" in line)
    assert lines[first].startswith("KeyboardInterrupt: interrupted after ")
    rows = [line for line in lines[first + 1 :] if line.startswith("  rank ")]
    assert [row.split(":")[0] for row in rows] == [f"  rank {r}" for r in range(4)]
    if hanging == "endless":
        assert "running, cell [" in rows[0]
    else:
        assert "time.sleep(1000)" in rows[0]
    assert any(call in line for line in lines[:first])
    assert len(lines) < 12
    assert not any("d2lpar/launch" in line for line in lines)


@BOTH
def test_a_failing_run_shows_the_callers_lines_only(kernel, backend):
    _, client, _ = kernel
    call = f"d2lpar.run(fails, world_size=2, backend={backend!r})"
    error, messages = execute(client, "# a cell\n" + call)
    assert error == "RankError"
    lines = shown(messages)
    assert f"----> 2 {call}" in lines
    assert "RankError: rank 0 raised ZeroDivisionError: division by zero" in str(lines)
    assert not any("d2lpar/launch" in line for line in lines)
    runs(client, "assert sys.last_value.rank == 0")
    runs(client, "assert sys.last_value.run.world_size == 2")


@BOTH
def test_a_long_run_shows_what_its_ranks_do(kernel, backend):
    _, client, _ = kernel

    def pictures(seconds, wanted):
        code = f"""
progress.LATE, progress.PAUSE = 0.3, 0.1
os.environ["D2LPAR_PROGRESS"] = "{wanted}"
d2lpar.run(slow, {seconds}, world_size=2, backend={backend!r})
progress.LATE, os.environ["D2LPAR_PROGRESS"] = 1000, "0"
"""
        messages = runs(client, code)
        updates = [c for kind, c in messages if kind == "update_display_data"]
        assert all(each["metadata"] == {"d2lpar": "progress"} for each in updates)
        return [update["data"] for update in updates]

    assert not pictures(0.5, 0)
    *during, after = pictures(2.5, 1)
    assert after == {"text/plain": ""}
    text = "\n".join(data["text/plain"] for data in during)
    assert "0 of 2 ranks returned" in text and "rank 1  computing" in text
    assert re.search(r"rank 0  in barrier +\d+ steps", text)
    assert "<pre>" in during[-1]["text/html"]


@BOTH
@pytest.mark.parametrize("hanging", ["endless", "one_skips"])
def test_an_interrupted_kernel_is_at_its_prompt(kernel, backend, hanging, tmp_path):
    manager, client, _ = kernel
    again = f"assert d2lpar.run(add_up, world_size=4, backend={backend!r}).results"
    runs(client, again + " == [6.0] * 4")
    before = children(manager)
    flag = tmp_path / "rank"
    there = 4 if (backend, hanging) == ("gloo", "endless") else 1

    def interrupt():
        if len(list(tmp_path.iterdir())) < there:
            return False
        time.sleep(0.5)
        manager.interrupt_kernel()
        return True

    call = f"d2lpar.run({hanging}, {str(flag)!r}, world_size=4, backend={backend!r})"
    error, messages = execute(client, call, interrupt)
    assert error == "KeyboardInterrupt"
    assert_table(shown(messages), hanging, call)
    assert children(manager) == before
    runs(client, again + " == [6.0] * 4")


def test_a_notebook_of_several_ranks_makes_processes_ready(kernel):
    manager, client, ready = kernel
    assert len(ready) >= 1
    manager.interrupt_kernel()  # reaches all processes of the kernel
    runs(client, "assert d2lpar.run(lambda: 7, backend='gloo').results == [7] * 4")
    assert set(children(manager)) == set(ready)
